// The 16-bit element types against double arithmetic, and host tensors with their random contents.
#include "common/base/host_tensor.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "common/base/error.hpp"
#include "tests/catch.hpp"

using namespace flash;

namespace {

/// A binary floating-point format, decoded from its definition in double arithmetic.
struct Format {
  int exponent_bits, mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }

  /// The value of a magnitude (no sign); that of infinity() is the power of two that would come next.
  double value(unsigned magnitude) const {
    const int exponent = int(magnitude >> mantissa_bits);
    const int mantissa = int(magnitude & ((1u << mantissa_bits) - 1));
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias() - mantissa_bits);
  }

  /// The bits nearest to `x`, ties to even, by search among the values.
  unsigned nearest(double x) const {
    const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
    const double magnitude = std::abs(x);
    if (magnitude >= value(infinity())) return sign | infinity();
    unsigned low = 0, high = infinity();  // value(low) <= magnitude < value(high)
    while (high - low > 1) {
      const unsigned middle = (low + high) / 2;
      (value(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - value(low), above = value(high) - magnitude;
    return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
  }
};

constexpr Format kHalf{5, 10};
constexpr Format kBrain{8, 7};

template <typename T>
void check_decoding(const Format& format) {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const unsigned magnitude = bits & 0x7fffu;
    const float got = to_float(T{std::uint16_t(bits)});
    if (magnitude > format.infinity()) {
      wrong += !std::isnan(got);
    } else {
      const double value =
          magnitude == format.infinity() ? std::numeric_limits<double>::infinity() : format.value(magnitude);
      wrong += double(got) != (bits & 0x8000u ? -value : value) || std::signbit(got) != bool(bits & 0x8000u);
    }
  }
  CHECK(wrong == 0);
}

template <typename T>
void check_encoding(const Format& format, const std::vector<float>& values) {
  int wrong = 0;
  for (const float x : values) {
    if (!std::isnan(x)) wrong += from_float<T>(x).bits != format.nearest(x);
  }
  CHECK(wrong == 0);
}

/// Each value of the format, each tie between neighbours, and the floats on both sides of these, of both signs.
std::vector<float> values_and_ties(const Format& format) {
  std::vector<float> values;
  for (unsigned magnitude = 0; magnitude < format.infinity(); ++magnitude) {
    const double value = format.value(magnitude);
    for (const double x : {value, (value + format.value(magnitude + 1)) / 2}) {
      const float f = float(x);
      for (const float y : {f, std::nextafter(f, 0.0f), std::nextafter(f, std::numeric_limits<float>::infinity())}) {
        values.push_back(y);
        values.push_back(-y);
      }
    }
  }
  return values;
}

/// Floats of all exponents: bits drawn uniformly, with the special ones.
std::vector<float> arbitrary_floats() {
  std::vector<float> values{0.0f,
                            -0.0f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min()};
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) values.push_back(std::bit_cast<float>(std::uint32_t(random())));
  // The exponents where binary16 has values, its subnormals and its overflow: 2^-27 to 2^18.
  for (int i = 0; i < 1000000; ++i) {
    const std::uint32_t exponent = 100 + random() % 46;
    values.push_back(std::bit_cast<float>((std::uint32_t(random()) & 0x807fffffu) | (exponent << 23)));
  }
  return values;
}

struct Moments {
  double mean = 0, variance = 0, kurtosis = 0, largest = 0;
};

Moments moments(const HostTensor& tensor) {
  Moments m;
  const double n = double(tensor.elements());
  for (std::int64_t i = 0; i < tensor.elements(); ++i) m.mean += tensor.decode(tensor.bits()[i]) / n;
  double fourth = 0;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double x = tensor.decode(tensor.bits()[i]) - m.mean;
    m.variance += x * x / n;
    fourth += x * x * x * x / n;
    m.largest = std::max(m.largest, std::abs(x));
  }
  m.kurtosis = fourth / (m.variance * m.variance);
  return m;
}

double correlation(const HostTensor& a, std::int64_t shift, const HostTensor& b) {
  double sum = 0;
  const std::int64_t n = a.elements() - shift;
  for (std::int64_t i = 0; i < n; ++i) sum += double(a.decode(a.bits()[i + shift])) * b.decode(b.bits()[i]);
  return sum / double(n);
}

bool same_bits(const HostTensor& a, const HostTensor& b) {
  return a.elements() == b.elements() && std::equal(a.bits(), a.bits() + a.elements(), b.bits());
}

}  // namespace

TEST_CASE("every 16-bit pattern decodes to the value its format defines", "[dtype]") {
  check_decoding<float16>(kHalf);
  check_decoding<bfloat16>(kBrain);
}

TEST_CASE("every 16-bit value survives the way to float and back", "[dtype]") {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const float16 half{std::uint16_t(bits)};
    const bfloat16 brain{std::uint16_t(bits)};
    wrong += !std::isnan(to_float(half)) && to_float16(to_float(half)).bits != bits;
    wrong += !std::isnan(to_float(brain)) && to_bfloat16(to_float(brain)).bits != bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("rounding goes to the nearest value and ties go to even", "[dtype]") {
  check_encoding<float16>(kHalf, values_and_ties(kHalf));
  check_encoding<bfloat16>(kBrain, values_and_ties(kBrain));
}

TEST_CASE("arbitrary floats round to the nearest value", "[dtype]") {
  const std::vector<float> values = arbitrary_floats();
  check_encoding<float16>(kHalf, values);
  check_encoding<bfloat16>(kBrain, values);
}

TEST_CASE("overflow rounds to infinity where the tie above the largest value begins", "[dtype]") {
  CHECK(to_float16(65504.0f).bits == 0x7bff);
  CHECK(to_float16(std::nextafter(65520.0f, 0.0f)).bits == 0x7bff);
  CHECK(to_float16(65520.0f).bits == 0x7c00);
  CHECK(to_float16(-65520.0f).bits == 0xfc00);
  CHECK(to_bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(to_bfloat16(std::bit_cast<float>(0x7f7f7fffu)).bits == 0x7f7f);
}

TEST_CASE("every NaN stays a NaN", "[dtype]") {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    CHECK(std::isnan(to_float(to_float16(std::bit_cast<float>(bits)))));
    CHECK(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(bits)))));
  }
}

TEST_CASE("a host tensor is contiguous in the order batch, sequence, head, dim", "[host_tensor]") {
  HostTensor tensor(DType::fp16, 2, 3, 4, 5);
  CHECK(tensor.elements() == 120);
  CHECK(tensor.bytes() == 240);
  CHECK(tensor.at(1, 2, 3, 4) == 0.0f);
  tensor.set(1, 2, 3, 4, 1.5f);
  tensor.set(0, 1, 0, 2, -0.25f);
  CHECK(tensor.bits()[119] == 0x3e00);
  CHECK(tensor.bits()[22] == 0xb400);
  CHECK(tensor.at(1, 2, 3, 4) == 1.5f);

  const TensorRef ref = tensor.ref("Q");
  CHECK(ref.data == tensor.bits());
  CHECK(ref.span_bytes() == 240);
  CHECK(tensor.index(1, 2, 3, 4) == std::size_t(ref.batch_stride + 2 * ref.row_stride + 3 * ref.head_stride + 4));
}

TEST_CASE("a host tensor stores its own element type", "[host_tensor]") {
  HostTensor tensor(DType::bf16, 1, 1, 1, 1);
  tensor.set(0, 0, 0, 0, 1.0f + 0x1p-9f);
  CHECK(tensor.bits()[0] == 0x3f80);
  tensor.set(0, 0, 0, 0, 1e30f);
  CHECK(std::abs(tensor.at(0, 0, 0, 0) - 1e30f) < 0.01f * 1e30f);
}

TEST_CASE("a host tensor without extent or beyond any memory is refused", "[host_tensor]") {
  CHECK_THROWS_AS(HostTensor(DType::fp16, 0, 1, 1, 1), UsageError);
  CHECK_THROWS_AS(HostTensor(DType::fp16, 1, -1, -1, 1), UsageError);
  CHECK_THROWS_AS(HostTensor(DType::fp16, std::int64_t(1) << 40, std::int64_t(1) << 40, 1, 1), UsageError);
  CHECK_THROWS_AS(HostTensor(DType::fp16, std::int64_t(1) << 60, 1, 1, 1), UsageError);
}

TEST_CASE("normal input has mean 0, variance 1 and a normal's tails", "[host_tensor]") {
  HostTensor tensor(DType::fp16, 1, 1000, 10, 100);
  fill_random(tensor, Distribution::normal, 0, 0);
  const Moments m = moments(tensor);
  CHECK(std::abs(m.mean) < 0.005);
  CHECK(std::abs(m.variance - 1) < 0.01);
  CHECK(std::abs(m.kurtosis - 3) < 0.05);
  CHECK(m.largest > 4.5);
  CHECK(m.largest < 6.8);
  CHECK(std::abs(correlation(tensor, 1, tensor)) < 0.005);
  CHECK(std::abs(correlation(tensor, 2, tensor)) < 0.005);
}

TEST_CASE("outliers are one in a thousand with a variance of 100 more", "[host_tensor]") {
  HostTensor normal(DType::fp16, 1, 1000, 10, 100), outliers(DType::fp16, 1, 1000, 10, 100);
  fill_random(normal, Distribution::normal, 0, 0);
  fill_random(outliers, Distribution::outliers, 0, 0);
  int changed = 0;
  double variance = 0;
  for (std::int64_t i = 0; i < normal.elements(); ++i) {
    const double added = double(outliers.decode(outliers.bits()[i])) - normal.decode(normal.bits()[i]);
    changed += added != 0;
    variance += added * added;
  }
  CHECK(changed > 900);
  CHECK(changed < 1100);
  CHECK(std::abs(variance / changed - 100) < 15);
}

TEST_CASE("random input does not depend on the number of threads", "[host_tensor]") {
  for (const Distribution distribution : {Distribution::normal, Distribution::outliers}) {
    HostTensor one(DType::bf16, 1, 333, 7, 101);  // several slices, the last one odd
    fill_random(one, distribution, 7, 2, 1);
    for (const int threads : {0, 2, 3, 16}) {
      HostTensor many(DType::bf16, 1, 333, 7, 101);
      fill_random(many, distribution, 7, 2, threads);
      CHECK(same_bits(one, many));
    }
  }
}

TEST_CASE("seeds and streams give unrelated values", "[host_tensor]") {
  HostTensor base(DType::fp16, 1, 100, 10, 100), seed(DType::fp16, 1, 100, 10, 100),
      stream(DType::fp16, 1, 100, 10, 100);
  fill_random(base, Distribution::normal, 0, 0);
  fill_random(seed, Distribution::normal, 1, 0);
  fill_random(stream, Distribution::normal, 0, 1);
  CHECK(std::abs(correlation(base, 0, seed)) < 0.02);
  CHECK(std::abs(correlation(base, 0, stream)) < 0.02);
  CHECK(std::abs(correlation(seed, 0, stream)) < 0.02);
}

TEST_CASE("parallel_for calls each index once and passes an exception on", "[host_tensor]") {
  std::vector<int> calls(1000, 0);
  parallel_for(1000, 4, [&](std::int64_t i) { ++calls[std::size_t(i)]; });
  CHECK(std::all_of(calls.begin(), calls.end(), [](int n) { return n == 1; }));
  parallel_for(0, 4, [](std::int64_t) { throw std::logic_error("called"); });
  CHECK_THROWS_AS(parallel_for(10, 4,
                               [](std::int64_t i) {
                                 if (i == 3) throw std::runtime_error("body");
                               }),
                  std::runtime_error);
}
