// Offsets beyond 2^31 elements: a product of indices and strides that is computed in 32 bits goes elsewhere.
#include <fmt/format.h>

#include "common/program/run.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"
#include "tests/support/skip.hpp"

using namespace flash;
using namespace flash::test;

namespace {

constexpr std::int64_t kFar = (std::int64_t(1) << 31) + 64;  // elements
constexpr std::int64_t kNear = std::int64_t(1) << 20;        // what one tensor needs at most without the far stride

struct Far {
  const char* what;
  Problem problem;
  std::int64_t TensorRef::*stride;
  std::int64_t value;
};

/// Copies between a host tensor and a tensor on the device, row by row.
template <typename Copy>
void for_each_row(const TensorRef& t, const HostTensor& host, const Copy& copy) {
  for (std::int64_t b = 0; b < t.batch; ++b) {
    for (std::int64_t h = 0; h < t.heads; ++h) {
      for (std::int64_t r = 0; r < t.rows; ++r) {
        copy(static_cast<std::uint16_t*>(t.data) + b * t.batch_stride + h * t.head_stride + r * t.row_stride,
             host.index(b, r, h, 0));
      }
    }
  }
}

}  // namespace

TEST_CASE("strides may lead beyond 2^31 elements", "[chapters]") {
  const std::unique_ptr<Device> device = make_gpu();
  const Far far_cases[] = {
      {"batch", {2, 2, 1, 70, 90, 64, true, DType::fp16}, &TensorRef::batch_stride, kFar},
      {"head", {1, 2, 2, 70, 90, 64, true, DType::fp16}, &TensorRef::head_stride, kFar},
      {"row", {1, 1, 1, 70, 70, 64, true, DType::fp16}, &TensorRef::row_stride, (std::int64_t(1) << 25) + 8},
  };
  const std::size_t bytes = std::size_t(kFar + kFar / 8 + 4 * kNear) * 2;
  if (device->free_bytes() < bytes + (std::size_t(1) << 30)) {
    return skip(fmt::format("{:.1f} GB of GPU memory are needed and {:.1f} GB are free", double(bytes) / 1e9,
                            double(device->free_bytes()) / 1e9));
  }
  const DeviceBuffer buffer(*device, bytes);
  for (const Far& far_case : far_cases) {
    const Problem& p = far_case.problem;
    const Input input = make_case_input({p});
    AttentionCall call = contiguous_call(p);
    // All four tensors share the memory: each has its near parts beside those of the others.
    std::int64_t first = 0;
    for (TensorRef* t : {&call.q, &call.k, &call.v, &call.o}) {
      t->*far_case.stride = far_case.value;
      if (far_case.stride == &TensorRef::row_stride) t->batch_stride = t->head_stride = 0;  // there is one of each
      t->data = static_cast<std::uint16_t*>(buffer.data()) + first;
      first += kNear;
    }
    for (const Chapter* chapter : chapters_under_test()) {
      for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::gpu)) {
        INFO(describe(*chapter, variant) << ", far stride of the " << far_case.what << ", " << p.describe());
        const LaunchOptions options = resolve(*chapter, p, variant);
        device->fill_bytes(buffer.data(), 0xff, bytes);
        const auto upload = [&](const TensorRef& t, const HostTensor& host) {
          for_each_row(t, host, [&](std::uint16_t* at, std::size_t index) {
            device->upload(at, host.bits() + index, std::size_t(t.cols) * 2);
          });
        };
        upload(call.q, input.q);
        upload(call.k, input.k);
        upload(call.v, input.v);
        std::vector<float> lse(std::size_t(p.batch * p.heads * p.seq_q));
        const DeviceBuffer lse_buffer(*device, lse.size() * sizeof(float));
        AttentionCall complete = call;
        complete.lse.data = lse_buffer.data();
        complete.workspace = chapter->info.workspace(p, options);
        std::vector<DeviceBuffer> workspace;
        for (TensorRef& t : complete.workspace) {
          workspace.emplace_back(*device, std::size_t(t.batch * t.batch_stride * t.element_bytes));
          t.data = workspace.back().data();
        }
        launch_of(*chapter, *device)(complete, options, *device);
        device->synchronize();
        HostTensor o(p.dtype, p.batch, p.seq_q, p.heads, p.head_dim);
        for_each_row(call.o, o, [&](const std::uint16_t* at, std::size_t index) {
          device->download(o.bits() + index, at, std::size_t(p.head_dim) * 2);
        });
        device->download(lse.data(), lse_buffer.data(), lse.size() * sizeof(float));
        CHECK(check_attention(p, input.q, input.k, input.v, o, lse, all_rows(p), chapter->info.lse_from_rounded_scores)
                  .first_failure == "");
      }
    }
  }
}

TEST_CASE("intermediate tensors may have more than 2^31 elements", "[chapters]") {
  const std::unique_ptr<Device> device = make_gpu();
  const Problem p{1, 34, 34, 8192, 8192, 64, false, DType::fp16};
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::gpu)) {
      const LaunchOptions options = resolve(*chapter, p, variant);
      const std::vector<TensorRef> workspace = chapter->info.workspace(p, options);
      const double bytes = device_bytes(contiguous_call(p), workspace);
      if (bytes + 2e9 > double(device->free_bytes())) {
        skip(fmt::format("{}: {:.1f} GB of GPU memory are needed and {:.1f} GB are free", describe(*chapter, options),
                         bytes / 1e9, double(device->free_bytes()) / 1e9));
        continue;
      }
      const Input input = make_case_input({p});
      DeviceTensors tensors(*device, input);
      const RunSettings settings{CheckMode::sample, false, std::nullopt};
      const ChapterRun run = run_chapter(*chapter, options, settings, *device, input, tensors);
      INFO(describe(*chapter, options) << ": " << p.describe());
      CHECK(run.check->first_failure == "");
    }
  }
}
