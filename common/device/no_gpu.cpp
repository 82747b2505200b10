// In a build without CUDA these stand for common/gpu/machine.cpp.
#include "common/base/error.hpp"
#include "common/device/device.hpp"

namespace flash {

namespace {
constexpr const char* kReason = "no GPU: this build has the simulated GPU only (it was configured without CUDA)";
}

std::unique_ptr<Device> make_gpu() { throw DeviceError(kReason); }

std::unique_ptr<Device> make_gpu(void*) { throw DeviceError(kReason); }

int current_gpu() { throw DeviceError(kReason); }

bool gpu_available(std::string* why) {
  if (why != nullptr) *why = kReason;
  return false;
}

}  // namespace flash
