// What the simulated GPU knows about global memory between the blocks of one launch. Blocks run in any order and at the
// same time, so two of them that touch one byte, one of them writing, race; so do a plain access and an atomic one.
// Whether they do is found whichever comes first.
//
// What orders two blocks is modelled as happens-before, a block as a whole. A block's __threadfence() releases all that
// it did so far with its atomics from then on; an atomic on the same place by another block sees that, and what the
// other block does after its own next __threadfence() comes after it. That is the pattern of a counter of finished
// blocks: write, fence, atomic; atomic, fence, read. Nothing else orders blocks: no plain flag, no time, no atomic
// alone.
//
// Each sector (32 bytes) that the launch touches has a record, made when it is first touched: who accessed which of its
// bytes, for two blocks in place and for more in a list. Bytes that several blocks read (Q, K, V) are one mask: from
// then on a read of them costs one comparison.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/sim/access_log.hpp"
#include "common/sim/site.hpp"

namespace flash::sim {

enum class GlobalAccess : std::uint8_t { read, atomic, write };

/// A line of a kernel, or of a helper together with the kernel's line that led to it.
struct SourcePlace {
  Site outermost, innermost;
};

/// An earlier access of another block with which an access races.
struct BlockConflict {
  bool found = false;
  std::int64_t block = 0;
  GlobalAccess access = GlobalAccess::read;
  SourcePlace place;
};

/// What a block knows to have happened: of each block in it, all up to its `fence`-th fence.
class BlockClock {
 public:
  struct Entry {
    std::uint32_t block, fence;
    std::uint32_t time;  // of that fence, counted over the launch
  };
  void add(const Entry& entry);
  void add(const BlockClock& other);
  const Entry* find(std::uint32_t block) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;  // by block
};

/// The records of one launch, which all of its blocks share.
class GlobalShadow {
 public:
  explicit GlobalShadow(std::int64_t blocks);

 private:
  friend class BlockHistory;
  static constexpr int kSectorBytes = 32, kPageBits = 12, kSectorsOfPage = (1 << kPageBits) / kSectorBytes;

  // The part of a block's run between two of its fences is a segment: what it does there is ordered as one. A block's
  // first is its number + 1, later ones are in segments_.
  using Segment = std::uint32_t;
  static constexpr Segment kLater = 0x80000000u;

  /// The accesses of one segment: which bytes of the sector, for each kind of access. Atomic where threads look at them
  /// without the page's lock.
  struct Part {
    std::atomic<Segment> segment{0};
    std::atomic<std::uint32_t> bytes[3] = {};
    SiteId site[3] = {};
  };
  struct Sector {
    Part part[2];
    std::atomic<std::uint32_t> several[2] = {};  // bytes that several blocks read, or updated by atomics
    std::atomic<std::uint32_t> time{0};          // of the last such access
    std::uint32_t more = 0;                      // the next part is Page::more[more - 1]
  };
  struct MorePart {
    Part part;
    std::uint32_t next = 0;
  };
  struct Page {
    std::mutex mutex;
    std::array<Sector, kSectorsOfPage> sectors;
    std::deque<MorePart> more;
  };

  Page& page(std::uintptr_t number);
  SiteId number_of(const SourcePlace& place);
  SourcePlace place_of(SiteId id);
  Segment new_segment(std::uint32_t block, std::uint32_t fence);
  std::pair<std::uint32_t, std::uint32_t> block_and_fence(Segment segment);

  std::uint64_t launch_;  // tells this launch from others
  std::int64_t blocks_;
  // Of each block: how many fences it had behind it at its last read, and its last atomic, of bytes that others share.
  std::vector<std::atomic<std::uint32_t>> shared_in_[2];
  std::mutex pages_mutex_;
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  std::mutex tables_mutex_;
  SiteTable sites_;
  std::deque<std::pair<std::uint32_t, std::uint32_t>> segments_;
  std::atomic<std::uint32_t> fences_{0};  // so far: the launch's time
  std::mutex atomics_mutex_;
  std::unordered_map<const void*, BlockClock> released_at_;  // what an atomic there lets its block know
};

/// One block's side of it.
class BlockHistory {
 public:
  /// `shadow` is null where a launch has a single block.
  void begin_block(GlobalShadow* shadow, std::int64_t block);

  /// Whether an access of `bytes` bytes would add nothing to what is recorded, for which it then needs no more. It may
  /// say no where the answer is not at hand. What is recorded raced with nothing, and whoever races with it comes later
  /// and finds it.
  bool knows(GlobalAccess access, const void* address, int bytes) const {
    if (shadow_ == nullptr) return true;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const std::uintptr_t number = at >> GlobalShadow::kPageBits, first = at % GlobalShadow::kSectorBytes;
    const CachedPage& cached = cache_[number % kCachedPages];
    if (cached.number != number || first + std::uintptr_t(bytes) > GlobalShadow::kSectorBytes) return false;
    const Sector& sector = cached.page->sectors[at / GlobalShadow::kSectorBytes % GlobalShadow::kSectorsOfPage];
    const auto mask = std::uint32_t(((std::uint64_t(1) << bytes) - 1) << first);
    constexpr auto relaxed = std::memory_order_relaxed;  // without the page's lock
    if (access != GlobalAccess::write && (sector.several[int(access)].load(relaxed) & mask) == mask) {
      return shadow_->fences_.load(relaxed) == 0;  // later the record says when
    }
    const Part& part = sector.part[0];
    if (part.segment.load(relaxed) != segment_) return false;
    std::uint32_t known = part.bytes[int(access)].load(relaxed);
    // Who races with the read races with the block's own write.
    if (access == GlobalAccess::read) known |= part.bytes[int(GlobalAccess::write)].load(relaxed);
    return (known & mask) == mask;
  }

  /// Records an access of `bytes` bytes and says with which earlier one it races.
  BlockConflict access(GlobalAccess access, const void* address, int bytes, const SourcePlace& place);

  /// Runs `update`, an atomic operation on `address`, and gives and takes what the two fences around it order.
  template <typename Update>
  void synchronise(const void* address, Update update) {
    if (shadow_ == nullptr) return update();
    std::unique_lock<std::mutex> lock(shadow_->atomics_mutex_, std::defer_lock);
    if (shadow_->fences_.load() > 0) {
      lock.lock();
      release_at(address);
    }
    update();
    if (shadow_->fences_.load() == 0) return;
    if (!lock.owns_lock()) lock.lock();
    acquire_at(address);
  }

  /// __threadfence of any thread of the block.
  void fence();

 private:
  using Page = GlobalShadow::Page;
  using Sector = GlobalShadow::Sector;
  using Part = GlobalShadow::Part;
  using Segment = GlobalShadow::Segment;

  BlockConflict record(int kind, Page& page, Sector& sector, std::uint32_t mask, const SourcePlace& place);
  BlockConflict race_with(int kind, Page& page, Sector& sector, std::uint32_t mask);
  bool ordered(Segment segment);
  bool ordered_after_all(int kind, std::uint32_t time) const;
  void note_shared(int kind, Sector& sector);
  void release_at(const void* address);
  void acquire_at(const void* address);

  static constexpr std::size_t kCachedPages = 256;
  struct CachedPage {
    std::uintptr_t number = 0;  // 0: none, where no tensor lies
    Page* page = nullptr;
  };
  GlobalShadow* shadow_ = nullptr;
  std::uint64_t launch_ = 0;
  std::vector<CachedPage> cache_ = std::vector<CachedPage>(kCachedPages);
  std::uint32_t block_ = 0, fences_ = 0;
  Segment segment_ = 0;
  BlockClock known_;     // what comes before all that the block does now
  BlockClock seen_;      // by atomics; known after the next fence
  BlockClock released_;  // what the block's atomics give to others
};

}  // namespace flash::sim
