// A machine that runs kernels: a real GPU or the simulated one. Memory and copies look the same on both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace flash {

enum class DeviceKind { gpu, sim };

class Device;

/// Memory on a device, freed at the end of its life. Movable, not copyable.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, std::size_t bytes);  // throws UsageError with needed and free bytes if it does not fit
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// One line: "NVIDIA H200 (132 SMs, ...)" or "simulated GPU (2 host threads, schedule seed 0)".
  virtual std::string describe() const = 0;
  virtual std::size_t free_bytes() const = 0;
  virtual void* allocate(std::size_t bytes) = 0;  // 256-byte aligned
  virtual void release(void* data) noexcept = 0;
  virtual void upload(void* device_data, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device_data, std::size_t bytes) = 0;
  virtual void fill_bytes(void* device_data, unsigned char value, std::size_t bytes) = 0;
  /// Waits for all launches; reports their errors.
  virtual void synchronize() = 0;
};

/// The simulated GPU; see common/sim/machine.hpp for its counters.
std::unique_ptr<Device> make_simulated_gpu(std::uint64_t schedule_seed);

/// The first GPU. Throws DeviceError, one line, when there is none, or when this build has no CUDA side.
std::unique_ptr<Device> make_gpu();

/// Whether make_gpu would succeed; if not, `why` (may be null) receives the reason.
bool gpu_available(std::string* why = nullptr);

}  // namespace flash
