// Arithmetic helpers; the twin of common/sim/math.hpp.
#pragma once

namespace flash::gpu {

/// 2^x (ex2.approx.ftz.f32: about 2 units in the last place).
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// e^x as 2^(x·log2 e).
__device__ __forceinline__ float exp_approx(float x) { return exp2_approx(x * 1.4426950408889634f); }

/// Natural logarithm (lg2.approx.f32 times ln 2).
__device__ __forceinline__ float log_approx(float x) { return __logf(x); }

/// a·b rounded on its own: the compiler fuses it with no addition.
__device__ __forceinline__ float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

}  // namespace flash::gpu
