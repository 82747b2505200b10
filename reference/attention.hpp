// Attention computed on the host for checking: in fp64, and as standard attention in the precision of the input, whose
// error says how much a kernel of that precision may err. Both for chosen rows, because a large problem cannot be
// checked in full.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "common/base/host_tensor.hpp"
#include "common/base/problem.hpp"

namespace flash {

/// One query row of one head.
struct RowId {
  std::int64_t batch, head, row;
  auto operator<=>(const RowId&) const = default;
};

/// Problems of at most this many (row, key) pairs over all batches and heads are checked in full.
inline constexpr std::int64_t kFullCheckPairs = std::int64_t(1) << 24;

/// Every row, ordered by batch, head and row.
std::vector<RowId> all_rows(const Problem& problem);

/// The rows to check, ordered and each once: all rows of a problem of at most kFullCheckPairs; otherwise about `count`:
/// the first and the last row of the corner heads; in the first and the last head the rows at `tiles`' edges near both
/// ends of the sequence, and around the first row that sees a key; the rest, half of it at tile edges, drawn by a fixed
/// seed and spread over all batches and heads. Causal problems have the first rows that see a key of up to 64 heads
/// besides.
std::vector<RowId> sample_rows(const Problem& problem, std::int64_t count = 256,
                               const std::vector<std::int64_t>& tiles = {16, 64, 128});

/// O and LSE of some rows, in the order in which these were asked for.
struct AttentionRows {
  std::vector<double> o;    // [rows, head_dim]
  std::vector<double> lse;  // [rows], natural logarithm
};

/// O = softmax(scale Q K^T) V and LSE = log(sum exp(scale Q K^T)) in fp64 for `rows`.
///
/// q is [batch, seq_q, heads, head_dim], k and v are [batch, seq_kv, kv_heads, head_dim]. A row that sees no key, or
/// only keys whose score is -inf, gives O = 0 and LSE = -inf. NaN and infinity go as fp64 arithmetic takes them (a
/// score of +inf makes its row NaN), and only from keys that the row sees. Throws std::invalid_argument if a tensor's
/// shape is not the problem's or a row is outside it.
AttentionRows reference_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                  const std::vector<RowId>& rows);

/// Half a spacing of numbers of the type, relative to them: what rounding to it may change.
constexpr double relative_rounding(DType dtype) { return dtype == DType::fp16 ? 0x1p-11 : 0x1p-8; }

/// By how much a score may be off that is computed in fp32 in any order, relative to scale * sum over d of |q_d k_d|.
/// With u = 2^-24, half a spacing of fp32: products of 16-bit numbers are exact, each of d additions errs by at most u
/// of a partial sum. Tensor cores add 16 products at a time and cut off 17 terms 2 bits behind the fp32 fraction, and
/// the sum at its end (common/sim/tensor_core.hpp): (17/4 + 1) 2u for 16 terms, 0.66 u for one. Six roundings follow:
/// those of scale, of log2(e), of their product, of the product with the score, and of ln(2) and its product on the way
/// back from base 2.
constexpr double score_error(std::int64_t head_dim) { return double(head_dim + 6) * 0x1p-24; }

/// The reference, and what it may become if each score is off by what score_error allows.
struct BoundedRows : AttentionRows {
  std::vector<double> lse_error;      // [rows]
  std::vector<double> o_low, o_high;  // [rows, head_dim]
};

/// reference_attention, with bounds. lse_error is LSE(s + b) - LSE(s) with each score's error b: keys without weight do
/// not count. In rows where it is less than what the rounding of P to 16 bits changes (relative_rounding) o_low and
/// o_high are O: fp32 tells their scores apart. In others they are the bounds of O for scores that are off by b. A row
/// whose scores fp32 cannot tell apart at all has the least and the largest value among the keys that may have any
/// weight. Keys whose elements are all the same have one error in common: of keys that are all alike O is the mean of V
/// and nothing else, however large their score is.
BoundedRows reference_with_bounds(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                  const std::vector<RowId>& rows);

/// Standard attention in the precision of the problem's dtype, as FlashAttention's own tests take it for their limit
/// (tests/test_flash_attn.py there, attention_ref with upcast=False): S, P and O are each rounded to the dtype, and
/// computed from rounded values in fp32; LSE is that of the rounded S. Without `round_scores` S stays in fp32.
/// Arguments as for reference_attention.
AttentionRows standard_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                 const std::vector<RowId>& rows, bool round_scores = true);

}  // namespace flash
