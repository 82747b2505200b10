// Named barriers (PTX bar.sync, bar.arrive, bar.red); the twin of common/sim/barrier.hpp. __syncthreads is CUDA's own.
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

/// Waits as named_barrier_sync does; true in all threads if `mine` is true in one of them.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool mine) {
  unsigned any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "bar.red.or.pred any, %2, %3, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}"
      : "=r"(any)
      : "r"(unsigned(mine)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

}  // namespace flash::gpu
