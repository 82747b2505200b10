// Whether a kernel's O and LSE are right, written so that NaN cannot pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/host_tensor.hpp"
#include "common/base/problem.hpp"
#include "reference/attention.hpp"

namespace flash {

/// The outcome of a check. Errors are absolute and largest over the rows checked; infinite where an output that must
/// be finite is not, or one that must not be finite is.
struct CheckResult {
  bool passed = false;
  double max_error_o = 0, limit_o = 0;
  double max_error_lse = 0, limit_lse = 0;
  std::int64_t rows_checked = 0, rows_total = 0;
  std::string first_failure;  // one line: where, what was got and expected; empty if passed
};

/// Compares O [batch, seq_q, heads, head_dim] and LSE [batch, heads, seq_q] with the fp64 reference on `rows`.
///
/// O may err by twice the largest error of standard attention in the same precision on the same rows, plus 1e-5 (the
/// limit of FlashAttention's tests/test_flash_attn.py); LSE by 1e-3, plus, from a kernel that rounds its scores to 16
/// bits before the softmax (`lse_from_rounded_scores`), twice the largest error of standard attention's LSE. Where the
/// reference is NaN or infinite the output must not be finite (an fp32 kernel may meet 0 * inf where fp64 does not yet
/// underflow, so which of the two is not compared), and neither that element nor one where standard attention overflows
/// counts for the limit. Where LSE is -inf it must be -inf exactly, and O zero. Throws std::invalid_argument if a
/// tensor's shape is not the problem's, a row is outside it, or there are no rows.
CheckResult check_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                            const HostTensor& o, const std::vector<float>& lse, const std::vector<RowId>& rows,
                            bool lse_from_rounded_scores = false);

}  // namespace flash
