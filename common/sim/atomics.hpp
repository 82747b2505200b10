// Atomic operations on global tensors of the simulated GPU; the twin of common/ptx/atomics.hpp.
#pragma once

#include <atomic>

#include "common/sim/views.hpp"

namespace flash::sim {

/// Adds `value` to the element and returns what was there.
template <typename T>
T atomic_add(const GlobalMatrix<T>& matrix, std::int64_t row, std::int64_t col, T value, Site site = Site::here()) {
  return matrix.atomic_update(
      row, col, [value](T old) { return T(old + value); }, site);
}

/// Stores the larger of `value` and the element and returns what was there.
template <typename T>
T atomic_max(const GlobalMatrix<T>& matrix, std::int64_t row, std::int64_t col, T value, Site site = Site::here()) {
  return matrix.atomic_update(
      row, col, [value](T old) { return old < value ? value : old; }, site);
}

}  // namespace flash::sim
