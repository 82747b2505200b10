// The online softmax of score tiles that lie in accumulators: mask, maximum, exponentials, rescale. Shared by the
// chapters whose products run on mma.sync.
//
// Scores are exponentiated in base 2: exp(scale·s − m) = exp2(scale_log2·s − m·log2 e) with scale_log2 = scale·log2 e
// is one fused multiply-add and the instruction that the hardware has. So `m` here is a maximum in units of log2.
//
// The fused multiply-add takes scale_log2·s as it is, but m was rounded: the largest exponent of a row is not 0 but the
// rounding error of m. While m is below 2^24 that is at most 1/2, a factor on all of a row's exponentials that the
// final division takes out. Beyond 2^31 it is more than 128, and the exponentials are infinite or 0: there scores are
// rounded as m was before it is subtracted (score_factor).
#pragma once

#include <cfloat>

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/fragments.hpp"

namespace flash::MACHINE {

constexpr float Ln2 = 0.6931471805599453f;

/// The maximum of a row that has seen no key. Finite, so that −inf scores give exp2(−inf + FLT_MAX) = 0 and not NaN.
constexpr float NothingSeen = -FLT_MAX;

/// By how much (2^8) a score may exceed the maximum that is subtracted before update_maximum raises it: exponentials
/// are then at most 256, which 16-bit floats hold as precisely as 1, and the final division takes the factor out.
constexpr float RescaleThreshold = 8.0f;

/// Maxima from here on (in units of log2) have a rounding error that shows in the exponentials.
constexpr float LargeMaximum = 16777216.0f;  // 2^24

/// Scores of keys that their row does not see become −inf, those past the end of K among them. S begins at query row
/// `q_row` and key `key`.
template <int RowTiles, int KeyTiles>
__device__ __forceinline__ void mask_scores(Accumulator (&S)[RowTiles][KeyTiles], const AttentionShape& shape,
                                            int q_row, int key) {
  // From `key` on, the first row sees this many, each row one more than the row before it, and none more than `keys`.
  const int first_row_sees = (shape.causal ? q_row + 1 + shape.seq_kv - shape.seq_q : shape.seq_kv) - key;
  const int keys = shape.seq_kv - key;
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int visible = min(first_row_sees + 16 * r + Accumulator::row(h), keys) - Accumulator::column(0);
#pragma unroll
      for (int c = 0; c < KeyTiles; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (8 * c + i >= visible) S[r][c].value[2 * h + i] = -infinity();
        }
      }
    }
  }
}

/// Whether the rounding of m shows in exponentials relative to it; not that of a row that has seen nothing.
__device__ __forceinline__ bool is_large(float m) { return fabsf(m) >= LargeMaximum && m != NothingSeen; }

/// The largest of this lane's scores in row Accumulator::row(h).
template <int KeyTiles>
__device__ __forceinline__ float lane_maximum(const Accumulator (&S)[KeyTiles], int h) {
  float maximum = fmaxf(S[0].value[2 * h], S[0].value[2 * h + 1]);
#pragma unroll
  for (int c = 1; c < KeyTiles; ++c) maximum = fmaxf(maximum, fmaxf(S[c].value[2 * h], S[c].value[2 * h + 1]));
  return maximum;
}

/// The largest of row Accumulator::row(h), in each of the four lanes that share the row.
template <int KeyTiles>
__device__ __forceinline__ float row_maximum(const Accumulator (&S)[KeyTiles], int h, Site site = Site::here()) {
  const CalledFrom from(site);
  return quad_max(lane_maximum(S, h));
}

/// What exponentiate multiplies S with: scale_log2. Where the maximum of a row of the warp is large, S becomes
/// scale_log2·S here, rounded as the maximum was, and the factor is 1.
template <int RowTiles, int KeyTiles>
__device__ __forceinline__ float score_factor(Accumulator (&S)[RowTiles][KeyTiles], const float (&m)[RowTiles][2],
                                              float scale_log2, Site site = Site::here()) {
  const CalledFrom from(site);
  bool large = false;
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) large |= is_large(m[r][h]);
  }
  if (!__any_sync(0xffffffffu, large)) return scale_log2;
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int c = 0; c < KeyTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) S[r][c].value[i] = multiply_rounded(S[r][c].value[i], scale_log2);
    }
  }
  return 1.0f;
}

/// P = exp2(factor·S − m) for 16 rows and 16 keys (two neighbouring accumulators), rounded to elements; this lane's
/// part of the row sums is added to l. `factor` is score_factor's.
template <typename Element>
__device__ __forceinline__ FragmentA exponentiate(Accumulator* S, const float (&m)[2], float (&l)[2], float factor) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      S[c].value[i] = exp2_approx(fmaf(S[c].value[i], factor, -m[i / 2]));
      l[i / 2] += S[c].value[i];
    }
  }
  return round_to_a<Element>(S);
}

/// O and l, which are relative to m, become relative to m_new: O = O·exp(m − m'), l = l·exp(m − m'), m = m'.
template <int RowTiles, int ColTiles>
__device__ __forceinline__ void rescale(Accumulator (&O)[RowTiles][ColTiles], float (&l)[RowTiles][2],
                                        float (&m)[RowTiles][2], const float (&m_new)[RowTiles][2]) {
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float factor = exp2_approx(m[r][h] - m_new[r][h]);
      m[r][h] = m_new[r][h];
      l[r][h] *= factor;
#pragma unroll
      for (int c = 0; c < ColTiles; ++c) O[r][c].scale_row(h, factor);
    }
  }
}

/// Whether a score of this lane exceeds its row's m by so much that m must be raised, or m is large; `maximum` becomes
/// the lane's maximum of each row.
template <int RowTiles, int KeyTiles>
__device__ __forceinline__ bool exceeds_maximum(float (&maximum)[RowTiles][2], const float (&m)[RowTiles][2],
                                                const Accumulator (&S)[RowTiles][KeyTiles], float scale_log2) {
  bool exceeds = false;
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      maximum[r][h] = lane_maximum(S[r], h);
      // Not is_large(m): a row that has seen nothing only takes the longer way, and this is in every tile's path.
      exceeds |= fmaf(maximum[r][h], scale_log2, -m[r][h]) > RescaleThreshold || fabsf(m[r][h]) >= LargeMaximum;
    }
  }
  return exceeds;
}

/// Raises m to the maximum of S and rescales O and l, for all rows of the warp, if a score of one of them exceeds its m
/// by more than the threshold. Most tiles have none: they cost the comparison, and no exchange between lanes. Returns
/// score_factor's.
template <int RowTiles, int KeyTiles, int ColTiles>
__device__ __forceinline__ float update_maximum(Accumulator (&O)[RowTiles][ColTiles], float (&l)[RowTiles][2],
                                                float (&m)[RowTiles][2], Accumulator (&S)[RowTiles][KeyTiles],
                                                float scale_log2, Site site = Site::here()) {
  const CalledFrom from(site);
  float m_new[RowTiles][2];
  const bool to_do = exceeds_maximum(m_new, m, S, scale_log2);
  if (!__any_sync(0xffffffffu, to_do)) return scale_log2;
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) m_new[r][h] = fmaxf(m[r][h], multiply_rounded(quad_max(m_new[r][h]), scale_log2));
  }
  rescale(O, l, m, m_new);
  return score_factor(S, m, scale_log2);
}

/// The same in two steps, for where O is in use: raises m and rescales l, and says whether O is to be rescaled by
/// `rescaling`, the same in all lanes of the warp. `factor` becomes score_factor's.
template <int RowTiles, int KeyTiles>
__device__ __forceinline__ bool raise_maximum(float (&l)[RowTiles][2], float (&m)[RowTiles][2],
                                              Accumulator (&S)[RowTiles][KeyTiles], float scale_log2,
                                              float (&rescaling)[RowTiles][2], float& factor,
                                              Site site = Site::here()) {
  const CalledFrom from(site);
  float m_new[RowTiles][2];
  const bool to_do = exceeds_maximum(m_new, m, S, scale_log2);
  factor = scale_log2;
  if (!__any_sync(0xffffffffu, to_do)) return false;
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      m_new[r][h] = fmaxf(m[r][h], multiply_rounded(quad_max(m_new[r][h]), scale_log2));
      rescaling[r][h] = exp2_approx(m[r][h] - m_new[r][h]);
      m[r][h] = m_new[r][h];
      l[r][h] *= rescaling[r][h];
    }
  }
  factor = score_factor(S, m, scale_log2);
  return true;
}

/// Each row of O times its factor.
template <int RowTiles, int ColTiles>
__device__ __forceinline__ void rescale_output(Accumulator (&O)[RowTiles][ColTiles],
                                               const float (&rescaling)[RowTiles][2]) {
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < ColTiles; ++c) O[r][c].scale_row(h, rescaling[r][h]);
    }
  }
}

/// S = exp2(factor·S − m) in place, not rounded yet; l as exponentiate has it.
template <int KeyTiles>
__device__ __forceinline__ void exponentiate_in_place(Accumulator (&S)[KeyTiles], const float (&m)[2], float (&l)[2],
                                                      float factor) {
#pragma unroll
  for (int c = 0; c < KeyTiles; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      S[c].value[i] = exp2_approx(fmaf(S[c].value[i], factor, -m[i / 2]));
      l[i / 2] += S[c].value[i];
    }
  }
}

/// The same relative to m as it is, before S is compared with it; `sums` are of these scores alone, and begin at 0.
/// False, and S is lost, if a score exceeds its row's m by more than the threshold, or m is large: a sum that is at
/// most what its terms may be at most together has no larger term, and P is still within what 16-bit floats hold.
template <int KeyTiles>
__device__ __forceinline__ bool try_exponentiate(Accumulator (&S)[KeyTiles], const float (&m)[2], float (&sums)[2],
                                                 float scale_log2) {
  constexpr float Limit = 2 * KeyTiles * 256.0f;  // 2^RescaleThreshold for each
  exponentiate_in_place(S, m, sums, scale_log2);
  bool done = true;
#pragma unroll
  for (int h = 0; h < 2; ++h) done &= sums[h] <= Limit && fabsf(m[h]) < LargeMaximum;  // not so for NaN
  return done;
}

/// 1 / l, what a row's sums are multiplied with at the end; 0 for a row that saw nothing (its O is 0).
__device__ __forceinline__ float inverse_sum(float l) { return l == 0.0f ? 0.0f : 1.0f / l; }

/// LSE = m + log(l), in natural units; −inf for a row that saw nothing.
__device__ __forceinline__ float log_sum_exp(float m, float l) {
  return l == 0.0f ? -infinity() : m * Ln2 + log_approx(l);
}

}  // namespace flash::MACHINE
