// Atomic operations on global tensors of the simulated GPU; the twin of common/ptx/atomics.hpp. With a fence on each
// side they order blocks: global_shadow.hpp says how.
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

/// As in CUDA: what the block did before it comes before what another one does that saw, by an atomic operation, one
/// that came after it, and that has then called this too.
inline void __threadfence() { this_block().history().fence(); }

}  // namespace flash::sim
