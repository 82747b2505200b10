// A tensor map as the copy engine reads it.
#pragma once

#include <cuda.h>

namespace flash::gpu {

/// A tensor and the box that a copy moves; from Machine::tensor_map. Kernels take it as
/// `const __grid_constant__ TensorMap`.
struct TensorMap {
  CUtensorMap value;
};

}  // namespace flash::gpu
