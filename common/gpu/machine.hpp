// A real GPU as a device: the CUDA runtime behind common/device/device.hpp, and the launch helper for kernels.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/launch_config.hpp"
#include "common/base/problem.hpp"
#include "common/base/tensor_map.hpp"
#include "common/device/device.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/tensor_map.hpp"

namespace flash {
class Cublas;
class TrafficCounters;
}  // namespace flash

namespace flash::gpu {

class Machine final : public Device {
 public:
  /// On the current device. With `stream` null the machine makes a stream of its own; otherwise it uses the caller's.
  /// Throws DeviceError when there is no GPU.
  Machine();
  explicit Machine(cudaStream_t stream);
  ~Machine() override;
  Machine(const Machine&) = delete;

  DeviceKind kind() const override { return DeviceKind::gpu; }
  std::string describe() const override;
  DeviceLimits limits() const override;
  std::size_t free_bytes() const override;
  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;
  void upload(void* device_data, const void* host, std::size_t bytes) override;
  void download(void* host, const void* device_data, std::size_t bytes) override;
  void fill_bytes(void* device_data, unsigned char value, std::size_t bytes) override;
  void synchronize() override;
  std::optional<Timing> time(const std::function<void()>& launch, std::optional<int> repeat) override;
  std::optional<TrafficReading> read_traffic(const std::function<void()>& launch, std::string* why_not) override;
  std::optional<Ceilings> ceilings() override;
  std::vector<KernelResources> resources() const override { return resources_; }
  void reset_counted() override {
    prepared_.clear();
    resources_.clear();
  }

  cudaStream_t stream() const { return stream_; }

  /// For the copy engine. Throws UsageError, one line, for what it cannot take, and DeviceError where the driver
  /// refuses.
  TensorMap tensor_map(const TensorMapSpec& spec) const;

  /// Streaming multiprocessors.
  int processors() const { return processors_; }

  /// Queues the kernel on the stream. Throws DeviceError when the launch is refused.
  template <typename... Parameters, typename... Arguments>
  void launch(const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
#if defined(__CUDACC__)
    prepare(config, reinterpret_cast<const void*>(kernel));
    const dim3 grid(unsigned(config.grid.x), unsigned(config.grid.y), unsigned(config.grid.z));
    kernel<<<grid, unsigned(config.threads), config.shared_bytes, stream_>>>(
        Parameters(std::forward<Arguments>(arguments))...);
    check_launch(cudaGetLastError(), config);
#else
    static_assert(sizeof...(Parameters) > 10000, "kernels are launched from files that nvcc compiles");
#endif
  }

  /// One product of standard attention for all heads on cuBLAS: c = alpha·a·b (or a·b^T), operands in the problem's
  /// dtype, fp32 sums.
  void batched_product(Product product, float alpha, const TensorRef& a, const TensorRef& b, const TensorRef& c,
                       const Problem& problem);

 private:
  void prepare(const LaunchConfig& config, const void* kernel);
  void flush_l2();
  static void check_launch(cudaError_t error, const LaunchConfig& config);

  cudaStream_t stream_ = nullptr;
  bool owns_stream_ = false;
  int processors_ = 0;
  std::unique_ptr<Cublas> cublas_;
  std::unique_ptr<TrafficCounters> counters_;
  std::string no_counters_;  // why there are none, once that is known
  std::optional<Ceilings> ceilings_;
  DeviceBuffer flush_;
  std::vector<std::pair<const void*, std::size_t>> prepared_;
  std::vector<KernelResources> resources_;
};

}  // namespace flash::gpu
