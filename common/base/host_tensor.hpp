// Tensors in host memory: what files are read into, what random input is generated into, what the check compares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/dtype.hpp"
#include "common/base/problem.hpp"

namespace flash {

/// Calls body(0) .. body(count - 1), each once, from several threads and in any order; `threads` 0 means one for
/// each processor. Rethrows the first exception of a body, after which no further one starts.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body);

/// A contiguous [batch, seq, heads, dim] tensor of 16-bit elements, the layout of NumPy files.
class HostTensor {
 public:
  HostTensor() = default;
  /// All zero. Throws UsageError for an extent below 1 and where the memory cannot be had.
  HostTensor(DType dtype, std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t dim);

  DType dtype() const { return dtype_; }
  std::int64_t batch() const { return batch_; }
  std::int64_t seq() const { return seq_; }
  std::int64_t heads() const { return heads_; }
  std::int64_t dim() const { return dim_; }
  std::int64_t elements() const { return std::int64_t(bits_.size()); }
  std::size_t bytes() const { return bits_.size() * sizeof(std::uint16_t); }

  /// Position of element [b, s, h, d] in bits(). Indices are not checked.
  std::size_t index(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) const {
    return std::size_t(((b * seq_ + s) * heads_ + h) * dim_ + d);
  }

  /// The element's value; exact.
  float at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) const {
    return decode(bits_[index(b, s, h, d)]);
  }

  /// Stores `value` rounded to nearest even.
  void set(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, float value) {
    bits_[index(b, s, h, d)] = encode(value);
  }

  /// The value of an element with these bits, and the bits of the element nearest to a value.
  float decode(std::uint16_t bits) const {
    return dtype_ == DType::fp16 ? to_float(float16{bits}) : to_float(bfloat16{bits});
  }
  std::uint16_t encode(float value) const {
    return dtype_ == DType::fp16 ? to_float16(value).bits : to_bfloat16(value).bits;
  }

  /// The elements as stored: [batch, seq, heads, dim].
  std::uint16_t* bits() { return bits_.data(); }
  const std::uint16_t* bits() const { return bits_.data(); }

  /// Describes this memory to host code; for a copy on a device the caller sets `data`.
  TensorRef ref(const char* name);

 private:
  DType dtype_ = DType::fp16;
  std::int64_t batch_ = 0, seq_ = 0, heads_ = 0, dim_ = 0;
  std::vector<std::uint16_t> bits_;
};

/// What random input is drawn from.
enum class Distribution {
  normal,   // N(0, 1)
  outliers  // N(0, 1) + N(0, 100) * Bernoulli(0.001), 100 the variance: FlashAttention-3 (arXiv 2407.08608),
            // section 4.3
};

constexpr const char* to_string(Distribution d) { return d == Distribution::normal ? "normal" : "outliers"; }

/// Fills the tensor with random values. Each depends on the distribution, the seed, the stream (one for each tensor of
/// a problem: Q, K and V must differ) and its position alone, so any number of threads gives the same bits.
void fill_random(HostTensor& tensor, Distribution distribution, std::uint64_t seed, std::uint64_t stream,
                 int threads = 0);

}  // namespace flash
