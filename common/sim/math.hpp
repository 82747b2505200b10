// Arithmetic helpers of the simulated GPU; the twin of common/ptx/math.hpp. Exponentials are counted.
#pragma once

#include <cmath>

#include "common/dtype.hpp"
#include "common/sim/block.hpp"

namespace flash::sim {

/// 2^x; on a GPU ex2.approx.ftz.f32 (about 2 units in the last place).
inline float exp2_approx(float x) {
  this_block().counters().exponentials += 1;
  return std::exp2(x);
}

/// e^x as 2^(x·log2 e).
inline float exp_approx(float x) { return exp2_approx(x * 1.4426950408889634f); }

/// Natural logarithm; on a GPU lg2.approx.f32 times ln 2.
inline float log_approx(float x) { return std::log(x); }

using std::isinf;

inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline float fminf(float a, float b) { return std::fmin(a, b); }
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }

inline float infinity() { return INFINITY; }

}  // namespace flash::sim
