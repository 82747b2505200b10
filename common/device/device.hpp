// A machine that runs kernels: a real GPU or the simulated one. Memory and copies look the same on both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/limits.hpp"
#include "common/device/ceilings.hpp"
#include "common/device/gpu_profile.hpp"
#include "common/device/traffic_reading.hpp"

namespace flash {

enum class DeviceKind { gpu, sim };

class Device;

namespace sim {
struct Counters;
}

/// Times of several runs, milliseconds.
struct Timing {
  double median_ms = 0, min_ms = 0, max_ms = 0;
  int runs = 0;
};

/// What the compiler gave a kernel that was launched.
struct KernelResources {
  std::string name;
  int threads = 0;               // of a block
  int registers = 0;             // of a thread
  int local_bytes = 0;           // local memory of a thread: spills and arrays
  std::size_t shared_bytes = 0;  // of a block, as launched
  int blocks_per_sm = 0;         // that fit at once
};

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
  /// One line: "NVIDIA H200 (132 SMs, ...)" or "simulated GPU (H200: compute capability 9.0, ...)".
  virtual std::string describe() const = 0;
  /// What it gives a kernel: compute capability, shared memory of a block.
  virtual DeviceLimits limits() const = 0;
  virtual std::size_t free_bytes() const = 0;
  virtual void* allocate(std::size_t bytes) = 0;  // 256-byte aligned
  virtual void release(void* data) noexcept = 0;
  virtual void upload(void* device_data, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device_data, std::size_t bytes) = 0;
  virtual void fill_bytes(void* device_data, unsigned char value, std::size_t bytes) = 0;
  /// Waits for all launches; reports their errors.
  virtual void synchronize() = 0;

  // -- Measurements: each machine has its own, the other gives nothing

  /// GPU: `launch` timed by CUDA events, with the L2 cache flushed before each run. `repeat` runs; without it 30, or as
  /// many (3 at least) as fit in about two seconds.
  virtual std::optional<Timing> time(const std::function<void()>& launch, std::optional<int> repeat) {
    (void)launch, (void)repeat;
    return std::nullopt;
  }
  /// GPU: bytes moved by `launch`, with L2 flushed before. Without a value, `why_not` says in one line why. The
  /// counters stay open until the device is gone, and launches are slower then: time first, count afterwards.
  virtual std::optional<TrafficReading> read_traffic(const std::function<void()>& launch, std::string* why_not) {
    (void)launch;
    if (why_not != nullptr) *why_not = "this device has no byte counters";
    return std::nullopt;
  }
  /// GPU: the roofline's ceilings, measured once.
  virtual std::optional<Ceilings> ceilings() { return std::nullopt; }
  /// GPU: the kernels launched since the last reset, each once.
  virtual std::vector<KernelResources> resources() const { return {}; }
  /// Simulation: what was counted since the last reset. Null on a GPU.
  virtual const sim::Counters* counted() const { return nullptr; }
  /// Starts counted() and resources() anew.
  virtual void reset_counted() {}
};

/// The simulated GPU, standing for one with these limits and instructions; see common/sim/machine.hpp.
std::unique_ptr<Device> make_simulated_gpu(std::uint64_t schedule_seed, const GpuProfile& gpu = gpu_profiles()[0]);

/// The first GPU. Throws DeviceError, one line, when there is none, or when this build has no code for it.
std::unique_ptr<Device> make_gpu();

/// The same, launching on the caller's stream (a cudaStream_t; null is the default stream) on the current device.
std::unique_ptr<Device> make_gpu(void* stream);

/// The number of the CUDA device that the calling thread has made current. Throws DeviceError as make_gpu does.
int current_gpu();

/// Whether make_gpu would succeed; if not, `why` (may be null) receives the reason.
bool gpu_available(std::string* why = nullptr);

}  // namespace flash
