// How Hopper's tensor cores add, bit for bit: the conformance test compared 114 688 sums of random 16-bit products with
// an H200's and found no difference (tests/conformance/data/nvidia-h200.txt).
//
// The products of 16 pairs are exact. They and the accumulator are aligned to the largest exponent among them, and what
// lies more than 2 bits behind the fp32 fraction is cut off; the sum of these is exact, and its conversion to fp32
// truncates. The form of the model is published (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA
// tensor cores", PeerJ CS 7:e330, 2021); block length, extra bits and truncation are what the comparison singled out.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "common/base/dtype.hpp"

namespace flash::sim {

inline constexpr int kTensorCoreTerms = 16;

/// An operand as ±magnitude · 2^(exponent - fraction bits). Zero has an exponent below every other's.
struct TensorCoreOperand {
  std::int32_t magnitude = 0;
  std::int32_t sign = 0;  // 0 or -1
  std::int32_t exponent = 0;
  float value = 0;  // for sums that are not finite
};

inline constexpr std::int32_t kZeroExponent = -10000;

template <typename Element>
constexpr int kFractionBits = std::is_same_v<Element, bfloat16> ? 7 : 10;

template <typename Element>
TensorCoreOperand tensor_core_operand(Element x) {
  constexpr int fraction = kFractionBits<Element>, bias = fraction == 10 ? 15 : 127;
  const int field = (x.bits & 0x7fff) >> fraction;
  const int magnitude = (x.bits & ((1 << fraction) - 1)) | (field != 0 ? 1 << fraction : 0);
  return {magnitude, x.bits >> 15 ? -1 : 0, magnitude == 0 ? kZeroExponent : std::max(field, 1) - bias, to_float(x)};
}

/// c + a[0]·b[0] + ... + a[15]·b[15], where all are finite.
template <typename Element>
float tensor_core_sum(const TensorCoreOperand* a, const TensorCoreOperand* b, float c) {
  constexpr int extra_bits = 2;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(c);
  const int field = int(bits >> 23 & 0xff);
  const std::int64_t c_magnitude = std::int64_t(bits & 0x7fffff) | (field != 0 ? 0x800000 : 0);
  const int c_exponent = c_magnitude == 0 ? 2 * kZeroExponent : std::max(field, 1) - 127;

  int largest = c_exponent;
  for (int i = 0; i < kTensorCoreTerms; ++i) largest = std::max(largest, a[i].exponent + b[i].exponent);
  if (largest <= kZeroExponent / 2) return 0.0f;  // every term is zero

  // Every term as a multiple of 2^last, cut off towards zero. `headroom` makes all shifts right shifts.
  const int last = largest - 23 - extra_bits;
  constexpr int headroom = 23 + extra_bits;
  const auto aligned = [&](std::int64_t magnitude, int exponent, int fraction_bits) {
    return (magnitude << headroom) >> std::min(headroom - (exponent - fraction_bits - last), 63);
  };
  const std::int64_t c_aligned = aligned(c_magnitude, c_exponent, 23);
  std::int64_t sum = bits >> 31 ? -c_aligned : c_aligned;
  for (int i = 0; i < kTensorCoreTerms; ++i) {
    const std::int64_t sign = a[i].sign ^ b[i].sign;
    const std::int64_t term =
        aligned(a[i].magnitude * b[i].magnitude, a[i].exponent + b[i].exponent, 2 * kFractionBits<Element>);
    sum += (term ^ sign) - sign;
  }
  if (sum == 0) return 0.0f;

  // To fp32: drop bits until the significand fits and the exponent is not below that of subnormal numbers.
  std::uint64_t magnitude = std::uint64_t(std::abs(sum));
  const int drop = std::max({64 - std::countl_zero(magnitude) - 24, -149 - last, 0});
  magnitude = drop > 63 ? 0 : magnitude >> drop;
  const double power = std::bit_cast<double>(std::uint64_t(last + drop + 1023) << 52);
  const float value = float(double(magnitude) * power);
  return sum < 0 ? -value : value;
}

/// What the 16 elements of a row of a, or of a column of b, are.
enum class Terms : char { zeros, finite, any };

inline Terms terms_of(const TensorCoreOperand* first) {
  Terms terms = Terms::zeros;
  for (int k = 0; k < kTensorCoreTerms; ++k) {
    if (!std::isfinite(first[k].value)) return Terms::any;
    if (first[k].magnitude != 0) terms = Terms::finite;
  }
  return terms;
}

/// The same for any operands: what is not finite in 16 terms goes through ordinary sums, for the same NaN or infinity.
/// Where all products are zero, as at the end of a sequence, c is the sum, and a zero has no sign.
template <typename Element>
float tensor_core_step(const TensorCoreOperand* a, const TensorCoreOperand* b, float c, Terms in_a, Terms in_b) {
  if (in_a != Terms::any && in_b != Terms::any && std::isfinite(c)) {
    return in_a == Terms::zeros || in_b == Terms::zeros ? c + 0.0f : tensor_core_sum<Element>(a, b, c);
  }
  for (int k = 0; k < kTensorCoreTerms; ++k) c += a[k].value * b[k].value;
  return c;
}

}  // namespace flash::sim
