// What the simulated GPU knows about each byte of a block's shared memory: who wrote it, who read it, and whether an
// asynchronous copy is under way. Two accesses of different threads, one of them a write, must be ordered by a
// barrier; a read must find something written.
//
// Order is tracked as in happens-before race detectors: time is a counter that a block advances at each release, and a
// clock says, for each thread, up to which time its accesses come before what the clock's owner does next. Most of the
// time the lanes of a warp know the same, of all lanes of another warp the same: so a warp has one clock, with one time
// for each warp, and what single lanes know, or what is known of single lanes, stands beside it.
//
// Bytes are told apart, but most accesses are wide and come again in the same width. So each 16 bytes have one record
// until an access touches a part of them, and one again when they are written as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/sim/site.hpp"

namespace flash::sim {

inline constexpr int kMaxWarps = 32;
using Stamp = std::uint32_t;

/// Which earlier access an access conflicts with.
struct Conflict {
  enum Kind { none, unwritten, race_with_write, race_with_read, copy_in_flight } kind = none;
  int thread = 0;  // of the earlier access
  SiteId site = 0;
  int offset = 0;  // the first conflicting byte
};

/// Up to which time each thread is known: what it did before that time comes first. Also what a barrier carries from
/// those who release to those who acquire.
class Clock {
 public:
  Stamp of_warp(int warp) const { return of_warp_[warp]; }  // of each lane of it
  Stamp of(int thread) const;
  bool knows_single_lanes() const { return !single_.empty(); }
  void join(const Clock& other);
  void raise_warp(int warp, Stamp to);
  void raise_thread(int thread, Stamp to);

 private:
  struct Lanes {
    int warp;
    Stamp of_lane[32];
  };
  Lanes& lanes_of(int warp);
  /// Drops what of_warp_ says too.
  void tidy(int warp);

  Stamp of_warp_[kMaxWarps] = {};
  std::vector<Lanes> single_;  // of the warps of which a lane is known for longer than the whole
};

class SharedShadow {
 public:
  /// Forgets the last block. `bytes` of shared memory, `threads` threads.
  void begin_block(int bytes, int threads);

  Conflict on_read(int thread, int offset, int bytes, SiteId site);
  /// `memory` are the bytes there and `values` those that replace them: lanes of one instruction may write the same
  /// value to one place, which then has it whoever comes last. Null where that does not count.
  Conflict on_write(int thread, int offset, int bytes, SiteId site, const std::byte* memory = nullptr,
                    const std::byte* values = nullptr);
  /// An asynchronous copy into these bytes starts: nobody may touch them until it has ended.
  Conflict begin_copy(int thread, int offset, int bytes, SiteId site);
  void end_copy(int thread, int offset, int bytes, SiteId site);

  // `lanes` are lanes of the warp: a barrier that a warp passes as a whole takes all of them, one that a thread passes
  // alone takes one.

  /// Whoever acquires `into` comes after what these lanes did so far and after what each of them acquired.
  void release(int warp, std::uint32_t lanes, Clock& into);
  /// What these lanes do from now on comes after what was released into `from`. The other lanes learn nothing.
  void acquire(int warp, std::uint32_t lanes, const Clock& from);
  /// What these lanes did so far comes before what any of them does from now on (__syncwarp).
  void order_lanes(int warp, std::uint32_t lanes);

 private:
  static constexpr int kGranule = 16;
  static constexpr int kWhole = 4;  // log2 of it: one record for all bytes

  struct Record {
    Stamp written = 0;  // 0, or a time before this block began: not written
    std::uint16_t writer = 0;
    SiteId write_site = 0;
    Stamp read = 0;  // the last read since the last write, 0 for none; see `accesses`
    std::uint16_t reader = 0;
    SiteId read_site = 0;
    std::uint16_t copier = 0;    // thread + 1 of the asynchronous copy under way, 0 for none
    std::uint32_t accesses = 0;  // where one reader does not stand for all: index + 1 into access_lists_
  };
  /// Accesses since the last write by lanes of one warp, at one time and place, that a next write must come after.
  struct Accesses {
    Stamp when;
    std::uint32_t lanes;
    std::uint16_t warp;
    SiteId site;
    bool wrote;  // the same value as the last writer, in the same instruction
  };
  struct Granule {
    Record whole;
    int level = kWhole;       // log2 of the bytes of a record
    std::uint32_t split = 0;  // below kWhole: index + 1 of its records in splits_, one for each byte, of which those at
                              // multiples of the record's size count
  };
  struct Split {
    Record records[kGranule];
  };
  /// A write that lanes of one instruction may repeat.
  struct Writing {
    int thread, offset;  // of the access
    SiteId site;
    const std::byte *memory, *values;
  };

  std::uint32_t lanes_of_warp(int warp) const {
    const int lanes = threads_ - 32 * warp;
    return lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
  }
  bool ordered(int thread, int earlier_thread, Stamp when) const {
    return thread == earlier_thread || clocks_[thread / 32].of_warp(earlier_thread / 32) > when ||
           (single_lanes_[thread / 32] && known_for_longer(thread, earlier_thread, when));
  }
  bool known_for_longer(int thread, int earlier_thread, Stamp when) const;
  /// Those of the accesses' lanes that do not come before what the thread does now.
  std::uint32_t unordered_lanes(int thread, const Accesses& accesses) const;

  /// Calls visit(record, first byte, bytes) for the records of these bytes until one returns a conflict.
  template <typename Visit>
  Conflict each_record(int offset, int bytes, Visit visit);
  void split(Granule& granule, int level);

  void add_reader(Record& record, int thread, SiteId site);
  std::vector<Accesses>& list_of(Record& record);
  Conflict check_write(const Record& record, int at, int bytes, const Writing& writing, bool& repeats) const;
  void write(Record& record, int thread, SiteId site, bool repeats);
  void forget_accesses(Record& record);

  std::vector<Granule> granules_;
  std::vector<Split> splits_;
  std::vector<std::vector<Accesses>> access_lists_;
  std::vector<std::uint32_t> free_lists_;

  int threads_ = 0;
  Stamp now_ = 1;
  Stamp block_start_ = 1;
  Clock clocks_[kMaxWarps];         // what all lanes of the warp know
  std::vector<Clock> lane_clocks_;  // [thread]: what it knows beside, where its bit is set
  std::uint32_t own_clock_[kMaxWarps] = {};
  bool single_lanes_[kMaxWarps] = {};  // whether the warp's clock is not all there is
};

}  // namespace flash::sim
