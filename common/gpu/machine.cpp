#include "common/gpu/machine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/gpu/ceilings.hpp"
#include "common/gpu/cublas.hpp"
#include "common/gpu/dynamic_library.hpp"
#include "common/gpu/flush.hpp"
#include "common/gpu/traffic_counters.hpp"

namespace flash::gpu {

namespace {

/// Why there is no GPU, or empty.
std::string missing_gpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    int driver = 0;  // 0: none is installed; the runtime calls that "insufficient" too
    if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
      return "no GPU: no NVIDIA driver is installed";
    }
    return fmt::format("no GPU: {}", cudaGetErrorString(error));
  }
  if (count == 0) return "no GPU: the CUDA runtime found none";
  if (const cudaError_t code = find_code(); code != cudaSuccess) {
    cudaGetLastError();
    int device = 0, major = 0, minor = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
    const bool no_code = code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction ||
                         code == cudaErrorUnsupportedPtxVersion;
    if (known && no_code) return no_code_text(10 * major + minor, FLASH_ARCHITECTURES);
    return fmt::format("no GPU: {}", cudaGetErrorString(code));
  }
  return "";
}

int current_device() {
  int device = 0;
  FLASH_CUDA(cudaGetDevice(&device));
  return device;
}

int device_attribute(cudaDeviceAttr which) {
  int value = 0;
  FLASH_CUDA(cudaDeviceGetAttribute(&value, which, current_device()));
  return value;
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, which the CUDA runtime has no counterpart for.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    std::string why_not;
    void* driver = load_library({"libcuda.so.1"}, {}, &why_not);
    void* found = driver == nullptr ? nullptr : dlsym(driver, "cuTensorMapEncodeTiled");
    if (found == nullptr) throw DeviceError("no tensor maps: " + (why_not.empty() ? "the driver is too old" : why_not));
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

}  // namespace

Machine::Machine() {
  if (const std::string why = missing_gpu(); !why.empty()) throw DeviceError(why);
  FLASH_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  owns_stream_ = true;
  processors_ = device_attribute(cudaDevAttrMultiProcessorCount);
}

Machine::Machine(cudaStream_t stream) : stream_(stream) {
  if (const std::string why = missing_gpu(); !why.empty()) throw DeviceError(why);
  processors_ = device_attribute(cudaDevAttrMultiProcessorCount);
}

Machine::~Machine() {
  cublas_.reset();
  flush_ = DeviceBuffer();
  if (owns_stream_) cudaStreamDestroy(stream_);
}

std::string Machine::describe() const {
  cudaDeviceProp properties;
  FLASH_CUDA(cudaGetDeviceProperties(&properties, current_device()));
  return fmt::format("{} (compute capability {}.{}, {} SMs, {:.0f} GB, {:.0f} MB L2)", properties.name,
                     properties.major, properties.minor, properties.multiProcessorCount,
                     double(properties.totalGlobalMem) / 1e9, double(properties.l2CacheSize) / (1 << 20));
}

DeviceLimits Machine::limits() const {
  return {
      10 * device_attribute(cudaDevAttrComputeCapabilityMajor) + device_attribute(cudaDevAttrComputeCapabilityMinor),
      std::size_t(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))};
}

std::size_t Machine::free_bytes() const {
  std::size_t free = 0, total = 0;
  FLASH_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

void* Machine::allocate(std::size_t bytes) {
  void* data = nullptr;
  FLASH_CUDA(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)));
  return data;
}

void Machine::release(void* data) noexcept { cudaFree(data); }

void Machine::upload(void* device_data, const void* host, std::size_t bytes) {
  FLASH_CUDA(cudaMemcpyAsync(device_data, host, bytes, cudaMemcpyHostToDevice, stream_));
  FLASH_CUDA(cudaStreamSynchronize(stream_));
}

void Machine::download(void* host, const void* device_data, std::size_t bytes) {
  FLASH_CUDA(cudaMemcpyAsync(host, device_data, bytes, cudaMemcpyDeviceToHost, stream_));
  FLASH_CUDA(cudaStreamSynchronize(stream_));
}

void Machine::fill_bytes(void* device_data, unsigned char value, std::size_t bytes) {
  FLASH_CUDA(cudaMemsetAsync(device_data, value, bytes, stream_));
}

void Machine::synchronize() { FLASH_CUDA(cudaStreamSynchronize(stream_)); }

void Machine::flush_l2() {
  constexpr std::size_t kFlushBytes = std::size_t(256) << 20;  // several times what L2 holds
  if (flush_.data() == nullptr) {
    flush_ = DeviceBuffer(*this, kFlushBytes);
    fill_bytes(flush_.data(), 0, kFlushBytes);
  }
  read_through_l2(flush_.data(), kFlushBytes, stream_);
}

std::optional<Timing> Machine::time(const std::function<void()>& launch, std::optional<int> repeat) {
  constexpr int kRuns = 30, kFewest = 3;
  constexpr double kBudgetMs = 2000;
  struct Events {
    cudaEvent_t begin = nullptr, end = nullptr;
    Events() {
      FLASH_CUDA(cudaEventCreate(&begin));
      FLASH_CUDA(cudaEventCreate(&end));
    }
    ~Events() {
      cudaEventDestroy(begin);
      cudaEventDestroy(end);
    }
  } events;
  const auto once = [&] {
    flush_l2();
    FLASH_CUDA(cudaEventRecord(events.begin, stream_));
    launch();
    FLASH_CUDA(cudaEventRecord(events.end, stream_));
    FLASH_CUDA(cudaEventSynchronize(events.end));
    float ms = 0;
    FLASH_CUDA(cudaEventElapsedTime(&ms, events.begin, events.end));
    return double(ms);
  };
  double spent = once();  // warm-up
  for (int i = 0; i < 3 && spent < kBudgetMs / 4; ++i) spent += once();
  std::vector<double> times;
  spent = 0;
  const int runs = repeat.value_or(kRuns);
  while (int(times.size()) < runs && (repeat || int(times.size()) < kFewest || spent < kBudgetMs)) {
    times.push_back(once());
    spent += times.back();
  }
  std::sort(times.begin(), times.end());
  const std::size_t half = times.size() / 2;
  const double median = times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
  return Timing{median, times.front(), times.back(), int(times.size())};
}

std::optional<TrafficReading> Machine::read_traffic(const std::function<void()>& launch, std::string* why_not) {
  // Kept open, because opening takes most of a second. Launches are slower from here on: see device.hpp.
  if (!counters_ && no_counters_.empty()) counters_ = TrafficCounters::open(&no_counters_);
  if (!counters_) {
    if (why_not != nullptr) *why_not = no_counters_;
    return std::nullopt;
  }
  return counters_->measure(launch, stream_, [this] { flush_l2(); });
}

std::optional<Ceilings> Machine::ceilings() {
  if (!ceilings_) ceilings_ = measure_ceilings();
  return ceilings_;
}

void Machine::prepare(const LaunchConfig& config, const void* kernel) {
  // For each launch: a grid beyond 32 bits would be cut off on its way to CUDA.
  if (config.grid.x > 0x7fffffff || config.grid.y > 65535 || config.grid.z > 65535) {
    throw DeviceError(fmt::format("kernel {}: a grid of {} x {} x {} blocks is outside 1 to 2147483647 x 65535 x 65535",
                                  config.name, config.grid.x, config.grid.y, config.grid.z));
  }
  // The rest once for each kernel and size: a launch in a timed loop costs no more than CUDA's own.
  const std::pair<const void*, std::size_t> key{kernel, config.shared_bytes};
  if (std::find(prepared_.begin(), prepared_.end(), key) != prepared_.end()) return;
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) {
    cudaGetLastError();
    throw DeviceError(fmt::format("kernel {}: {}", config.name, cudaGetErrorString(error)));
  }
  if (config.shared_bytes > 48 * 1024) {
    if (const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(config.shared_bytes));
        error != cudaSuccess) {
      cudaGetLastError();
      throw DeviceError(fmt::format("kernel {}: this GPU does not give a block {} bytes of shared memory", config.name,
                                    config.shared_bytes));
    }
  }
  int blocks = 0;
  FLASH_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, config.threads, config.shared_bytes));
  resources_.push_back({config.name, config.threads, attributes.numRegs, int(attributes.localSizeBytes),
                        config.shared_bytes + attributes.sharedSizeBytes, blocks});
  prepared_.push_back(key);
}

void Machine::check_launch(cudaError_t error, const LaunchConfig& config) {
  if (error == cudaSuccess) return;
  throw DeviceError(
      fmt::format("kernel {}: launch of {} x {} x {} blocks of {} threads with {} bytes of shared memory "
                  "failed: {} ({})",
                  config.name, config.grid.x, config.grid.y, config.grid.z, config.threads, config.shared_bytes,
                  cudaGetErrorName(error), cudaGetErrorString(error)));
}

TensorMap Machine::tensor_map(const TensorMapSpec& spec) const {
  if (const std::string why = refusal(spec); !why.empty()) throw UsageError(why);
  cuuint64_t extents[5], strides[4];
  cuuint32_t box[5], element_strides[5];
  for (int i = 0; i < spec.rank; ++i) {
    extents[i] = cuuint64_t(spec.extent[i]);
    if (i > 0) strides[i - 1] = cuuint64_t(spec.stride[i]);
    box[i] = cuuint32_t(spec.box[i]);
    element_strides[i] = 1;
  }
  constexpr CUtensorMapSwizzle swizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                             CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  // Elements are only moved, so their width is all that counts.
  const CUtensorMapDataType type = spec.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : spec.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  TensorMap map;
  const CUresult result = encode_tiled()(&map.value, type, cuuint32_t(spec.rank), spec.data, extents, strides, box,
                                         element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles[int(spec.swizzle)],
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw DeviceError(fmt::format("{}: the driver makes no tensor map of it (error {})", spec.tensor, int(result)));
  }
  return map;
}

void Machine::batched_product(Product product, float alpha, const TensorRef& a, const TensorRef& b, const TensorRef& c,
                              const Problem& problem) {
  if (!cublas_) cublas_ = std::make_unique<Cublas>(stream_);
  const bool scores = product == Product::q_times_k_transposed;
  const std::int64_t group = problem.heads / problem.kv_heads;
  const std::int64_t n = scores ? problem.seq_kv : problem.head_dim;
  const std::int64_t k = scores ? problem.head_dim : problem.seq_kv;
  // The heads of one call are equally far apart in all three operands: all heads of a batch, or where several query
  // heads share a K/V head, the group that does.
  const std::int64_t calls = group == 1 ? 1 : problem.kv_heads;
  const std::int64_t count = problem.heads / calls;
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    for (std::int64_t call = 0; call < calls; ++call) {
      const auto at = [&](const TensorRef& t, std::int64_t head) {
        return static_cast<char*>(t.data) + (batch * t.batch_stride + head * t.head_stride) * t.element_bytes;
      };
      const MatrixBatch left{at(a, call * count), a.row_stride, a.head_stride, false};
      const MatrixBatch right{at(b, call), b.row_stride, group == 1 ? b.head_stride : 0, scores};
      cublas_->gemm_strided_batched(problem.dtype, problem.seq_q, n, k, alpha, left, right, 0.0f, at(c, call * count),
                                    c.row_stride, c.head_stride, count);
    }
  }
}

}  // namespace flash::gpu

namespace flash {

std::unique_ptr<Device> make_gpu() { return std::make_unique<gpu::Machine>(); }

int current_gpu() {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) return device;
  if (const std::string why = gpu::missing_gpu(); !why.empty()) throw DeviceError(why);
  FLASH_CUDA(error);
  return device;
}

std::unique_ptr<Device> make_gpu(void* stream) {
  return std::make_unique<gpu::Machine>(static_cast<cudaStream_t>(stream));
}

bool gpu_available(std::string* why) {
  const std::string reason = gpu::missing_gpu();
  if (why != nullptr) *why = reason;
  return reason.empty();
}

}  // namespace flash
