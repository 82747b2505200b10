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

/// Standard attention in the precision of the problem's dtype, as FlashAttention's own tests take it for their limit
/// (tests/test_flash_attn.py there, attention_ref with upcast=False): S, P and O are each rounded to the dtype, and
/// computed from rounded values in fp32; LSE is that of the rounded S. Arguments as for reference_attention.
AttentionRows standard_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                 const std::vector<RowId>& rows);

}  // namespace flash
