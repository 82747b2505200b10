// Reductions over the 32 lanes of a warp, for both machines (included by common/kernel/kernel.hpp after one of them).
#pragma once

namespace flash::MACHINE {

/// The largest of the lanes' values, in every lane.
__device__ __forceinline__ float warp_max(float value, Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane_mask));
  }
  return value;
}

/// The sum of the lanes' values, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float value, Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lane_mask);
  }
  return value;
}

}  // namespace flash::MACHINE
