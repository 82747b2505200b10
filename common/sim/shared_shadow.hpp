// What the simulated GPU knows about each piece of a block's shared memory: who wrote it, who read it, and whether an
// asynchronous copy is under way. Two accesses of different threads, one of them a write, must be ordered by a
// barrier; a read must find something written.
//
// Order is tracked as in happens-before race detectors: time is a counter that a block advances at each barrier, and
// each warp holds, for every other warp, the time up to which it is ordered after that warp (a vector clock; warps pass
// barriers whole). The lanes of one warp are ordered by the barriers that the warp passed and by __syncwarp.
#pragma once

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
  int offset = 0;  // byte offset of the first conflicting piece
};

class SharedShadow {
 public:
  static constexpr int kPiece = 2;  // bytes for which accesses are told apart

  /// Forgets the last block. `bytes` of shared memory, `warps` warps.
  void begin_block(int bytes, int warps);

  Conflict on_read(int thread, int offset, int bytes, SiteId site);
  Conflict on_write(int thread, int offset, int bytes, SiteId site);
  /// An asynchronous copy into these bytes starts: nobody may touch them until it has ended.
  Conflict begin_copy(int thread, int offset, int bytes, SiteId site);
  void end_copy(int thread, int offset, int bytes, SiteId site);

  // Vector clocks. A release makes what all lanes of the warp did so far visible to whoever acquires the result.
  struct Clock {
    Stamp of_warp[kMaxWarps] = {};
  };
  void release(int warp, Clock& into);
  void acquire(int warp, const Clock& from);
  /// What all lanes of the warp did so far comes before what any of them does from now on.
  void order_lanes(int warp);
  /// The same for the lanes of `mask`.
  void order_some_lanes(int warp, std::uint32_t mask);

 private:
  struct Piece {
    Stamp written = 0;  // 0, or a time before this block began: not written
    std::uint16_t writer = 0;
    SiteId write_site = 0;
    Stamp read = 0;  // the last read since the last write, 0 for none
    std::uint16_t reader = 0;
    SiteId read_site = 0;
    std::uint16_t copier = 0;           // thread + 1 of the asynchronous copy under way, 0 for none
    std::uint16_t several_readers = 0;  // reads that are not ordered among each other: see readers_
  };
  /// The reads of one piece by one warp: the lanes that have read and are not ordered before the last of them.
  struct Readers {
    Stamp when = 0;  // of the last
    std::uint32_t lanes = 0;
  };
  bool ordered(int thread, int earlier_thread, Stamp when) const;
  /// Those of `lanes`, of the thread's own warp, whose accesses at `when` do not come before what the thread does now.
  std::uint32_t unordered_lanes(int thread, std::uint32_t lanes, Stamp when) const;
  void add_reader(Piece& piece, std::size_t index, int thread);
  Conflict check_write(const Piece& piece, std::size_t index, int thread, int offset) const;

  std::vector<Piece> pieces_;
  std::vector<Readers> readers_;  // [piece][warp], used where several threads read
  int warps_ = 1;
  Stamp now_ = 1;
  Stamp block_start_ = 1;
  Clock clocks_[kMaxWarps];
  Stamp lanes_ordered_[kMaxWarps] = {};
  // [thread][lane of its warp]: what __syncwarp with a partial mask ordered; used where the warp's flag says so.
  std::vector<Stamp> some_lanes_ordered_;
  bool some_ordered_[kMaxWarps] = {};
};

}  // namespace flash::sim
