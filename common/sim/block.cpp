#include "common/sim/block.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>

#include "common/sim/copy_engine.hpp"
#include "common/sim/warpgroup_unit.hpp"

namespace flash::sim {

namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr int kNamedBarriers = 16;
constexpr int kIdlePolls = 1000;  // of which nothing comes

/// Stacks with a guard page below: an overflow is a segmentation fault, not another thread's variables.
struct StackAllocator {
  boost::context::stack_context allocate() {
    const std::size_t guard = std::size_t(sysconf(_SC_PAGESIZE));
    void* base =
        mmap(nullptr, kStackBytes + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    mprotect(base, guard, PROT_NONE);
    boost::context::stack_context context;
    context.size = kStackBytes + guard;
    context.sp = static_cast<char*>(base) + context.size;
    return context;
  }
  void deallocate(boost::context::stack_context& context) noexcept {
    munmap(static_cast<char*>(context.sp) - context.size, context.size);
  }
};

std::string source_line(Site site) {
  std::ifstream file(site.file);
  std::string line;
  for (int i = 0; i < site.line && std::getline(file, line); ++i) {
  }
  if (!file) return "";
  const auto start = line.find_first_not_of(" \t");
  return start == std::string::npos ? "" : line.substr(start);
}

std::string describe(Site site) {
  if (site.line == 0) return "an unknown place";
  std::string path = site.file;
  for (const char* part : {"/chapters/", "/common/", "/tests/"}) {
    if (const auto at = path.rfind(part); at != std::string::npos) {
      path = path.substr(at + 1);
      break;
    }
  }
  const std::string text = source_line(site);
  return text.empty() ? fmt::format("{}:{}", path, site.line) : fmt::format("{}:{}: {}", path, site.line, text);
}

std::string describe(const SourcePlace& place, const char* separator) {
  if (place.outermost == place.innermost) return describe(place.outermost);
  return describe(place.outermost) + separator + describe(place.innermost);
}

/// "0-31" or "0, 5-7"
std::string lane_list(std::uint32_t lanes) {
  std::string text;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1u)) continue;
    int last = lane;
    while (last < 31 && (lanes >> (last + 1) & 1u)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ",
                        lane == last ? fmt::format("{}", lane) : fmt::format("{}-{}", lane, last));
    lane = last;
  }
  return text;
}

}  // namespace

Block::Block()
    : shared_(nullptr, std::free),
      barriers_(kNamedBarriers),
      copy_engine_(std::make_unique<CopyEngine>(*this)),
      warpgroup_unit_(std::make_unique<WarpgroupUnit>(*this)) {
  // The hardware's limit on shared memory is small enough to hold the whole of it once.
  shared_.reset(static_cast<std::byte*>(std::aligned_alloc(1024, kMaxSharedBytes)));
  if (!shared_) throw std::bad_alloc();
}

Block::~Block() = default;

std::uint64_t Block::random() {  // splitmix64
  std::uint64_t z = (random_state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void Block::thread_main(Thread& thread) {
  // A fiber serves block after block: it is made once and its stack stays warm.
  for (;;) {
    try {
      if (!cancelled_) {
        kernel_->body();
        copy_engine_->thread_exits(thread);
        warpgroup_unit_->thread_exits(thread);
      }
    } catch (const Cancelled&) {
    } catch (const boost::context::detail::forced_unwind&) {
      throw;
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
      cancelled_ = true;
    }
    thread.exited = true;
    thread.scheduler = std::move(thread.scheduler).resume();
  }
}

void Block::make_fibers(int count) {
  while (int(threads_.size()) < count) {
    auto thread = std::make_unique<Thread>();
    Thread* raw = thread.get();
    raw->block = this;
    raw->linear = int(threads_.size());
    raw->warp = raw->linear / 32;
    raw->lane = raw->linear % 32;
    raw->index = {unsigned(raw->linear), 0, 0};
    raw->log.entries.reserve(AccessLog::kCapacity);
    raw->fiber =
        boost::context::fiber(std::allocator_arg, StackAllocator{}, [this, raw](boost::context::fiber&& scheduler) {
          raw->scheduler = std::move(scheduler);
          thread_main(*raw);
          return std::move(raw->scheduler);
        });
    threads_.push_back(std::move(thread));
  }
}

void Block::run(const KernelRun& kernel, std::int64_t block_linear, Counters& counters) {
  const LaunchConfig& config = kernel.config;
  kernel_ = &kernel;
  counters_ = &counters;
  grid_ = {unsigned(config.grid.x), unsigned(config.grid.y), unsigned(config.grid.z)};
  block_index_ = {unsigned(block_linear % config.grid.x), unsigned(block_linear / config.grid.x % config.grid.y),
                  unsigned(block_linear / config.grid.x / config.grid.y)};
  thread_count_ = config.threads;
  shared_bytes_ = int(config.shared_bytes);
  blocks_started_.fetch_add(1, std::memory_order_relaxed);
  last_line_.store(0, std::memory_order_relaxed);
  random_state_ = kernel.schedule_seed * 0x2545f4914f6cdd1du + std::uint64_t(block_linear);
  const int warp_count = (thread_count_ + 31) / 32;
  make_fibers(thread_count_);
  shadow_.begin_block(shared_bytes_, thread_count_);
  history_.begin_block(kernel.global_shadow, block_linear);
  copy_engine_->begin_block();
  warpgroup_unit_->begin_block();
  events_ = 0;
  idle_polls_ = 0;
  warps_.assign(std::size_t(warp_count), {});
  for (Barrier& barrier : barriers_) barrier = {};
  member_name_ = nullptr;
  // Numbers of places do not outlive a block, and there are not endlessly many.
  if (sites_.size() > SiteTable::kCapacity / 2) sites_ = {};
  cancelled_ = false;
  failure_ = nullptr;
  live_threads_ = thread_count_;
  current_warp_ = 0;
  for (int i = 0; i < thread_count_; ++i) {
    Thread& thread = *threads_[std::size_t(i)];
    thread.exited = false;
    thread.caller = 0;
    thread.wait = {};
    thread.packed = false;
    thread.log.entries.clear();
    thread.copy_groups_committed = 0;
    thread.copies.clear();
    Warp& warp = warps_[std::size_t(thread.warp)];
    warp.lanes |= 1u << thread.lane;
    warp.live = warp.ready = warp.lanes;
  }
  try {
    schedule();
    if (!failure_) copy_engine_->block_ends();
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  if (failure_) {
    // Let every thread leave the kernel, so that its stack is empty for the next block: those that wait throw
    // Cancelled, those that have not begun do not begin.
    cancelled_ = true;
    for (int i = 0; i < thread_count_; ++i) {
      Thread& thread = *threads_[std::size_t(i)];
      if (!thread.exited) resume(thread);
    }
    std::rethrow_exception(failure_);
  }
  counters.blocks += 1;
  counters.shared_bytes = std::max<std::int64_t>(counters.shared_bytes, shared_bytes_);
  counters.threads += thread_count_;
}

void Block::schedule() {
  const bool seeded = kernel_->schedule_seed != 0;
  while (live_threads_ > 0) {
    std::uint32_t runnable = 0, polling = 0;
    for (std::size_t w = 0; w < warps_.size(); ++w) {
      if (warps_[w].ready | warps_[w].log_full) runnable |= 1u << w;
      if (warps_[w].polling) polling |= 1u << w;
    }
    if (runnable != 0) {
      idle_polls_ = 0;
    } else {  // the latest legal moment
      if (copy_engine_->finish_oldest(polling != 0)) continue;
      if (polling == 0 || ++idle_polls_ > kIdlePolls) deadlock();
    }
    runnable |= polling;
    if (seeded) {
      int skip = int(random() % std::uint64_t(std::popcount(runnable)));
      while (skip-- > 0) runnable &= runnable - 1;
      current_warp_ = std::countr_zero(runnable);
      let_copies_arrive();
      copy_engine_->finish_some();
    } else if (warps_[std::size_t(current_warp_)].ready == 0) {
      // The next in turn: a warp whose lanes run on without waiting must not keep the others from what it looks for.
      const std::uint32_t later = runnable & ~((2u << current_warp_) - 1);
      current_warp_ = std::countr_zero(later != 0 ? later : runnable);
    }
    run_warp(current_warp_);
    if (failure_) return;
  }
}

void Block::run_warp(int w) {
  Warp& warp = warps_[std::size_t(w)];
  if (warp.ready == 0) {  // all that could run have full logs: count what can be, and let those with space go on
    flush_logs(w, warp.log_full);
    for (int lane = 0; lane < 32; ++lane) {
      if (!(warp.log_full >> lane & 1u)) continue;
      if (threads_[std::size_t(w * 32 + lane)]->log.entries.size() < AccessLog::kCapacity) warp.ready |= 1u << lane;
    }
    warp.log_full &= ~warp.ready;
    if (warp.ready == 0) warp.ready = std::exchange(warp.polling, 0);
  }
  // One turn for each lane that is ready now; with a seed the turn starts at any lane.
  const int first = kernel_->schedule_seed != 0 ? int(random() % 32) : 0;
  const std::uint32_t turn = warp.ready;
  for (int i = 0; i < 32; ++i) {
    const int lane = (first + i) % 32;
    if (!(turn >> lane & 1u)) continue;
    warp.ready &= ~(1u << lane);
    Thread& thread = *threads_[std::size_t(w * 32 + lane)];
    resume(thread);
    if (failure_) return;
    if (thread.exited) {
      warp.live &= ~(1u << lane);
      --live_threads_;
      progress_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  // A lane that waits alone at an mbarrier may come to where the others are.
  if (warp.ready == 0 && warp.log_full == 0 && warp.polling == 0) flush_logs(w, at_mbarriers(std::size_t(w)));
}

void Block::resume(Thread& thread) {
  Thread* const before = running_thread;
  running_thread = &thread;
  ++events_;
  last_thread_.store(thread.linear, std::memory_order_relaxed);
  thread.fiber = std::move(thread.fiber).resume();
  running_thread = before;
}

void Block::suspend(Thread& thread) {
  if (cancelled_) throw Cancelled{};  // a destructor that runs while the thread unwinds
  thread.scheduler = std::move(thread.scheduler).resume();
  if (cancelled_) throw Cancelled{};
  thread.wait = {};
}

void Block::yield(Thread& thread) {
  warps_[std::size_t(thread.warp)].polling |= 1u << thread.lane;
  suspend(thread);
}

void Block::flush_logs(int w, std::uint32_t open) {
  AccessLog* logs[32] = {};
  bool any = false;
  for (int lane = 0; lane < 32 && w * 32 + lane < thread_count_; ++lane) {
    logs[lane] = &threads_[std::size_t(w * 32 + lane)]->log;
    any |= !logs[lane]->entries.empty();
  }
  if (any) count_accesses(logs, open, sites_, *counters_);
}

void Block::log(Thread& thread, AccessKind kind, int tensor, std::uintptr_t address, int bytes, SiteId site) {
  const Site shown = sites_.outermost(site);
  last_file_.store(shown.file, std::memory_order_relaxed);
  last_line_.store(shown.line, std::memory_order_relaxed);
  if (thread.log.entries.size() == AccessLog::kCapacity) {
    thread.wait = {"the other lanes of its warp to catch up", site, 0};
    warps_[std::size_t(thread.warp)].log_full |= 1u << thread.lane;
    suspend(thread);
  }
  thread.log.entries.push_back({address, site, kind, std::uint8_t(bytes), tensor});
}

// -- Barriers

namespace {

std::string barrier_name(int id) { return id == 0 ? "__syncthreads" : fmt::format("named barrier {}", id); }

}  // namespace

int Block::Barrier::threads() const {
  int count = 0;
  for (const std::uint32_t of_warp : lanes) count += std::popcount(of_warp);
  return count;
}

void Block::check_barrier(const Barrier& barrier, int id, int count, Arrival arrival, Site site) {
  const std::string name = barrier_name(id);
  const int warp = running_thread->warp;
  const bool wait = arrival != Arrival::arrive;
  const std::uint32_t bit = 1u << warp, lanes = barrier.lanes[std::size_t(warp)];
  if (count <= 0 || (count % 32 != 0 && !(id == 0 && count == thread_count_))) {
    fault("bad barrier", fmt::format("{} for {} threads: the count is a multiple of 32", name, count), site);
  }
  if (count > (thread_count_ + 31) / 32 * 32) {
    fault("bad barrier", fmt::format("{} for {} threads, but the block has {}", name, count, thread_count_), site);
  }
  if (barrier.expected != 0 && barrier.expected != count) {
    fault("bad barrier", fmt::format("{} for {} threads, but others came there for {}", name, count, barrier.expected),
          site);
  }
  if (barrier.arrived & bit) {
    fault("bad barrier", fmt::format("warp {} arrives at {} again before it completed", warp, name), site);
  }
  if (lanes != 0 && bool(barrier.waiting & bit) != wait) {
    fault("diverged warp",
          fmt::format("lanes {} of the warp {} at {}, this one {}", lane_list(lanes), wait ? "arrive" : "wait", name,
                      wait ? "waits" : "arrives"),
          site);
  }
  if (lanes != 0 && barrier.sites[std::size_t(warp)] != here(site)) {
    fault("diverged warp",
          fmt::format("a warp comes to {} as a whole, but lanes {} of it came from {}", name, lane_list(lanes),
                      describe(barrier.sites[std::size_t(warp)])),
          site);
  }
  // PTX, bar: bar.red is not to be mixed with bar.sync or bar.arrive at one active barrier.
  if (barrier.expected != 0 && barrier.votes != (arrival == Arrival::vote)) {
    fault("bad barrier",
          fmt::format("{} of {}, to which others came {}", arrival == Arrival::vote ? "a vote" : "no vote", name,
                      barrier.votes ? "to vote" : "without one"),
          site);
  }
}

void Block::barrier(int id, int count, Arrival arrival, Site site) {
  if (id < 0 || id >= kNamedBarriers) {
    fault("bad barrier", fmt::format("named barrier {}: a block has barriers 0 to {}", id, kNamedBarriers - 1), site);
  }
  Thread& self = *running_thread;
  Barrier& barrier = barriers_[std::size_t(id)];
  check_barrier(barrier, id, count, arrival, site);
  const bool wait = arrival != Arrival::arrive;
  Warp& warp = warps_[std::size_t(self.warp)];
  barrier.expected = count;
  if (wait) barrier.waiting |= 1u << self.warp;
  if (arrival == Arrival::vote) {
    barrier.votes = true;
    barrier.any |= self.vote;
  }
  std::uint32_t& lanes = barrier.lanes[std::size_t(self.warp)];
  const SiteId at = here(site);
  if (lanes == 0) barrier.sites[std::size_t(self.warp)] = at;
  lanes |= 1u << self.lane;
  self.wait = {id == 0 ? "__syncthreads" : "named barrier", at, 0, id};
  if (lanes != warp.lanes) return suspend(self);

  flush_logs(self.warp);
  shadow_.release(self.warp, lanes, barrier.clock);
  barrier.arrived |= 1u << self.warp;
  if (!wait) warp.ready |= lanes & ~(1u << self.lane);
  if (std::popcount(barrier.arrived) * 32 >= count) {
    complete(barrier);
  } else if (wait) {
    return suspend(self);
  }
  self.wait = {};
}

bool Block::barrier_vote(int id, int count, bool mine, Site site) {
  running_thread->vote = mine;
  barrier(id, count, Arrival::vote, site);
  return running_thread->vote;
}

void Block::complete(Barrier& barrier) {
  counters_->barriers += 1;
  count_event();
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    if (!(barrier.waiting >> w & 1u)) continue;
    shadow_.acquire(int(w), warps_[w].lanes, barrier.clock);
    shadow_.order_lanes(int(w), warps_[w].lanes);
    warps_[w].ready |= barrier.lanes[w];
    for (std::uint32_t left = barrier.lanes[w]; barrier.votes && left != 0; left &= left - 1) {
      threads_[w * 32 + std::size_t(std::countr_zero(left))]->vote = barrier.any;
    }
  }
  warps_[std::size_t(running_thread->warp)].ready &= ~(1u << running_thread->lane);
  barrier = {};
}

// -- Warp collectives

Block::Meeting& Block::join_meeting(const char* operation, std::uint32_t mask, bool aligned, std::size_t operand_bytes,
                                    Site site) {
  Thread& self = *running_thread;
  Warp& warp = warps_[std::size_t(self.warp)];
  if (!(mask >> self.lane & 1u)) {
    fault("bad mask", fmt::format("{} with mask {:#010x}, which does not name the calling lane", operation, mask),
          site);
  }
  for (Meeting& meeting : warp.meetings) {
    if (meeting.mask != mask) continue;
    if (std::strcmp(meeting.operation, operation) != 0 || meeting.operand_bytes != operand_bytes) {
      fault("diverged warp",
            fmt::format("{} meets lanes {} that wait at {} ({})", operation, lane_list(meeting.arrived),
                        meeting.operation, describe(meeting.site)),
            site);
    }
    if (aligned && meeting.site != here(site)) {
      fault("diverged warp",
            fmt::format("a warp comes to {} as a whole, but lanes {} of it came from {}", operation,
                        lane_list(meeting.arrived), describe(meeting.site)),
            site);
    }
    return meeting;
  }
  warp.meetings.push_back({operation, mask, 0, operand_bytes, {}, here(site), aligned});
  return warp.meetings.back();
}

void Block::finish_meeting(std::uint32_t mask) {
  Thread& self = *running_thread;
  Warp& warp = warps_[std::size_t(self.warp)];
  std::erase_if(warp.meetings, [mask](const Meeting& meeting) { return meeting.mask == mask; });
  warp.ready |= mask & ~(1u << self.lane);
  count_event();
  // A collective of the whole warp is a point where its lanes have the same past: match their accesses here.
  if (mask == warp.live) flush_logs(self.warp);
}

// -- Memory

void Block::order_lanes(std::uint32_t mask) { shadow_.order_lanes(running_thread->warp, mask); }

std::string Block::describe(const TilePlace& place) const {
  const std::string name = member_name_ == nullptr ? "" : member_name_(shared_.get(), place);
  if (place.rows == 0) {
    const auto at = static_cast<const std::byte*>(place.tile) - shared_.get();
    return fmt::format("{}{}byte {} of shared memory", name, name.empty() ? "" : " at ", at);
  }
  const std::string which =
      fmt::format("row {}, {}", place.row,
                  place.count == 1 ? fmt::format("column {}", place.col)
                                   : fmt::format("columns {} to {}", place.col, place.col + place.count - 1));
  const auto byte = static_cast<const std::byte*>(place.tile) - shared_.get();
  if (name.empty())
    return fmt::format("{} of the shared tile of {} by {} at byte {}", which, place.rows, place.cols, byte);
  return fmt::format("{} of {} ({} by {} at byte {})", which, name, place.rows, place.cols, byte);
}

int Block::shared_offset(const void* address, int bytes, const char* access, const TilePlace& place, Site site) {
  const std::ptrdiff_t offset = static_cast<const std::byte*>(address) - shared_.get();
  if (offset < 0 || offset + bytes > shared_bytes_) [[unlikely]] {
    fault("out of bounds",
          fmt::format("{} of {}, which lies outside the {} bytes of shared memory that the launch gave", access,
                      describe(place), shared_bytes_),
          site);
  }
  return int(offset);
}

void Block::check(const Conflict& conflict, const char* access, const TilePlace& place, Site site) {
  if (conflict.kind == Conflict::none) return;
  const std::string what = fmt::format("{} of {}", access, describe(place));
  const std::string earlier =
      fmt::format("{}\n  at {}", thread_name(conflict.thread), describe(conflict.site, "\n  in "));
  switch (conflict.kind) {
    case Conflict::none:
      return;
    case Conflict::unwritten:
      fault("unwritten shared memory",
            fmt::format("{}: nobody wrote byte {}{}", what, conflict.offset,
                        warps_.size() > 1 ? ", or not yet: if another warp brings it, a barrier is missing" : ""),
            site);
    case Conflict::race_with_write:
      fault("data race",
            fmt::format("{}: no barrier between it and the write of byte {} by {}", what, conflict.offset, earlier),
            site);
    case Conflict::race_with_read:
      // A warp that has not waited itself is told so, even if another's wait has already let the product be done.
      if (conflict.thread >= tensor_cores(0) && !warpgroup_unit_->reader_of(conflict.offset).empty()) {
        return check({Conflict::operand_in_use, conflict.thread, conflict.site, conflict.offset}, access, place, site);
      }
      fault("data race",
            fmt::format("{}: no barrier between it and the read of byte {} by {}", what, conflict.offset, earlier),
            site);
    case Conflict::copy_in_flight:
      fault("copy in flight",
            fmt::format("{}: the asynchronous copy into byte {} has not been waited for; issued by {}", what,
                        conflict.offset, earlier),
            site);
    case Conflict::operand_in_use: {
      const std::string wgmma = warpgroup_unit_->reader_of(conflict.offset);
      fault(wgmma.empty() ? "store source in use" : "operand in use",
            fmt::format("{}: byte {} is being read by {}", what, conflict.offset,
                        wgmma.empty() ? copy_engine_->reader_of(conflict.offset) : wgmma),
            site);
    }
    case Conflict::missing_fence:
      fault("missing proxy fence",
            fmt::format("{}: no async_proxy_fence() between the plain write of byte {} and this access through the "
                        "async proxy; written by {}",
                        what, conflict.offset, earlier),
            site);
  }
}

void Block::fence_proxy() {
  shadow_.fence_proxy(running_thread->linear);
  copy_engine_->fence_inits();
}

void Block::read_shared(const void* address, int bytes, SharedAccess kind, const TilePlace& place, Site site) {
  Thread& self = *running_thread;
  const int offset = shared_offset(address, bytes, "read", place, site);
  const SiteId at = here(site);
  log(self, access_kind(kind), 0, std::uintptr_t(offset), bytes, at);  // may let other lanes run, so it comes first
  check(shadow_.on_read(self.linear, offset, bytes, at), "read", place, site);
}

void Block::write_shared(const void* address, int bytes, SharedAccess kind, const TilePlace& place, const void* values,
                         Site site) {
  Thread& self = *running_thread;
  const int offset = shared_offset(address, bytes, "write", place, site);
  const SiteId at = here(site);
  log(self, access_kind(kind), 0, std::uintptr_t(offset), bytes, at);
  check(shadow_.on_write(self.linear, offset, bytes, at, static_cast<const std::byte*>(address),
                         static_cast<const std::byte*>(values)),
        "write", place, site);
}

namespace {

std::string block_name(std::int64_t linear, const Dim3& grid) {
  return fmt::format("block ({}, {}, {})", linear % grid.x, linear / grid.x % grid.y, linear / grid.x / grid.y);
}

}  // namespace

std::string element_name(const GlobalPlace& place) {
  return fmt::format("{}[batch {}, head {}, row {}, columns {} to {}]", tensor_name(place.tensor), place.batch,
                     place.head, place.row, place.col, place.col + place.count - 1);
}

void Block::record_global(GlobalAccess access, const GlobalPlace& place, const void* address, int bytes, SiteId at,
                          int thread) {
  const BlockConflict race = history_.access(access, address, bytes, {sites_.outermost(at), sites_.site(at)});
  if (!race.found) return;
  constexpr const char* kNames[] = {"read", "atomic", "write"};
  constexpr const char* kEarlier[] = {"read", "atomically updated", "wrote"};
  fault_at("data race between blocks",
           fmt::format("{} of {}: {} {} it at {}, and nothing orders the two blocks", kNames[int(access)],
                       element_name(place), block_name(race.block, grid_), kEarlier[int(race.access)],
                       sim::describe(race.place, ", in ")),
           thread_name(thread), at);
}

void Block::log_global(AccessKind kind, int tensor, const void* address, int bytes, Site site) {
  log(*running_thread, kind, tensor, reinterpret_cast<std::uintptr_t>(address), bytes, here(site));
}

// -- Asynchronous copies

void Block::issue_copy(void* shared_address, const std::byte* source, int source_bytes, int bytes,
                       const TilePlace& place, Site site) {
  Thread& self = *running_thread;
  const int offset = shared_offset(shared_address, bytes, "asynchronous copy", place, site);
  const SiteId id = here(site);
  log(self, AccessKind::shared_cp_async, 0, std::uintptr_t(offset), bytes, id);
  check(shadow_.begin_copy(self.linear, offset, bytes, id), "asynchronous copy", place, site);
  self.copies.push_back({self.copy_groups_committed + 1, offset, source, source_bytes, bytes, id, false});
}

void Block::commit_copies() { running_thread->copy_groups_committed += 1; }

void Block::wait_copies(int pending) {
  Thread& self = *running_thread;
  const int last = self.copy_groups_committed - pending;
  std::erase_if(self.copies, [&](AsyncCopy& copy) {
    if (copy.group > last) return false;
    if (!copy.arrived) move_data(copy);  // the latest legal moment is now
    shadow_.end_copy(self.linear, copy.shared_offset, copy.bytes, copy.site);
    return true;
  });
}

void Block::move_data(AsyncCopy& copy) {
  std::byte* const destination = shared_.get() + copy.shared_offset;
  if (copy.source_bytes > 0) std::memcpy(destination, copy.source, std::size_t(copy.source_bytes));
  std::memset(destination + copy.source_bytes, 0, std::size_t(copy.bytes - copy.source_bytes));
  copy.arrived = true;
}

void Block::let_copies_arrive() {
  // Data may arrive at any moment and in any order. That a thread may read them is known only after its wait, so the
  // shared-memory shadow keeps calling the copy "in flight" until then.
  Thread& issuer = *threads_[std::size_t(random() % std::uint64_t(thread_count_))];
  for (AsyncCopy& copy : issuer.copies) {
    if (!copy.arrived && random() % 2 == 0) move_data(copy);
  }
}

// -- Reports

std::string Block::thread_name(int linear) const {
  if (linear >= tensor_cores(0)) {
    const int warp = (linear - tensor_cores(0)) / 32 * 4 + linear % 4;
    return fmt::format("the tensor cores for warp {}", warp);
  }
  if (linear >= sim::copy_engine(0)) return "the copy engine";
  return fmt::format("thread {} (warp {}, lane {})", linear, linear / 32, linear % 32);
}

std::string Block::where() const {
  if (blocks_started() == 0) return "no kernel";
  const Site site{last_file_.load(std::memory_order_relaxed), last_line_.load(std::memory_order_relaxed)};
  return fmt::format("kernel {}, block ({}, {}, {}), {}\n  last access at {}", kernel_->config.name, block_index_.x,
                     block_index_.y, block_index_.z, thread_name(last_thread_.load(std::memory_order_relaxed)),
                     sim::describe(site));
}

void Block::fault(const std::string& kind, const std::string& what, Site site) { fault_at(kind, what, "", here(site)); }

void Block::fault_at(const std::string& kind, const std::string& what, const std::string& who, SiteId site) {
  std::string by;
  if (!who.empty()) {
    by = fmt::format(", {}", who);
  } else if (running_thread != nullptr) {
    by = fmt::format(", {}", thread_name(running_thread->linear));
  }
  throw Fault(kind, fmt::format("fault: {}\n  kernel {}, block ({}, {}, {}) of ({}, {}, {}){}\n  at {}\n  {}", kind,
                                kernel_->config.name, block_index_.x, block_index_.y, block_index_.z, grid_.x, grid_.y,
                                grid_.z, by, describe(site, "\n  in "), what));
}

std::string Block::describe(SiteId site, const char* separator) const {
  return sim::describe(SourcePlace{sites_.outermost(site), sites_.site(site)}, separator);
}

std::string Block::wait_text(const Thread& thread) const {
  if (thread.exited) return "have exited";
  std::string text = fmt::format("wait at {}", thread.wait.what);
  if (thread.wait.barrier >= 0) {
    const Barrier& barrier = barriers_[std::size_t(thread.wait.barrier)];
    if (thread.wait.barrier > 0) text += fmt::format(" {}", thread.wait.barrier);
    text += fmt::format(" ({} of {} threads are there)", barrier.threads(), barrier.expected);
  } else if (thread.wait.mbarrier >= 0) {
    text += fmt::format(" {}", copy_engine_->describe(thread.wait.mbarrier));
  } else if (thread.wait.warpgroup >= 0) {
    text += warpgroup_unit_->wait_text(thread.wait.warpgroup);
  } else if (thread.wait.mask != 0) {
    std::uint32_t arrived = 0;
    for (const Meeting& meeting : warps_[std::size_t(thread.warp)].meetings) {
      if (meeting.mask == thread.wait.mask) arrived = meeting.arrived;
    }
    text += fmt::format(" for lanes {}", lane_list(thread.wait.mask & ~arrived));
  }
  return text + fmt::format(", {}", describe(thread.wait.site));
}

std::string Block::waiting_report() const {
  std::string report;
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    // The lanes of a warp by what they wait for.
    std::map<std::string, std::uint32_t> groups;
    for (int lane = 0; lane < 32 && int(w) * 32 + lane < thread_count_; ++lane) {
      const Thread& thread = *threads_[w * 32 + std::size_t(lane)];
      groups[wait_text(thread)] |= 1u << lane;
    }
    for (const auto& [state, lanes] : groups)
      report += fmt::format("\n  warp {}, lanes {} {}", w, lane_list(lanes), state);
  }
  return report;
}

std::uint32_t Block::at_mbarriers(std::size_t warp) const {
  std::uint32_t lanes = 0;
  for (std::uint32_t left = warps_[warp].live; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (threads_[warp * 32 + std::size_t(lane)]->wait.mbarrier >= 0) lanes |= 1u << lane;
  }
  return lanes;
}

std::string Block::diverged() const {
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const Warp& warp = warps_[w];
    const std::uint32_t elsewhere = warp.live & ~at_mbarriers(w);  // where they are not, they wait for what else
    const auto say = [&](const std::string& instruction, std::uint32_t there) {
      return fmt::format("a warp comes to {} as a whole: lanes {} of warp {} are there, lanes {} are not", instruction,
                         lane_list(there), w, lane_list(warp.live & ~there));
    };
    for (const Meeting& meeting : warp.meetings) {
      if (meeting.aligned && (elsewhere & ~meeting.arrived) != 0) return say(meeting.operation, meeting.arrived);
    }
    for (std::size_t id = 0; id < barriers_.size(); ++id) {
      const std::uint32_t lanes = barriers_[id].lanes[w];
      if (lanes != 0 && (elsewhere & ~lanes) != 0) return say(barrier_name(int(id)), lanes);
    }
  }
  return warpgroup_unit_->diverged();
}

void Block::deadlock() {
  std::string kind = "deadlock", what = "no thread can go on";
  bool mbarriers = false;
  for (int i = 0; i < thread_count_; ++i) {
    const Thread& thread = *threads_[std::size_t(i)];
    if (thread.exited || thread.wait.mbarrier < 0) continue;
    const bool bytes = copy_engine_->bytes_alone(thread.wait.mbarrier);
    if (mbarriers && !bytes) continue;
    mbarriers = true;
    what = fmt::format("{} waits at {}", thread_name(i), copy_engine_->describe(thread.wait.mbarrier));
    if (!bytes) continue;
    kind = "transaction bytes";
    what += ": what copies brought is not what arrive_expect_tx announced";
    break;
  }
  for (std::size_t id = 0; id < barriers_.size() && !mbarriers; ++id) {
    const Barrier& barrier = barriers_[id];
    if (barrier.expected != 0 && live_threads_ < thread_count_) {
      kind = "barrier not reached by all";
      what = fmt::format("{} waits for {} threads: {} are there, {} have exited", barrier_name(int(id)),
                         barrier.expected, barrier.threads(), thread_count_ - live_threads_);
    }
  }
  // Whoever has its registers may wait at a barrier for those who have not.
  if (const std::string registers = warpgroup_unit_->register_report();
      !registers.empty() && kind != "transaction bytes") {
    kind = "registers over budget";
    what = registers;
  }
  for (const Warp& warp : warps_) {
    for (const Meeting& meeting : warp.meetings) {
      if ((meeting.mask & ~warp.live) != 0) {
        kind = "exited lanes";
        what = fmt::format("{} waits for lanes {}, which have exited", meeting.operation,
                           lane_list(meeting.mask & ~warp.live));
      }
    }
  }
  if (const std::string where = diverged(); !where.empty()) {
    kind = "diverged warp";
    what = where;
  }
  throw Fault(kind, fmt::format("fault: {}\n  kernel {}, block ({}, {}, {}) of ({}, {}, {})\n  {}{}", kind,
                                kernel_->config.name, block_index_.x, block_index_.y, block_index_.z, grid_.x, grid_.y,
                                grid_.z, what, waiting_report()));
}

}  // namespace flash::sim
