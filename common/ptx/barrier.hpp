// Named barriers (PTX bar.sync, bar.arrive); the twin of common/sim/barrier.hpp. __syncthreads is CUDA's own.
#pragma once

namespace flash::gpu {

/// Waits until `threads` threads (a multiple of 32) have arrived at barrier `id` (1 to 15).
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace flash::gpu
