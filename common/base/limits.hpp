// What a GPU gives the kernels that run on it. The real one reports it, the simulated one takes it from its profile.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace flash {

/// The most shared memory that one block can have on any GPU so far, in bytes (compute capability 9.0).
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;

struct DeviceLimits {
  int capability = 90;                         // compute capability: 10·major + minor
  std::size_t shared_bytes = kMaxSharedBytes;  // that one block can have
};

/// "8.6"
std::string capability_text(int capability);

/// Why a build has no code for a GPU, in one line with what to do. `architectures` are those of the build, as CMake
/// names them ("75, 90a").
std::string no_code_text(int capability, std::string_view architectures);

}  // namespace flash
