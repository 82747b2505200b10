// Whether a kernel's O and LSE are right, written so that NaN cannot pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/host_tensor.hpp"
#include "common/base/problem.hpp"
#include "reference/attention.hpp"

namespace flash {

/// The outcome of a check. Limits differ between rows: each error is that which comes nearest to its limit, with this
/// limit; absolute, and infinite where an output that must be finite is not, or one that must not be finite is.
struct CheckResult {
  bool passed = false;
  double max_error_o = 0, limit_o = 0;
  double max_error_lse = 0, limit_lse = 0;
  std::int64_t rows_checked = 0, rows_total = 0;
  std::string first_failure;  // one line: where, what was got and expected; empty if passed
};

/// Compares O [batch, seq_q, heads, head_dim] and LSE [batch, heads, seq_q] with the fp64 reference on `rows`.
///
/// The yardstick is standard attention in the same precision on the same rows, with scores in fp32, or rounded to 16
/// bits if the kernel rounds its scores before the softmax (`lse_from_rounded_scores`). A standard attention that is
/// not finite widens nothing.
///
/// O may err by twice the yardstick's largest error and half a spacing of the output's type at the row's largest |O|,
/// by one spacing at least, plus 1e-5 for sums in fp32. This is the limit of FlashAttention's tests/test_flash_attn.py,
/// and a floor: of what the yardstick gets exactly a right kernel may still round P one way and O another.
///
/// LSE may err by what fp32 may make of the scores that have weight (BoundedRows::lse_error), of the sum of
/// exponentials and of its logarithm (lse_rounding in check.cpp), plus twice the yardstick's error: that in the same
/// row, or the largest over all rows where scores are rounded.
///
/// Where fp32 cannot tell a row's scores apart (they are so large that their neighbours in fp32 differ by more than the
/// rounding of P does) O is right if it lies within the limit of a value that softmax gives for scores that are off by
/// what fp32 may do to them: between the values of the keys that may then have weight. Keys that are all alike stay
/// alike, so that their O is the mean of V and nothing else. Scores that fp32 cannot hold at all (beyond 3.4e38 before
/// the scale) are not excused: the kernel fails.
///
/// Where the reference is NaN or infinite the output must not be finite (an fp32 kernel may meet 0 * inf where fp64
/// does not yet underflow, so which of the two is not compared). Where LSE is -inf it must be -inf exactly, and O zero.
/// Where rounded scores leave the range of their type, so that standard attention's LSE is not finite, a kernel that
/// rounds its scores is held to standard attention in the place of the reference.
///
/// Throws std::invalid_argument if a tensor's shape is not the problem's, a row is outside it, or there are no rows.
CheckResult check_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                            const HostTensor& o, const std::vector<float>& lse, const std::vector<RowId>& rows,
                            bool lse_from_rounded_scores = false);

}  // namespace flash
