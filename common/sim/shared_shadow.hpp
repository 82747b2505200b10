// What the simulated GPU knows about each piece of a block's shared memory: who wrote it, who read it, and whether an
// asynchronous copy is under way. Two accesses of different threads, one of them a write, must be ordered by a
// barrier; a read must find something written.
//
// Order is tracked as in happens-before race detectors: time is a counter that a block advances at each barrier, and
// each warp holds, for every other warp, the time up to which it is ordered after that warp (a vector clock). The
// lanes of one warp are ordered by the barriers that the warp passed.
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

  // Vector clocks. A release makes what the warp did so far visible to whoever acquires the result.
  struct Clock {
    Stamp of_warp[kMaxWarps] = {};
  };
  void release(int warp, Clock& into);
  void acquire(int warp, const Clock& from);
  /// The lanes of the warp are ordered among each other from now on.
  void order_lanes(int warp);

 private:
  struct Piece {
    Stamp written = 0;  // 0, or a time before this block began: not written
    std::uint16_t writer = 0;
    SiteId write_site = 0;
    Stamp read = 0;  // the last read since the last write
    std::uint16_t reader = 0;
    SiteId read_site = 0;
    std::uint16_t copier = 0;           // thread + 1 of the asynchronous copy under way, 0 for none
    std::uint16_t several_readers = 0;  // reads of several warps: see reads_of_
  };
  bool ordered(int thread, int earlier_thread, Stamp when) const;
  Conflict check_write(Piece& piece, std::size_t index, int thread, int offset);

  std::vector<Piece> pieces_;
  std::vector<Stamp> reads_of_;  // [piece][warp], used where several warps read
  int warps_ = 1;
  Stamp now_ = 1;
  Stamp block_start_ = 1;
  Clock clocks_[kMaxWarps];
  Stamp lanes_ordered_[kMaxWarps] = {};
};

}  // namespace flash::sim
