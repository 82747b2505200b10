// Arithmetic helpers of the simulated GPU; the twin of common/ptx/math.hpp. Exponentials are counted.
#pragma once

#include <cmath>

#include "common/base/dtype.hpp"
#include "common/sim/block.hpp"

namespace flash::sim {

/// 2^x; on a GPU ex2.approx.ftz.f32 (about 2 units in the last place).
inline float exp2_approx(float x) {
  this_block().counters().exponentials += 1;
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;  // subnormal results are flushed
}

/// e^x as 2^(x·log2 e).
inline float exp_approx(float x) { return exp2_approx(x * 1.4426950408889634f); }

/// Natural logarithm; on a GPU lg2.approx.f32 times ln 2.
inline float log_approx(float x) { return std::log(x); }

using std::isinf;

/// The larger one; of a number and a NaN the number, +0 is larger than -0.
inline float fmaxf(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
inline float fminf(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }

/// a·b rounded on its own, as everything here is.
inline float multiply_rounded(float a, float b) { return a * b; }
inline float fabsf(float x) { return std::fabs(x); }

inline float infinity() { return INFINITY; }

}  // namespace flash::sim
