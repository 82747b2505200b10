#include "common/device/device.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace flash {

DeviceBuffer::DeviceBuffer(Device& device, std::size_t bytes) : device_(&device), bytes_(bytes) {
  const std::size_t free = device.free_bytes();
  if (bytes > free) {
    throw UsageError(fmt::format(
        "a tensor of {:.2f} GB does not fit: {:.2f} GB are free on the {}; use a smaller problem", double(bytes) / 1e9,
        double(free) / 1e9, device.kind() == DeviceKind::gpu ? "GPU" : "host (the simulated GPU's memory)"));
  }
  data_ = device.allocate(bytes);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) device_->release(data_);
}

}  // namespace flash
