// Models of how tensor cores add: hardware does not round after each addition as IEEE 754 arithmetic would.
//
// What is published (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330,
// 2021; Li et al., "FTTN", 2024; Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores", arXiv 2512.07004): the
// products of a block of k are exact; they and the accumulator are shifted to the largest exponent among them, and what
// falls below a few bits behind the fp32 significand is cut off; the sum of these is exact, and its conversion to fp32
// truncates. The length of the block and the number of extra bits differ between generations.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/dtype.hpp"

namespace flash::test {

struct MmaModel {
  int block = 16;        // products that are added at once, with the sum of the block before
  int extra_bits = 2;    // kept behind the 23 of an fp32 fraction when the terms are aligned
  bool nearest = false;  // the sum is rounded to nearest even, not truncated
  std::string name() const {
    return "blocks of " + std::to_string(block) + ", " + std::to_string(extra_bits) + " extra bits, " +
           (nearest ? "rounded" : "truncated");
  }
};

/// What an H200 does, and the simulation (common/sim/tensor_core.hpp, written for speed; this one for reading).
inline constexpr MmaModel kHopper{16, 2, false};

/// A finite number as significand · 2^(exponent - fraction bits); a subnormal one keeps the smallest exponent.
struct Unpacked {
  std::int64_t significand;  // signed
  int exponent;
  int fraction_bits;
};

inline Unpacked unpack(std::uint16_t bits, DType dtype) {
  const int fraction_bits = dtype == DType::fp16 ? 10 : 7, bias = dtype == DType::fp16 ? 15 : 127;
  const int field = (bits & 0x7fff) >> fraction_bits;
  std::int64_t significand = bits & ((1 << fraction_bits) - 1);
  if (field != 0) significand |= std::int64_t(1) << fraction_bits;
  return {bits >> 15 ? -significand : significand, std::max(field, 1) - bias, fraction_bits};
}

inline Unpacked unpack(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const int field = int(bits >> 23 & 0xff);
  std::int64_t significand = bits & 0x7fffff;
  if (field != 0) significand |= 0x800000;
  return {bits >> 31 ? -significand : significand, std::max(field, 1) - 127, 23};
}

/// significand · 2^scale as fp32, truncated or rounded to nearest even.
inline float to_fp32(std::int64_t significand, int scale, bool nearest) {
  if (significand == 0) return 0.0f;
  std::uint64_t magnitude = std::uint64_t(std::abs(significand));
  // Drop bits until the significand fits and the exponent is not below that of subnormal numbers.
  const int drop = std::max(64 - std::countl_zero(magnitude) - 24, -149 - scale);
  if (drop > 62) return significand < 0 ? -0.0f : 0.0f;
  if (drop > 0) {
    const std::uint64_t rest = magnitude & ((std::uint64_t(1) << drop) - 1), half = std::uint64_t(1) << (drop - 1);
    magnitude >>= drop;
    scale += drop;
    if (nearest && (rest > half || (rest == half && magnitude % 2 == 1))) ++magnitude;
  }
  const double value = std::ldexp(double(magnitude), scale);  // exact: at most 25 bits
  return float(significand < 0 ? -value : value);
}

/// One element of d = a·b + c for finite operands: n elements of a row of a and of a column of b.
inline float mma_dot(const std::uint16_t* a, const std::uint16_t* b, int n, float c, DType dtype,
                     const MmaModel& model) {
  for (int first = 0; first < n; first += model.block) {
    const int count = std::min(model.block, n - first);
    Unpacked terms[17];
    int terms_count = 0, largest = -10000;
    const auto add = [&](const Unpacked& term) {
      if (term.significand == 0) return;
      terms[terms_count++] = term;
      largest = std::max(largest, term.exponent);
    };
    add(unpack(c));
    for (int i = first; i < first + count; ++i) {
      const Unpacked x = unpack(a[i], dtype), y = unpack(b[i], dtype);
      add({x.significand * y.significand, x.exponent + y.exponent, x.fraction_bits + y.fraction_bits});
    }
    if (terms_count == 0) {
      c = 0.0f;
      continue;
    }
    // Every term as a multiple of 2^last, cut off towards zero.
    const int last = largest - 23 - model.extra_bits;
    std::int64_t sum = 0;
    for (int i = 0; i < terms_count; ++i) {
      const std::int64_t magnitude = std::abs(terms[i].significand);
      const int shift = terms[i].exponent - terms[i].fraction_bits - last;
      const std::int64_t aligned = shift >= 0 ? magnitude << shift : shift < -62 ? 0 : magnitude >> -shift;
      sum += terms[i].significand < 0 ? -aligned : aligned;
    }
    c = to_fp32(sum, last, model.nearest);
  }
  return c;
}

/// The models that the measurement compares.
inline std::vector<MmaModel> mma_models() {
  std::vector<MmaModel> models;
  for (const int block : {4, 8, 16}) {
    for (const int extra_bits : {0, 1, 2, 3}) {
      for (const bool nearest : {false, true}) models.push_back({block, extra_bits, nearest});
    }
  }
  return models;
}

}  // namespace flash::test
