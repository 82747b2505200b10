// The 16-bit element types of a GPU kernel and their conversions, under the names that both machines share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace flash::gpu {

using half = ::__half;
using bfloat16 = ::__nv_bfloat16;

/// A fp32 sum in a register, on which an asynchronous product may work: the simulated GPU's has a type of its own, to
/// see when it is touched too early.
using AccumulatorRegister = float;

__device__ __forceinline__ float to_float(half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(float x) { return x; }

/// Rounds to nearest even.
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ half from_float<half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}

}  // namespace flash::gpu
