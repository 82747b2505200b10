// The shape of one kernel launch, the same on both machines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flash {

struct Extent3 {
  std::int64_t x = 1, y = 1, z = 1;
};

/// The two products of standard attention, for the library variant.
enum class Product { q_times_k_transposed, p_times_v };

struct LaunchConfig {
  const char* name;              // the kernel, for reports
  Extent3 grid;                  // blocks
  int threads;                   // of one block, along x
  std::size_t shared_bytes = 0;  // dynamic shared memory of one block
};

}  // namespace flash
