#include "tests/support/expanded.hpp"

#include <fmt/format.h>

#include <cstring>

#include "common/base/error.hpp"
#include "reference/check.hpp"

namespace flash::test {

namespace {

struct Expansion {
  const char* what;
  std::int64_t batch;
  bool heads, batches;
};

/// Gives `ref` strides of 0 and memory that holds one of what `values` is made to repeat, and NaN between its rows.
DeviceBuffer place(Device& device, const Expansion& expansion, HostTensor& values, TensorRef& ref) {
  if (expansion.heads) ref.head_stride = 0;
  if (expansion.batches) ref.batch_stride = 0;
  std::vector<std::uint16_t> image(std::size_t(ref.span_bytes()) / 2, 0xffff);
  for (std::int64_t b = 0; b < ref.batch; ++b) {
    for (std::int64_t r = 0; r < ref.rows; ++r) {
      for (std::int64_t h = 0; h < ref.heads; ++h) {
        const std::size_t one = values.index(expansion.batches ? 0 : b, r, expansion.heads ? 0 : h, 0);
        const auto row_bytes = std::size_t(ref.cols) * 2;
        std::memmove(values.bits() + values.index(b, r, h, 0), values.bits() + one, row_bytes);
        const std::int64_t at = b * ref.batch_stride + r * ref.row_stride + h * ref.head_stride;
        std::memcpy(image.data() + at, values.bits() + one, row_bytes);
      }
    }
  }
  DeviceBuffer buffer(device, image.size() * 2);
  device.upload(buffer.data(), image.data(), image.size() * 2);
  ref.data = buffer.data();
  return buffer;
}

}  // namespace

std::vector<std::string> expanded_failures(const Chapter& chapter, const LaunchOptions& variant, Device& device,
                                           const std::vector<std::int64_t>& head_dims) {
  std::vector<std::string> failures;
  for (const std::int64_t head_dim : head_dims) {
    for (const Expansion& expansion :
         {Expansion{"heads", 2, true, false}, Expansion{"batches", 2, false, true},
          Expansion{"heads and batches", 2, true, true}, Expansion{"its one batch", 1, false, true}}) {
      const Problem p{expansion.batch, 4, 2, 70, 90, head_dim, true, head_dim == 128 ? DType::bf16 : DType::fp16};
      const LaunchOptions options = resolve(chapter, p, variant, device.limits());
      Input input = make_case_input({p});
      DeviceTensors tensors(device, input);
      tensors.poison();
      AttentionCall call = tensors.call(chapter.info.workspace(p, options));
      const DeviceBuffer k = place(device, expansion, input.k, call.k), v = place(device, expansion, input.v, call.v);
      std::string failure;
      try {
        device.reset_counted();
        launch_of(chapter, device)(call, options, device);
        device.synchronize();
        failure = check_attention(p, input.q, input.k, input.v, tensors.download_o(), tensors.download_lse(),
                                  all_rows(p), chapter.info.lse_from_rounded_scores)
                      .first_failure;
        const std::optional<Traffic> predicted = chapter.info.requested(call, options);
        if (failure.empty() && device.counted() != nullptr && predicted) {
          failure = difference(*device.counted(), *predicted);
        }
      } catch (const std::exception& error) {
        failure = error.what();
      }
      if (failure.empty()) continue;
      failures.push_back(fmt::format("{}, K and V expanded over {}, {}: {}", describe(chapter, options), expansion.what,
                                     p.describe(), failure));
    }
  }
  return failures;
}

}  // namespace flash::test
