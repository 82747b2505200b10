#include "common/gpu/ceilings.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <vector>

#include "common/base/dtype.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/cublas.hpp"

namespace flash {
namespace {

struct Memory {
  explicit Memory(std::size_t bytes) { FLASH_CUDA(cudaMalloc(&data, bytes)); }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data = nullptr;
};

struct Event {
  Event() { FLASH_CUDA(cudaEventCreate(&event)); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t event = nullptr;
};

struct Stream {
  Stream() { FLASH_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t stream = nullptr;
};

/// Seconds that `work` takes on the stream: the median of `repeats` runs after 100 ms of them, in which the clocks
/// rise.
double median_seconds(cudaStream_t stream, int repeats, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  do {
    work();
    FLASH_CUDA(cudaStreamSynchronize(stream));
  } while (Clock::now() - start < std::chrono::milliseconds(100));
  std::vector<Event> events(std::size_t(repeats) + 1);
  FLASH_CUDA(cudaEventRecord(events[0].event, stream));
  for (int i = 0; i < repeats; ++i) {
    work();
    FLASH_CUDA(cudaEventRecord(events[std::size_t(i) + 1].event, stream));
  }
  FLASH_CUDA(cudaStreamSynchronize(stream));
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    float milliseconds = 0;
    FLASH_CUDA(cudaEventElapsedTime(&milliseconds, events[std::size_t(i)].event, events[std::size_t(i) + 1].event));
    seconds.push_back(double(milliseconds) * 1e-3);
  }
  const auto middle = seconds.begin() + repeats / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

std::size_t free_device_bytes() {
  std::size_t free = 0, total = 0;
  FLASH_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

void measure_copy(Ceilings& ceilings, cudaStream_t stream) {
  std::size_t bytes = std::size_t(1) << 30;
  while (bytes > (std::size_t(1) << 20) && bytes > free_device_bytes() / 4) bytes /= 2;
  const Memory from(bytes), to(bytes);
  FLASH_CUDA(cudaMemsetAsync(from.data, 0x5a, bytes, stream));
  const double seconds = median_seconds(
      stream, 15, [&] { FLASH_CUDA(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, stream)); });
  ceilings.copy_bytes = std::int64_t(bytes);
  ceilings.copy_bytes_per_second = 2.0 * double(bytes) / seconds;
}

/// Normal random numbers, because the rate depends on the data: zeros draw less power and run at higher clocks.
std::vector<float16> random_halves(std::size_t count) {
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  std::vector<float16> table(std::size_t(1) << 16);
  for (float16& x : table) x = to_float16(normal(generator));
  std::vector<float16> values(count);
  std::size_t i = 0;
  while (i < count) {
    const std::uint32_t bits = generator();
    values[i++] = table[bits & 0xffff];
    if (i < count) values[i++] = table[bits >> 16];
  }
  return values;
}

void measure_matrix(Ceilings& ceilings, cudaStream_t stream) {
  if (!Cublas::available(&ceilings.matrix_missing)) return;
  std::size_t n = 8192;
  while (n > 1024 && 3 * n * n * sizeof(float16) > free_device_bytes() / 2) n /= 2;
  const std::size_t bytes = n * n * sizeof(float16);
  const Memory a(bytes), b(bytes), c(bytes);
  const std::vector<float16> values = random_halves(2 * n * n);
  FLASH_CUDA(cudaMemcpyAsync(a.data, values.data(), bytes, cudaMemcpyHostToDevice, stream));
  FLASH_CUDA(cudaMemcpyAsync(b.data, values.data() + n * n, bytes, cudaMemcpyHostToDevice, stream));
  Cublas cublas(stream);
  const auto size = std::int64_t(n);
  const double seconds = median_seconds(stream, 25, [&] {
    cublas.gemm(DType::fp16, size, size, size, 1.0f, {a.data, size}, {b.data, size}, 0.0f, c.data, size);
  });
  ceilings.matrix_size = size;
  ceilings.matrix_flops_per_second = 2.0 * double(n) * double(n) * double(n) / seconds;
}

}  // namespace

Ceilings measure_ceilings() {
  const Stream stream;
  Ceilings ceilings;
  measure_copy(ceilings, stream.stream);
  measure_matrix(ceilings, stream.stream);
  return ceilings;
}

}  // namespace flash
