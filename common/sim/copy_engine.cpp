#include "common/sim/copy_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/sim/block.hpp"
#include "common/sim/machine.hpp"

namespace flash::sim {

namespace {

constexpr int kMbarrierBytes = 8;
constexpr int kMostArrivals = (1 << 20) - 1, kMostBytes = (1 << 20) - 1;  // PTX manual, "mbarrier object"
constexpr int kBoxAlignment = 128;
constexpr int kPieceBytes = 16;  // what the copy engine moves as one; measured, see tma.hpp

/// Bytes of the pieces that these bytes, from the start of a piece on, lie in.
int whole_pieces(int bytes) { return (bytes + kPieceBytes - 1) / kPieceBytes * kPieceBytes; }

}  // namespace

void CopyEngine::begin_block() {
  mbarriers_.clear();
  loads_.clear();
  stores_.clear();
  store_groups_.clear();
}

// -- mbarriers

const CopyEngine::Mbarrier* CopyEngine::find(int offset) const {
  for (const Mbarrier& barrier : mbarriers_) {
    if (barrier.offset == offset) return &barrier;
  }
  return nullptr;
}

std::string CopyEngine::describe(int offset) const {
  const std::string name = block_.describe(block_.place_of(offset));
  const Mbarrier* const barrier = find(offset);
  if (barrier == nullptr) return name;
  return fmt::format("{} (phase {}, parity {}: {} of {} arrivals and {} bytes are missing)", name, barrier->phase,
                     barrier->phase & 1u, barrier->pending, barrier->count, barrier->bytes);
}

bool CopyEngine::bytes_alone(int offset) const {
  const Mbarrier* const barrier = find(offset);
  return barrier != nullptr && barrier->pending == 0;
}

void CopyEngine::init(const void* address, int arrivals, Site site) {
  const TilePlace place = block_.place_of(address);
  const int offset = block_.shared_offset(address, kMbarrierBytes, "mbarrier initialisation", place, site);
  if (offset % kMbarrierBytes != 0) {
    block_.fault("misaligned",
                 fmt::format("the mbarrier at byte {} of shared memory: a multiple of 8 is needed", offset), site);
  }
  if (arrivals < 1 || arrivals > kMostArrivals) {
    block_.fault(
        "bad mbarrier",
        fmt::format("{} for {} arrivals: 1 to {} are possible", block_.describe(place), arrivals, kMostArrivals), site);
  }
  const SiteId at = block_.here(site);
  const int thread = running_thread->linear;
  block_.check(block_.shadow_.on_write(thread, offset, kMbarrierBytes, at), "mbarrier initialisation", place, site);
  auto* known = const_cast<Mbarrier*>(find(offset));
  const int engine = known != nullptr ? known->engine : copy_engine(int(mbarriers_.size()));
  if (known == nullptr) known = &mbarriers_.emplace_back();
  *known = {};
  known->offset = offset;
  known->count = known->pending = arrivals;
  known->thread = thread;
  known->site = at;
  known->written = block_.shadow_.written_at(offset, kMbarrierBytes);
  known->engine = engine;
}

CopyEngine::Mbarrier& CopyEngine::mbarrier(const void* address, const char* use, Site site) {
  const TilePlace place = block_.place_of(address);
  const int offset = block_.shared_offset(address, kMbarrierBytes, use, place, site);
  auto* const barrier = const_cast<Mbarrier*>(find(offset));
  if (barrier == nullptr || barrier->written != block_.shadow_.written_at(offset, kMbarrierBytes)) {
    block_.fault("mbarrier not initialised",
                 fmt::format("{} of {}, which {}", use, block_.describe(place),
                             barrier == nullptr ? "nobody has initialised, or not yet: a barrier may be missing"
                                                : "something else was written over"),
                 site);
  }
  block_.check(block_.shadow_.check_read(running_thread->linear, offset, kMbarrierBytes), use, place, site);
  return *barrier;
}

void CopyEngine::arrive(const void* address, int bytes, const char* instruction, Site site) {
  Mbarrier& barrier = mbarrier(address, instruction, site);
  if (barrier.pending == 0) {
    block_.fault("too many arrivals",
                 fmt::format("{} at {}: all arrivals of the phase are there", instruction, describe(barrier.offset)),
                 site);
  }
  if (bytes < 0 || barrier.bytes + bytes > kMostBytes) {
    block_.fault("bad mbarrier",
                 fmt::format("{} at {}: {} bytes more; a phase waits for 0 to {}", instruction,
                             describe(barrier.offset), bytes, kMostBytes),
                 site);
  }
  block_.shadow_.release(running_thread->warp, 1u << running_thread->lane, barrier.arriving);
  barrier.bytes += bytes;
  barrier.pending -= 1;
  complete_if_done(barrier, block_.here(site));
}

void CopyEngine::complete_if_done(Mbarrier& barrier, SiteId site) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  const auto index = std::size_t(
      std::find_if(mbarriers_.begin(), mbarriers_.end(), [&](const Mbarrier& other) { return &other == &barrier; }) -
      mbarriers_.begin());
  for (const Load& load : loads_) {
    if (load.mbarrier != index) continue;
    block_.fault_at("transaction bytes",
                    fmt::format("{} completes phase {} while a copy of {} bytes to it is under way, which the phase "
                                "should have been told to expect: issued by {}\n  at {}",
                                block_.describe(block_.place_of(barrier.offset)), barrier.phase, load.bytes,
                                block_.thread_name(load.thread), block_.describe(load.site, "\n  in ")),
                    "", site);
  }
  if (!barrier.waking.empty()) {
    const Thread& late = *barrier.waking.front();
    block_.fault_at(
        "phase missed",
        fmt::format("{} completes phase {} before {} has seen the end of phase {}, for which it waits\n  at "
                    "{}\n  by parity it cannot tell the two apart",
                    block_.describe(block_.place_of(barrier.offset)), barrier.phase, block_.thread_name(late.linear),
                    barrier.phase - 1, block_.describe(late.wait.site, "\n  in ")),
        "", site);
  }
  barrier.completed.join(barrier.arriving);
  barrier.arriving = {};
  barrier.pending = barrier.count;
  barrier.phase += 1;
  barrier.knows = {};
  barrier.landed.insert(barrier.landed.end(), barrier.landing.begin(), barrier.landing.end());
  barrier.landing.clear();
  for (Thread* thread : barrier.waiting) block_.warps_[std::size_t(thread->warp)].ready |= 1u << thread->lane;
  barrier.waking = std::move(barrier.waiting);
  barrier.waiting.clear();
  block_.count_event();
}

bool CopyEngine::passed(const Mbarrier& barrier, unsigned parity, Site site) {
  if (parity > 1) {
    block_.fault("bad mbarrier", fmt::format("wait at {} for parity {}: use 0 or 1", describe(barrier.offset), parity),
                 site);
  }
  return (barrier.phase & 1u) != parity;
}

/// The running thread has seen the last phase complete.
void CopyEngine::observe(Mbarrier& barrier) {
  const Thread& self = *running_thread;
  for (const Piece& piece : barrier.landed) block_.shadow_.copy_seen(piece.offset, piece.bytes);
  barrier.landed.clear();
  std::uint32_t& knows = barrier.knows[std::size_t(self.warp)];
  if (knows >> self.lane & 1u) return;
  knows |= 1u << self.lane;
  const std::uint32_t all = block_.warps_[std::size_t(self.warp)].lanes;
  // What each lane of a warp has learned alone, the warp knows.
  block_.shadow_.acquire(self.warp, knows == all ? all : 1u << self.lane, barrier.completed);
}

void CopyEngine::wait(const void* address, unsigned parity, Site site) {
  Mbarrier& barrier = mbarrier(address, "wait", site);
  if (!passed(barrier, parity, site)) {
    Thread& self = *running_thread;
    barrier.waiting.push_back(&self);
    self.wait = {"mbarrier", block_.here(site), 0, -1, barrier.offset};
    block_.suspend(self);
    std::erase(barrier.waking, &self);
  }
  observe(barrier);
}

bool CopyEngine::try_wait(const void* address, unsigned parity, Site site) {
  Mbarrier& barrier = mbarrier(address, "wait", site);
  if (!passed(barrier, parity, site)) {
    Thread& self = *running_thread;
    self.wait = {"mbarrier", block_.here(site), 0, -1, barrier.offset};
    block_.yield(self);
    if (!passed(barrier, parity, site)) return false;
  }
  observe(barrier);
  return true;
}

void CopyEngine::fence_inits() {
  for (Mbarrier& barrier : mbarriers_) barrier.fenced |= barrier.thread == running_thread->linear;
}

// -- Boxes

template <typename Visit>
void CopyEngine::each_run(const Box& box, Visit visit) {
  const TensorMapSpec& map = *box.map;
  int rows = 1;
  for (int i = 1; i < map.rank; ++i) rows *= map.box[i];
  const int row_bytes = map.box[0] * map.element_bytes;
  for (int row = 0; row < rows; ++row) {
    Run run{row * row_bytes, 0, 0, static_cast<std::byte*>(map.data), {}};
    bool inside = true;
    std::int64_t global = 0;
    int rest = row;
    for (int i = 1; i < map.rank; ++i) {
      run.coordinate[i] = std::int64_t(box.coordinate[i]) + rest % map.box[i];
      rest /= map.box[i];
      inside &= run.coordinate[i] >= 0 && run.coordinate[i] < map.extent[i];
      global += run.coordinate[i] * map.stride[i];
    }
    const std::int64_t from = std::max<std::int64_t>(box.coordinate[0], 0);
    const std::int64_t to = std::min(std::int64_t(box.coordinate[0]) + map.box[0], map.extent[0]);
    if (inside && from < to) {
      run.before = int(from - box.coordinate[0]);
      run.count = int(to - from);
      run.coordinate[0] = from;
      run.global += global + from * map.element_bytes;
    }
    visit(run);
  }
}

CopyEngine::Box CopyEngine::box_of(const TensorMap& map, const int* coordinates, int rank, const char* what,
                                   Site site) {
  const TensorMapSpec& spec = map.spec();
  if (rank != spec.rank) {
    block_.fault("bad tensor map",
                 fmt::format("{} coordinates for the map of {}, which has {} dimensions", rank, spec.tensor, spec.rank),
                 site);
  }
  if (const std::int64_t byte = std::int64_t(coordinates[0]) * spec.element_bytes; byte % kPieceBytes != 0) {
    block_.fault(
        "bad coordinates",
        fmt::format("{} of {} at coordinate {} of dimension 0, byte {} of a row: a multiple of {} bytes is needed",
                    what, spec.tensor, coordinates[0], byte, kPieceBytes),
        site);
  }
  Box box{&spec, map.tensor(), {}};
  std::copy_n(coordinates, rank, box.coordinate);
  return box;
}

void CopyEngine::check_store(const Box& box, Site site) {
  const TensorMapSpec& map = *box.map;
  for (int i = 0; i < map.rank; ++i) {
    if (box.coordinate[i] >= 0) continue;
    block_.fault(
        "bad coordinates",
        fmt::format("TMA store of {} at coordinate {} of dimension {}: a store may not begin before the tensor",
                    map.tensor, box.coordinate[i], i),
        site);
  }
  std::int64_t span = map.extent[0] * map.element_bytes;
  for (int i = 1; i < map.rank; ++i) span += (map.extent[i] - 1) * map.stride[i];
  each_run(box, [&](const Run& run) {
    const int bytes = whole_pieces(run.count * map.element_bytes);
    if (run.global + bytes <= static_cast<std::byte*>(map.data) + span) return;
    if (Machine::allocated_from(run.global) >= std::size_t(bytes)) return;
    block_.fault("out of bounds",
                 fmt::format("TMA store of {}: whole pieces of {} bytes are written, and there is no memory behind the "
                             "{} columns for the last of them",
                             element_name(place_of(box, run, bytes)), kPieceBytes, map.extent[0]),
                 site);
  });
}

int CopyEngine::check_box(const std::byte* shared, const TensorMapSpec& spec, const char* what, Site site) {
  const TilePlace place = block_.place_of(shared);
  const int offset = block_.shared_offset(shared, spec.box_bytes(), what, place, site);
  if (offset % kBoxAlignment != 0) {
    block_.fault("misaligned",
                 fmt::format("{} of {}: a multiple of {} bytes is needed", what, block_.describe(place), kBoxAlignment),
                 site);
  }
  return offset;
}

void CopyEngine::count(const Box& box, bool write) {
  TensorCounters& tensor = block_.counters_->tensors[std::size_t(box.tensor)];
  (write ? tensor.written_requests : tensor.read_requests) += 1;
  each_run(box, [&](const Run& run) {
    if (run.count == 0) return;
    const auto first = reinterpret_cast<std::uintptr_t>(run.global);
    const int bytes = run.count * box.map->element_bytes;
    const auto sectors = std::int64_t((first + std::uintptr_t(bytes) - 1) / 32 - first / 32 + 1);
    (write ? tensor.written_sectors : tensor.read_sectors) += sectors;
    (write ? tensor.useful_bytes_written : tensor.useful_bytes_read) += bytes;
  });
}

GlobalPlace CopyEngine::place_of(const Box& box, const Run& run, int bytes) {
  return {box.tensor,        int(run.coordinate[3]), int(run.coordinate[2]),
          run.coordinate[1], run.coordinate[0],      bytes / box.map->element_bytes};
}

void CopyEngine::access_global(const Box& box, GlobalAccess access, int thread, SiteId site) {
  each_run(box, [&](const Run& run) {
    if (run.count == 0) return;
    const int inside = run.count * box.map->element_bytes;
    const int bytes = access == GlobalAccess::write ? whole_pieces(inside) : inside;
    block_.record_global(access, place_of(box, run, bytes), run.global, bytes, site, thread);
  });
}

// -- Loads

void CopyEngine::load(std::byte* to, const TensorMap& map, const int* coordinates, int rank, const void* mbarrier_at,
                      Site site) {
  const Box box = box_of(map, coordinates, rank, "TMA load", site);
  const int offset = check_box(to, *box.map, "TMA load", site), bytes = box.map->box_bytes();
  Mbarrier& barrier = mbarrier(mbarrier_at, "TMA load", site);
  if (!barrier.fenced) {
    block_.fault("missing proxy fence",
                 fmt::format("TMA load that completes at {}: no mbarrier_init_fence() or async_proxy_fence() by {} "
                             "after it initialised the mbarrier\n  at {}",
                             block_.describe(block_.place_of(barrier.offset)), block_.thread_name(barrier.thread),
                             block_.describe(barrier.site, "\n  in ")),
                 site);
  }
  const SiteId at = block_.here(site);
  const int thread = running_thread->linear;
  const TilePlace place = block_.place_of(to);
  block_.check(block_.shadow_.check_overwrite(block_.shadow_.issuer(thread), offset, bytes), "TMA load", place, site);
  block_.check(block_.shadow_.begin_copy(thread, offset, bytes, at), "TMA load", place, site);
  count(box, false);
  access_global(box, GlobalAccess::read, thread, at);
  SharedCounters& shared = block_.counters_->shared_of(SharedAccess::tma_load);
  shared.accesses += 1;
  shared.bytes += bytes;
  const auto index = std::size_t(
      std::find_if(mbarriers_.begin(), mbarriers_.end(), [&](const Mbarrier& other) { return &other == &barrier; }) -
      mbarriers_.begin());
  loads_.push_back({box, index, barrier.phase, offset, bytes, thread, at});
}

void CopyEngine::land(std::size_t number) {
  const Load load = loads_[number];
  loads_.erase(loads_.begin() + std::ptrdiff_t(number));
  const TensorMapSpec& map = *load.box.map;
  std::byte* const shared = block_.shared_memory();
  const int row_bytes = map.box[0] * map.element_bytes;
  std::vector<std::byte> row(static_cast<std::size_t>(row_bytes));
  each_run(load.box, [&](const Run& run) {
    std::fill(row.begin(), row.end(), std::byte{0});
    if (run.count > 0) {
      std::memcpy(row.data() + run.before * map.element_bytes, run.global, std::size_t(run.count * map.element_bytes));
    }
    for (int i = 0; i < row_bytes; i += 16) {
      std::memcpy(shared + swizzle_offset(map.swizzle, unsigned(load.offset + run.shared + i)), row.data() + i, 16);
    }
  });
  Mbarrier& barrier = mbarriers_[load.mbarrier];
  block_.shadow_.copy_arrived(barrier.engine, load.offset, load.bytes);
  block_.shadow_.release_unit(barrier.engine, barrier.arriving);
  barrier.landing.push_back({load.offset, load.bytes, load.thread, load.site});
  barrier.bytes -= load.bytes;
  block_.count_event();
  complete_if_done(barrier, load.site);
}

bool CopyEngine::finish_oldest(bool any) {
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    if (!any && mbarriers_[loads_[i].mbarrier].waiting.empty()) continue;
    land(i);
    return true;
  }
  return false;
}

void CopyEngine::finish_some() {
  if (!loads_.empty() && block_.random() % 4 == 0) land(std::size_t(block_.random() % loads_.size()));
  if (!stores_.empty() && block_.random() % 4 == 0) {
    Store& store = stores_[std::size_t(block_.random() % stores_.size())];
    if (!store.read) read_source(store);
  }
}

// -- Stores

void CopyEngine::store(const TensorMap& map, const int* coordinates, int rank, const std::byte* from, Site site) {
  const Box box = box_of(map, coordinates, rank, "TMA store", site);
  check_store(box, site);
  const int offset = check_box(from, *box.map, "TMA store", site), bytes = box.map->box_bytes();
  const SiteId at = block_.here(site);
  const int thread = running_thread->linear;
  block_.check(block_.shadow_.check_operand(block_.shadow_.issuer(thread), offset, bytes), "TMA store",
               block_.place_of(from), site);
  block_.shadow_.begin_operand(offset, bytes);
  count(box, true);
  SharedCounters& shared = block_.counters_->shared_of(SharedAccess::tma_store);
  shared.accesses += 1;
  shared.bytes += bytes;
  store_groups_.resize(std::size_t(block_.threads()));
  stores_.push_back({box, thread, store_groups_[std::size_t(thread)] + 1, offset, bytes, at, false, false, {}});
}

void CopyEngine::commit_stores() {
  store_groups_.resize(std::size_t(block_.threads()));
  store_groups_[std::size_t(running_thread->linear)] += 1;
}

void CopyEngine::read_source(Store& store) {
  const TensorMapSpec& map = *store.box.map;
  store.data.resize(std::size_t(store.bytes));
  for (int i = 0; i < store.bytes; i += 16) {
    std::memcpy(store.data.data() + i, block_.shared_memory() + swizzle_offset(map.swizzle, unsigned(store.offset + i)),
                16);
  }
  store.read = true;
}

void CopyEngine::write_destination(Store& store) {
  access_global(store.box, GlobalAccess::write, store.thread, store.site);
  each_run(store.box, [&](const Run& run) {
    if (run.count == 0) return;
    // From the box's first column on: that is not negative.
    const int bytes = whole_pieces(run.count * store.box.map->element_bytes);
    std::memcpy(run.global, store.data.data() + run.shared, std::size_t(bytes));
  });
}

void CopyEngine::wait_stores(int pending, bool written, Site site) {
  const int thread = running_thread->linear;
  store_groups_.resize(std::size_t(block_.threads()));
  const int last = store_groups_[std::size_t(thread)] - pending;
  std::erase_if(stores_, [&](Store& store) {
    if (store.thread != thread) return false;
    if (store.group > store_groups_[std::size_t(thread)]) {
      block_.fault(
          "missing commit",
          fmt::format("the wait covers only committed groups; no tma_store_commit() since the TMA store\n  at {}",
                      block_.describe(store.site, "\n  in ")),
          site);
    }
    if (store.group > last) return false;
    if (!store.read) read_source(store);  // the latest legal moment is now
    if (!store.released) {
      store.released = true;
      block_.shadow_.end_operand(store.offset, store.bytes);
      block_.shadow_.on_read(thread, store.offset, store.bytes, store.site);
    }
    if (written) write_destination(store);
    return written;
  });
}

void CopyEngine::thread_exits(const Thread& thread) {
  std::erase_if(stores_, [&](Store& store) {
    if (store.thread != thread.linear) return false;
    if (!store.released) {
      block_.fault_at("missing store wait",
                      fmt::format("the thread ends, and with it perhaps the block's shared memory, before a wait says "
                                  "that the TMA store has read {}",
                                  block_.describe(block_.place_of(store.offset))),
                      block_.thread_name(thread.linear), store.site);
    }
    write_destination(store);
    return true;
  });
}

void CopyEngine::block_ends() {
  const auto fault = [&](int offset, int thread, SiteId site) {
    block_.fault_at("copy in flight",
                    fmt::format("the block ends, and nobody has waited for this TMA load to {}",
                                block_.describe(block_.place_of(offset))),
                    block_.thread_name(thread), site);
  };
  for (const Load& load : loads_) fault(load.offset, load.thread, load.site);
  for (const Mbarrier& barrier : mbarriers_) {
    for (const auto* pieces : {&barrier.landing, &barrier.landed}) {
      for (const Piece& piece : *pieces) fault(piece.offset, piece.thread, piece.site);
    }
  }
}

std::string CopyEngine::reader_of(int offset) const {
  for (const Store& store : stores_) {
    if (store.released || offset < store.offset || offset >= store.offset + store.bytes) continue;
    return fmt::format("the TMA store of {}\n  at {}", block_.thread_name(store.thread),
                       block_.describe(store.site, "\n  in "));
  }
  return "";
}

}  // namespace flash::sim
