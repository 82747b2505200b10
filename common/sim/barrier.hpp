// Block-wide and named barriers of the simulated GPU; the twin of common/ptx/barrier.hpp.
#pragma once

#include "common/sim/block.hpp"

namespace flash::sim {

inline void __syncthreads(Site site = Site::here()) {
  this_block().barrier(0, this_block().threads(), Arrival::wait, site);
}

/// bar.sync id, threads: waits until `threads` threads (a multiple of 32) have arrived at barrier `id` (1 to 15). Warps
/// come to barriers whole: all lanes of a warp execute the same instruction.
inline void named_barrier_sync(int id, int threads, Site site = Site::here()) {
  this_block().barrier(id, threads, Arrival::wait, site);
}

/// bar.arrive id, threads: arrives without waiting.
inline void named_barrier_arrive(int id, int threads, Site site = Site::here()) {
  this_block().barrier(id, threads, Arrival::arrive, site);
}

/// bar.red.or.pred id, threads: waits as named_barrier_sync does; true in all threads if `mine` is true in one of them.
/// All who come to the barrier come to vote.
inline bool named_barrier_any(int id, int threads, bool mine, Site site = Site::here()) {
  return this_block().barrier_vote(id, threads, mine, site);
}

}  // namespace flash::sim
