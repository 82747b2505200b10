// Block-wide and named barriers of the simulated GPU; the twin of common/ptx/barrier.hpp.
#pragma once

#include "common/sim/block.hpp"

namespace flash::sim {

inline void __syncthreads(Site site = Site::here()) { this_block().barrier(0, this_block().threads(), true, site); }

/// bar.sync id, threads: waits until `threads` threads (a multiple of 32) have arrived at barrier `id` (1 to 15). Warps
/// come to barriers whole: all lanes of a warp execute the same instruction.
inline void named_barrier_sync(int id, int threads, Site site = Site::here()) {
  this_block().barrier(id, threads, true, site);
}

/// bar.arrive id, threads: arrives without waiting.
inline void named_barrier_arrive(int id, int threads, Site site = Site::here()) {
  this_block().barrier(id, threads, false, site);
}

}  // namespace flash::sim
