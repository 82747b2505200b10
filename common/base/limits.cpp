#include "common/base/limits.hpp"

#include <fmt/format.h>

namespace flash {

std::string capability_text(int capability) { return fmt::format("{}.{}", capability / 10, capability % 10); }

std::string no_code_text(int capability, std::string_view architectures) {
  // cmake/CudaArchitectures.cmake: Hopper's own instructions exist for 90a alone.
  return fmt::format(
      "the GPU has compute capability {} and this build code for {}: configure with -DCMAKE_CUDA_ARCHITECTURES={}{}",
      capability_text(capability), architectures, capability, capability == 90 ? "a" : "");
}

}  // namespace flash
