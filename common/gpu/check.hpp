// The one check of a CUDA runtime call.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "common/base/error.hpp"

namespace flash {

/// "common/gpu/check.hpp:12": the source file as the repository names it, whatever path the compiler was given.
inline std::string source_position(std::string_view file, int line) {
  for (const std::string_view root : {"chapters/", "common/", "reference/", "tests/"}) {
    const std::size_t at = file.rfind(root);
    if (at != std::string_view::npos && (at == 0 || file[at - 1] == '/')) {
      file.remove_prefix(at);
      break;
    }
  }
  return std::string(file) + ":" + std::to_string(line);
}

/// Throws DeviceError, one line with the call, the error's name and meaning, file and line, unless `result` is success.
inline void check_cuda(cudaError_t result, const char* call, const char* file, int line) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // reported here, so that it is not reported again by the next check
  throw DeviceError(std::string(call) + " failed: " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) +
                    ") at " + source_position(file, line));
}

}  // namespace flash

/// Checks a CUDA runtime call: FLASH_CUDA(cudaStreamSynchronize(stream)); after a launch:
/// FLASH_CUDA(cudaGetLastError()).
#define FLASH_CUDA(call) ::flash::check_cuda((call), #call, __FILE__, __LINE__)
