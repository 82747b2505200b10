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

// Who else than a thread touches shared memory: units that work on their own and of which a thread learns by a wait.
// They have numbers as if they were threads of further warps, so that clocks and records know them.

/// The copy engine, once for each of so many mbarriers: who waits at one learns nothing of copies to another.
inline constexpr int kCopyEngines = 16;
constexpr int copy_engine(int mbarrier) { return 32 * (kMaxWarps + mbarrier % kCopyEngines); }
/// The tensor cores of a warpgroup, as a warp of which lanes w, w + 4, w + 8, ... stand for warp w of the four: each
/// warp learns by its own wait that it has read an operand.
inline constexpr int kWarpgroups = kMaxWarps / 4;
constexpr int tensor_cores(int warpgroup) { return 32 * (kMaxWarps + kCopyEngines + warpgroup); }
constexpr std::uint32_t tensor_core_lanes(int warp_of_group) { return 0x11111111u << warp_of_group; }

inline constexpr int kClockWarps = kMaxWarps + kCopyEngines + kWarpgroups;

/// Which earlier access an access conflicts with.
struct Conflict {
  enum Kind {
    none,
    unwritten,
    race_with_write,
    race_with_read,
    copy_in_flight,
    operand_in_use,  // an asynchronous operation is reading it
    missing_fence,   // written by a plain store, about to be accessed through the async proxy
  } kind = none;
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
  void raise_lanes(int warp, std::uint32_t lanes, Stamp to);

 private:
  struct Lanes {
    int warp;
    Stamp of_lane[32];
  };
  Lanes& lanes_of(int warp);
  /// Drops what of_warp_ says too.
  void tidy();

  Stamp of_warp_[kClockWarps] = {};
  std::vector<Lanes> single_;  // of the warps of which a lane is known for longer than the whole
};

/// On whose behalf an asynchronous unit accesses shared memory: a thread, or the threads of a warp, and what it knew
/// when it issued the operation.
struct Issuer {
  int first_thread = 0, last_thread = 0;
  Clock knows;
  Clock fenced;  // what it knew at its last fence.proxy.async
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
  /// The data of a copy that goes on being in flight are there, written by this copy engine.
  void copy_arrived(int engine, int offset, int bytes);
  /// It is not in flight any more.
  void copy_seen(int offset, int bytes);

  // -- The async proxy: what the copy engine and the tensor cores read

  /// Whether the bytes are written, and that before the issuer's operation, also for the async proxy.
  Conflict check_operand(const Issuer& issuer, int offset, int bytes);
  /// Whether the async proxy knows of what was written there before; begin_copy() looks whether it is ordered.
  Conflict check_overwrite(const Issuer& issuer, int offset, int bytes);
  /// While an operation reads the bytes, nobody may write them.
  void begin_operand(int offset, int bytes);
  void end_operand(int offset, int bytes);
  /// The lanes of `warp`, which need not be one of threads, read these bytes; in no order with other readers.
  void note_read(int warp, std::uint32_t lanes, int offset, int bytes, SiteId site);
  /// Whether the thread's writes so far, and what it learned of, are there for the async proxy: fence.proxy.async.
  void fence_proxy(int thread);
  /// Those of the thread, or of the lanes of its warp together.
  Issuer issuer(int thread) const;
  Issuer issuer_of_warp(int warp) const;
  /// A read that leaves no trace: of what synchronises on its own.
  Conflict check_read(int thread, int offset, int bytes);
  /// When these bytes were written, which share a record; changes with each write.
  Stamp written_at(int offset, int bytes);
  /// Whoever acquires `into` comes after what this unit did so far.
  void release_unit(int unit, Clock& into) { into.raise_warp(unit / 32, ++now_); }
  void release_lanes_of_unit(int unit, std::uint32_t lanes, Clock& into) { into.raise_lanes(unit / 32, lanes, ++now_); }

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
    std::uint16_t operand = 0;   // so many asynchronous operations are reading it
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
    if (warp >= kMaxWarps) return 0xffffffffu;
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

  bool fenced(const Issuer& issuer, int writer, Stamp written) const;
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
  Clock clocks_[kMaxWarps];  // what all lanes of the warp know
  struct ProxyFences {
    std::vector<Stamp> times;  // ascending
    Clock knew;                // at the last of them
  };
  std::vector<ProxyFences> proxy_fences_;  // [thread], in blocks in which there are any
  std::vector<Clock> lane_clocks_;         // [thread]: what it knows beside, where its bit is set
  std::uint32_t own_clock_[kMaxWarps] = {};
  bool single_lanes_[kMaxWarps] = {};  // whether the warp's clock is not all there is
};

}  // namespace flash::sim
