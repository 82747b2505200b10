// The C interface of the chapters (common/program/flash_chapters.h).
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/chapter.hpp"
#include "common/base/error.hpp"
#include "common/base/quote.hpp"
#include "common/device/device.hpp"

#define FLASH_EXPORT __attribute__((visibility("default")))
#include "common/program/flash_chapters.h"

namespace flash {

namespace {

thread_local std::string last_error;

/// A device that the library has used, with the scratch memory that it keeps.
struct Session {
  std::unique_ptr<Device> device;
  DeviceLimits limits;
  std::vector<DeviceBuffer> workspace;
};

/// The simulation's, or that of the current GPU and the stream: the default stream has one handle on all of them.
Session& session(int device, void* stream) {
  constexpr int kSimulation = -1;
  const bool on_gpu = device == FLASH_DEVICE_GPU;
  // Never destroyed: at exit the CUDA runtime may be gone before this library is.
  static auto& sessions = *new std::map<std::pair<int, void*>, Session>;
  Session& found = sessions[{on_gpu ? current_gpu() : kSimulation, on_gpu ? stream : nullptr}];
  if (!found.device) {
    found.device = on_gpu ? make_gpu(stream) : make_simulated_gpu(0);
    found.limits = found.device->limits();
  }
  return found;
}

const Chapter& find_chapter(const char* name) {
  std::string names;
  for (const Chapter& chapter : chapters()) {
    if (name != nullptr && chapter.name == name) return chapter;
    names += (names.empty() ? "" : ", ") + chapter.name;
  }
  throw UsageError(fmt::format("no chapter {}; there are {}", in_quotes(name == nullptr ? "" : name), names));
}

Problem problem_of(const flash_attention& call) {
  if (call.dtype != FLASH_FP16 && call.dtype != FLASH_BF16) {
    throw UsageError(fmt::format("dtype {}: use FLASH_FP16 (0) or FLASH_BF16 (1)", call.dtype));
  }
  if (call.causal != 0 && call.causal != 1) {
    throw UsageError(fmt::format("causal {}: use 0 or 1", call.causal));
  }
  Problem problem;
  problem.batch = call.batch;
  problem.heads = call.heads;
  problem.kv_heads = call.kv_heads;
  problem.seq_q = call.seq_q;
  problem.seq_kv = call.seq_kv;
  problem.head_dim = call.head_dim;
  problem.causal = call.causal != 0;
  problem.dtype = call.dtype == FLASH_FP16 ? DType::fp16 : DType::bf16;
  return problem;
}

LaunchOptions options_of(const Chapter& chapter, const Problem& problem, const char* variant,
                         const DeviceLimits& limits) {
  LaunchOptions options;
  options.variant = variant == nullptr ? "" : variant;
  return resolve(chapter, problem, options, limits);
}

void set_tensor(TensorRef& ref, const flash_tensor& tensor) {
  if (tensor.data == nullptr) throw UsageError(fmt::format("{}: the pointer is null", ref.name));
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) {
    throw UsageError(fmt::format("{}: the pointer is not a multiple of 16 bytes", ref.name));
  }
  for (const std::int64_t stride : {tensor.batch_stride, tensor.row_stride, tensor.head_stride}) {
    if (stride < 0 || stride % 8 != 0) {
      throw UsageError(
          fmt::format("{}: stride {}; batch, row and head strides are multiples of 8 elements", ref.name, stride));
    }
  }
  const __int128 last = static_cast<__int128>(ref.batch - 1) * tensor.batch_stride +
                        static_cast<__int128>(ref.rows - 1) * tensor.row_stride +
                        static_cast<__int128>(ref.heads - 1) * tensor.head_stride + ref.cols;
  if (last > (std::int64_t(1) << 62)) {
    throw UsageError(fmt::format("{}: with strides {}, {} and {} it spans more than 2^62 elements", ref.name,
                                 tensor.batch_stride, tensor.row_stride, tensor.head_stride));
  }
  ref.data = tensor.data;
  ref.batch_stride = tensor.batch_stride;
  ref.row_stride = tensor.row_stride;
  ref.head_stride = tensor.head_stride;
}

/// Throws UsageError where two elements of an output may be one place in memory.
void require_apart(const TensorRef& ref) {
  struct Dimension {
    std::int64_t stride, extent;
  };
  Dimension dimensions[] = {{ref.batch_stride, ref.batch}, {ref.row_stride, ref.rows}, {ref.head_stride, ref.heads}};
  std::sort(std::begin(dimensions), std::end(dimensions),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  std::int64_t span = ref.cols;  // elements from the first to the last of the dimensions so far
  for (const Dimension& dimension : dimensions) {
    if (dimension.extent == 1) continue;
    if (dimension.stride < span) {
      throw UsageError(fmt::format("{}: with strides {}, {} and {} (batch, row, head) its rows overlap", ref.name,
                                   ref.batch_stride, ref.row_stride, ref.head_stride));
    }
    span += dimension.stride * (dimension.extent - 1);
  }
}

void forward(int device, const char* chapter_name, const char* variant, const flash_attention& call, void* stream) {
  if (device != FLASH_DEVICE_GPU && device != FLASH_DEVICE_SIM) {
    throw UsageError(fmt::format("device {}: use FLASH_DEVICE_GPU (0) or FLASH_DEVICE_SIM (1)", device));
  }
  const Chapter& chapter = find_chapter(chapter_name);
  const Problem problem = problem_of(call);
  Session& used = session(device, stream);
  const LaunchOptions options = options_of(chapter, problem, variant, used.limits);
  AttentionCall attention = contiguous_call(problem);
  set_tensor(attention.q, call.q);
  set_tensor(attention.k, call.k);
  set_tensor(attention.v, call.v);
  set_tensor(attention.o, call.o);
  require_apart(attention.o);
  if (call.lse == nullptr) throw UsageError("LSE: the pointer is null");
  if (reinterpret_cast<std::uintptr_t>(call.lse) % sizeof(float) != 0) {
    throw UsageError("LSE: the pointer is not a multiple of 4 bytes");
  }
  attention.lse.data = call.lse;

  attention.workspace = chapter.info.workspace(problem, options);
  for (std::size_t i = 0; i < attention.workspace.size(); ++i) {
    TensorRef& ref = attention.workspace[i];
    if (i == used.workspace.size()) used.workspace.emplace_back();
    const auto bytes = std::size_t(ref.span_bytes());
    if (used.workspace[i].bytes() < bytes) {
      used.device->synchronize();
      used.workspace[i] = DeviceBuffer();
      used.workspace[i] = DeviceBuffer(*used.device, bytes);
    }
    ref.data = used.workspace[i].data();
  }
  const LaunchFunction launch = device == FLASH_DEVICE_GPU ? chapter.launch_gpu : chapter.launch_sim;
  if (launch == nullptr) throw DeviceError(chapter.name + " was built without its GPU side");
  launch(attention, options, *used.device);
}

/// Runs `body` and turns what it throws into a status.
template <typename Body>
int guarded(Body body) {
  static std::mutex mutex;  // sessions are shared; a launch is quick, and the simulation uses all cores anyway
  const std::lock_guard lock(mutex);
  try {
    last_error.clear();
    body();
    return FLASH_OK;
  } catch (const UsageError& error) {
    last_error = error.what();
    return FLASH_INVALID;
  } catch (const Fault& error) {
    last_error = error.what();
    return FLASH_FAULT;
  } catch (const std::exception& error) {
    last_error = error.what();
    return FLASH_DEVICE;
  }
}

}  // namespace
}  // namespace flash

extern "C" {

FLASH_EXPORT int flash_chapter_count(void) { return int(flash::chapters().size()); }

FLASH_EXPORT const char* flash_chapter_name(int index) {
  if (index < 0 || index >= flash_chapter_count()) return nullptr;
  return flash::chapters()[std::size_t(index)].name.c_str();
}

FLASH_EXPORT const char* flash_variant_name(const char* chapter, int index) {
  const char* name = nullptr;
  flash::guarded([&] {
    const auto& variants = flash::find_chapter(chapter).info.variants;
    if (index >= 0 && index < int(variants.size())) name = variants[std::size_t(index)].name.c_str();
  });
  return name;
}

FLASH_EXPORT int flash_variant_gpu_only(const char* chapter, const char* variant) {
  int result = -1;
  flash::guarded([&] {
    if (variant == nullptr) throw flash::UsageError("the variant's name is null");
    result = flash::find_chapter(chapter).variant(variant).gpu_only ? 1 : 0;
  });
  return result;
}

FLASH_EXPORT int flash_supports(const char* chapter, const char* variant, const struct flash_attention* call) {
  return flash::guarded([&] {
    if (call == nullptr) throw flash::UsageError("the call is null");
    flash::options_of(flash::find_chapter(chapter), flash::problem_of(*call), variant, {});
  });
}

FLASH_EXPORT int flash_attention_forward(int device, const char* chapter, const char* variant,
                                         const struct flash_attention* call, void* stream) {
  return flash::guarded([&] {
    if (call == nullptr) throw flash::UsageError("the call is null");
    flash::forward(device, chapter, variant, *call, stream);
  });
}

FLASH_EXPORT const char* flash_last_error(void) { return flash::last_error.c_str(); }
}
