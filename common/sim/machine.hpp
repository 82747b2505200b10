// The simulated GPU as a device: memory is host memory, a launch runs its blocks on host threads.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/launch_config.hpp"
#include "common/device/counters.hpp"
#include "common/device/device.hpp"
#include "common/device/gpu_profile.hpp"
#include "common/sim/tensor_map.hpp"

namespace flash::sim {

class Machine final : public Device {
 public:
  /// `schedule_seed` 0 runs warps and blocks in order and completes asynchronous work at the latest legal moment;
  /// any other seed draws both from it. `host_threads` 0 takes one for each core.
  /// `gpu` is what it stands for: limits of a launch, instructions that there are.
  explicit Machine(std::uint64_t schedule_seed = 0, int host_threads = 0, const GpuProfile& gpu = gpu_profiles()[0]);

  DeviceKind kind() const override { return DeviceKind::sim; }
  std::string describe() const override;
  DeviceLimits limits() const override { return gpu_.limits; }
  /// Streaming multiprocessors of the GPU that it stands for.
  int processors() const { return gpu_.processors; }
  std::size_t free_bytes() const override;
  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;
  /// Bytes from `data` to the end of the memory that allocate gave there; 0 where it gave none.
  static std::size_t allocated_from(const void* data);
  void upload(void* device_data, const void* host, std::size_t bytes) override;
  void download(void* host, const void* device_data, std::size_t bytes) override;
  void fill_bytes(void* device_data, unsigned char value, std::size_t bytes) override;
  void synchronize() override {}

  /// Runs the kernel to its end. Throws Fault with the report when a thread does something that hardware forbids or
  /// leaves undefined, DeviceError when the launch itself is beyond the hardware's limits.
  template <typename... Parameters, typename... Arguments>
  void launch(const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
    const std::tuple<Parameters...> bound(std::forward<Arguments>(arguments)...);
    run(config, [&] { std::apply(kernel, bound); });
  }

  /// For TMA copies of a launch's kernel. Throws UsageError with refusal()'s line where the copy engine cannot take it.
  TensorMap tensor_map(const TensorMapSpec& spec) const;

  /// Only on a GPU: throws DeviceError (the twin of gpu::Machine's batched product on cuBLAS).
  template <typename... Anything>
  void batched_product(const Anything&...) {
    no_library("cuBLAS");
  }

  const Counters* counted() const override { return &counters_; }
  void reset_counted() override { counters_ = {}; }
  const Counters& counters() const { return counters_; }

  /// A thread that runs this long without a barrier, a warp collective or an end is reported as an endless loop, and
  /// the process ends with exit code 1; so is a block that runs ten times as long.
  void set_watchdog(std::chrono::milliseconds limit) { watchdog_ = limit; }

 private:
  void run(const LaunchConfig& config, std::function<void()> body);
  [[noreturn]] static void no_library(const char* name);

  std::uint64_t schedule_seed_;
  int host_threads_;
  GpuProfile gpu_;
  std::chrono::milliseconds watchdog_{60'000};
  std::mutex counters_mutex_;  // several host threads may launch at the same time
  Counters counters_;
};

}  // namespace flash::sim
