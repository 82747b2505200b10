// What a GPU gives the kernels that run on it. The real one reports it, the simulated one takes it from its profile.
#pragma once

#include <cstddef>

namespace flash {

/// The most shared memory that one block can have on any GPU so far, in bytes (compute capability 9.0).
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;

struct DeviceLimits {
  int capability = 90;                         // compute capability: 10·major + minor
  std::size_t shared_bytes = kMaxSharedBytes;  // that one block can have
};

}  // namespace flash
