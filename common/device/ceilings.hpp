// What the GPU at hand reaches at best: the two ceilings of the roofline.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace flash {

struct Ceilings {
  /// Bytes read plus bytes written per second by a copy of `copy_bytes` within the device's memory.
  double copy_bytes_per_second = 0;
  std::int64_t copy_bytes = 0;

  /// Floating-point operations per second of cuBLAS's product of two random fp16 matrices of matrix_size^2 elements
  /// with fp32 sums. NaN where cuBLAS is missing; matrix_missing then says why, in one line.
  double matrix_flops_per_second = std::numeric_limits<double>::quiet_NaN();
  std::int64_t matrix_size = 0;
  std::string matrix_missing;
};

}  // namespace flash
