// Atomic operations on global tensors; the twin of common/sim/atomics.hpp.
#pragma once

#include "common/gpu/views.hpp"

namespace flash::gpu {

/// Adds `value` to the element and returns what was there.
template <typename T>
__device__ __forceinline__ T atomic_add(const GlobalMatrix<T>& matrix, std::int64_t row, std::int64_t col, T value) {
  return atomicAdd(matrix.element(row, col), value);
}

/// Stores the larger of `value` and the element and returns what was there.
template <typename T>
__device__ __forceinline__ T atomic_max(const GlobalMatrix<T>& matrix, std::int64_t row, std::int64_t col, T value) {
  return atomicMax(matrix.element(row, col), value);
}

}  // namespace flash::gpu
