#include "common/sim/global_shadow.hpp"

#include <algorithm>

namespace flash::sim {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kRead = int(GlobalAccess::read), kWrite = int(GlobalAccess::write), kAtomic = int(GlobalAccess::atomic);

/// The kinds of earlier access with which an access of this kind races.
constexpr bool races(int kind, int earlier) { return kind != earlier || kind == kWrite; }

void set_bits(std::atomic<std::uint32_t>& bits, std::uint32_t mask) {
  bits.store(bits.load(kRelaxed) | mask, kRelaxed);
}
void clear_bits(std::atomic<std::uint32_t>& bits, std::uint32_t mask) {
  bits.store(bits.load(kRelaxed) & ~mask, kRelaxed);
}

bool by_block(const BlockClock::Entry& entry, std::uint32_t block) { return entry.block < block; }

}  // namespace

void BlockClock::add(const Entry& entry) {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), entry.block, by_block);
  if (at == entries_.end() || at->block != entry.block) {
    entries_.insert(at, entry);
  } else if (at->fence < entry.fence) {
    *at = entry;
  }
}

void BlockClock::add(const BlockClock& other) {
  if (entries_.empty()) {
    entries_ = other.entries_;
    return;
  }
  for (const Entry& entry : other.entries_) add(entry);
}

const BlockClock::Entry* BlockClock::find(std::uint32_t block) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), block, by_block);
  return at != entries_.end() && at->block == block ? &*at : nullptr;
}

GlobalShadow::GlobalShadow(std::int64_t blocks)
    : blocks_(blocks),
      shared_in_{std::vector<std::atomic<std::uint32_t>>(std::size_t(blocks)),
                 std::vector<std::atomic<std::uint32_t>>(std::size_t(blocks))} {
  static std::atomic<std::uint64_t> launches{0};
  launch_ = ++launches;
}

GlobalShadow::Page& GlobalShadow::page(std::uintptr_t number) {
  const std::lock_guard lock(pages_mutex_);
  std::unique_ptr<Page>& page = pages_[number];
  if (!page) page = std::make_unique<Page>();
  return *page;
}

SiteId GlobalShadow::number_of(const SourcePlace& place) {
  const std::lock_guard lock(tables_mutex_);
  const SiteId outermost = sites_.id(place.outermost, 0);
  return place.innermost == place.outermost ? outermost : sites_.id(place.innermost, outermost);
}

SourcePlace GlobalShadow::place_of(SiteId id) {
  const std::lock_guard lock(tables_mutex_);
  return {sites_.outermost(id), sites_.site(id)};
}

GlobalShadow::Segment GlobalShadow::new_segment(std::uint32_t block, std::uint32_t fence) {
  const std::lock_guard lock(tables_mutex_);
  segments_.emplace_back(block, fence);
  return kLater | Segment(segments_.size() - 1);
}

std::pair<std::uint32_t, std::uint32_t> GlobalShadow::block_and_fence(Segment segment) {
  if ((segment & kLater) == 0) return {segment - 1, 0};
  const std::lock_guard lock(tables_mutex_);
  return segments_[segment & ~kLater];
}

void BlockHistory::begin_block(GlobalShadow* shadow, std::int64_t block) {
  shadow_ = shadow;
  if (shadow == nullptr) return;
  if (launch_ != shadow->launch_) {
    launch_ = shadow->launch_;
    cache_.assign(cache_.size(), {});
  }
  block_ = std::uint32_t(block);
  fences_ = 0;
  segment_ = block_ + 1;
  known_ = {};
  seen_ = {};
  released_ = {};
}

BlockConflict BlockHistory::access(GlobalAccess access, const void* address, int bytes, const SourcePlace& place) {
  if (shadow_ == nullptr) return {};
  const int kind = int(access);
  auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = at + std::uintptr_t(bytes);
  while (at < end) {
    const std::uintptr_t first = at % GlobalShadow::kSectorBytes;
    const std::uintptr_t count = std::min(GlobalShadow::kSectorBytes - first, end - at);
    const auto mask = std::uint32_t(((std::uint64_t(1) << count) - 1) << first);
    const std::uintptr_t number = at >> GlobalShadow::kPageBits;
    CachedPage& cached = cache_[number % kCachedPages];
    if (cached.number != number) cached = {number, &shadow_->page(number)};
    Sector& sector = cached.page->sectors[at / GlobalShadow::kSectorBytes % GlobalShadow::kSectorsOfPage];
    if (kind != kWrite && (sector.several[kind].load(kRelaxed) & mask) == mask) {
      note_shared(kind, sector);
    } else if (const BlockConflict race = record(kind, *cached.page, sector, mask, place); race.found) {
      return race;
    }
    at += count;
  }
  return {};
}

/// Whether all of the segment comes before what this block does now.
bool BlockHistory::ordered(Segment segment) {
  const auto [block, fence] = shadow_->block_and_fence(segment);
  if (block == block_) return true;
  const BlockClock::Entry* const entry = known_.find(block);
  return entry != nullptr && entry->fence > fence;
}

/// An access to bytes that several blocks share. Before the first fence of the launch there is nothing to note.
void BlockHistory::note_shared(int kind, Sector& sector) {
  const std::uint32_t now = shadow_->fences_.load(kRelaxed);
  if (now == 0) return;
  if (sector.time.load(kRelaxed) < now) sector.time.store(now, kRelaxed);
  std::atomic<std::uint32_t>& shared_in = shadow_->shared_in_[kind][block_];
  if (shared_in.load(kRelaxed) < fences_) shared_in.store(fences_, kRelaxed);
}

/// Whether the accesses of several blocks to one byte, the last of them at `time`, come before what this block does
/// now. There is no list of these blocks, so it must hold for all others of the launch: that this block knows a fence
/// of theirs that came after `time`, or after their last access to anything shared.
bool BlockHistory::ordered_after_all(int kind, std::uint32_t time) const {
  std::int64_t others = 0;
  for (const BlockClock::Entry& entry : known_.entries()) {
    if (entry.block == block_) continue;
    others += entry.time > time || entry.fence > shadow_->shared_in_[kind][entry.block].load(kRelaxed);
  }
  return others == shadow_->blocks_ - 1;
}

/// Calls body(part) for the parts of a sector until it returns true.
template <typename Page, typename Sector, typename Body>
void each_part(Page& page, Sector& sector, const Body& body) {
  if (body(sector.part[0]) || body(sector.part[1])) return;
  for (std::uint32_t i = sector.more; i != 0; i = page.more[i - 1].next) {
    if (body(page.more[i - 1].part)) return;
  }
}

BlockConflict BlockHistory::race_with(int kind, Page& page, Sector& sector, std::uint32_t mask) {
  // The bytes that several blocks share have no list of them: two of these are among the parts.
  std::uint32_t shared[3] = {};
  for (const int k : {kRead, kAtomic}) {
    if (!races(kind, k)) continue;
    shared[k] = sector.several[k].load(kRelaxed) & mask;
    if (shared[k] != 0 && ordered_after_all(k, sector.time.load(kRelaxed))) shared[k] = 0;
  }
  BlockConflict race;
  each_part(page, sector, [&](const Part& part) {
    const Segment segment = part.segment.load(kRelaxed);
    if (segment == 0 || segment == segment_) return false;
    for (const int k : {kWrite, kAtomic, kRead}) {
      const std::uint32_t bytes = races(kind, k) ? part.bytes[k].load(kRelaxed) & mask : 0;
      if (bytes == 0 || ((bytes & shared[k]) == 0 && ordered(segment))) continue;
      const std::uint32_t block = shadow_->block_and_fence(segment).first;
      if (block == block_) continue;
      race = {true, block, GlobalAccess(k), shadow_->place_of(part.site[k])};
      return true;
    }
    return false;
  });
  return race;
}

BlockConflict BlockHistory::record(int kind, Page& page, Sector& sector, std::uint32_t mask, const SourcePlace& place) {
  const SiteId id = shadow_->number_of(place);
  const std::lock_guard lock(page.mutex);
  if (const BlockConflict race = race_with(kind, page, sector, mask); race.found) return race;

  std::uint32_t mine = mask;  // what this segment's part must say: two of several blocks are recorded already
  if (kind == kWrite) {
    for (std::atomic<std::uint32_t>& several : sector.several) clear_bits(several, mask);
  } else {
    mine &= ~sector.several[kind].load(kRelaxed);
    clear_bits(sector.several[kRead + kAtomic - kind], mask);
  }
  Part *own = nullptr, *free = nullptr;
  each_part(page, sector, [&](Part& part) {
    const Segment segment = part.segment.load(kRelaxed);
    if (segment == segment_) {
      own = &part;
    } else if ((part.bytes[kRead].load(kRelaxed) | part.bytes[kAtomic].load(kRelaxed) |
                part.bytes[kWrite].load(kRelaxed)) == 0) {
      if (free == nullptr) free = &part;
    } else if (kind == kWrite) {
      // All that is here comes before this write: what will be ordered after the write is ordered after that too.
      for (std::atomic<std::uint32_t>& bytes : part.bytes) clear_bits(bytes, mask);
    } else if (const std::uint32_t same = part.bytes[kind].load(kRelaxed) & mine; same != 0) {
      if (ordered(segment)) {
        clear_bits(part.bytes[kind], same);
      } else {
        set_bits(sector.several[kind], same);
      }
    }
    return false;
  });
  if (kind != kWrite && (sector.several[kind].load(kRelaxed) & mask) != 0) note_shared(kind, sector);
  if (mine == 0) return {};
  if (own == nullptr) own = free;
  if (own == nullptr) {
    page.more.emplace_back().next = sector.more;
    sector.more = std::uint32_t(page.more.size());
    own = &page.more.back().part;
  }
  own->segment.store(segment_, kRelaxed);
  if (kind == kWrite) {
    for (std::atomic<std::uint32_t>& bytes : own->bytes) clear_bits(bytes, mask);
  }
  set_bits(own->bytes[kind], mine);
  own->site[kind] = id;
  return {};
}

void BlockHistory::fence() {
  if (shadow_ == nullptr) return;
  const std::lock_guard lock(shadow_->atomics_mutex_);
  const std::uint32_t time = shadow_->fences_.load() + 1;
  known_.add(seen_);
  seen_ = {};
  released_ = known_;
  released_.add({block_, ++fences_, time});
  segment_ = shadow_->new_segment(block_, fences_);
  shadow_->fences_.store(time);
}

void BlockHistory::release_at(const void* address) {
  if (fences_ > 0) shadow_->released_at_[address].add(released_);
}

void BlockHistory::acquire_at(const void* address) {
  const auto found = shadow_->released_at_.find(address);
  if (found != shadow_->released_at_.end()) seen_.add(found->second);
}

}  // namespace flash::sim
