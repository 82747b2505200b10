// What belongs to a warpgroup (four warps, the first one's number divisible by 4) and to the choice of one thread; the
// twin of common/sim/warpgroup.hpp.
#pragma once

#include <cstdint>

#include "common/ptx/instruction.hpp"

namespace flash::gpu {

/// setmaxnreg: the threads of the warpgroup have `Count` registers each from now on, more than before. Waits until the
/// block has given up so many.
template <int Count>
__device__ __forceinline__ void increase_registers() {
  static_assert(Count % 8 == 0 && Count >= 24 && Count <= 256, "what setmaxnreg takes");
  FLASH_ASM_90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
/// Fewer than before: the others may take them.
template <int Count>
__device__ __forceinline__ void decrease_registers() {
  static_assert(Count % 8 == 0 && Count >= 24 && Count <= 256, "what setmaxnreg takes");
  FLASH_ASM_90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

/// True in one lane of the warp, which comes as a whole (elect.sync).
__device__ __forceinline__ bool elect_one() {
  unsigned elected = 0;
  FLASH_ASM_90(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

/// `value`, which must be the same in all lanes of the warp, in a form that lets the compiler know it: a reduction
/// leaves its result in a uniform register, and what is computed from it stays in such registers.
__device__ __forceinline__ int uniform(int value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return int(__reduce_max_sync(0xffffffffu, unsigned(value)));
#else
  return value;
#endif
}

/// Clocks of this SM since some moment, modulo 2^32.
__device__ __forceinline__ std::uint32_t clock_stamp() { return std::uint32_t(clock()); }

}  // namespace flash::gpu
