#include "reference/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace flash {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The distance of `got` from `expected`: never NaN, so that a comparison with a limit decides.
double error_of(double got, double expected) {
  if (expected == -kInfinity && got == expected) return 0;
  if (!std::isfinite(got) || !std::isfinite(expected)) return kInfinity;
  return std::abs(got - expected);
}

/// As error_of, where anything that is not finite may stand for anything else that is not.
double error_of_class(double got, double expected) {
  if (!std::isfinite(got) && !std::isfinite(expected)) return 0;
  return error_of(got, expected);
}

/// The largest error of standard attention over the elements where both it and the reference are finite.
double standard_error(const std::vector<double>& standard, const std::vector<double>& reference) {
  double max_error = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(standard[i]) || !std::isfinite(reference[i])) continue;
    max_error = std::max(max_error, std::abs(standard[i] - reference[i]));
  }
  return max_error;
}

}  // namespace

CheckResult check_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                            const HostTensor& o, const std::vector<float>& lse, const std::vector<RowId>& rows,
                            bool lse_from_rounded_scores) {
  CheckResult result;
  result.rows_checked = std::int64_t(rows.size());
  result.rows_total = problem.batch * problem.heads * problem.seq_q;
  if (rows.empty()) throw std::invalid_argument("no rows to check");
  if (o.batch() != problem.batch || o.seq() != problem.seq_q || o.heads() != problem.heads ||
      o.dim() != problem.head_dim || std::int64_t(lse.size()) != result.rows_total) {
    throw std::invalid_argument(fmt::format("O or LSE has not the shape of the problem {}", problem.describe()));
  }
  const AttentionRows reference = reference_attention(problem, q, k, v, rows);
  const AttentionRows standard = standard_attention(problem, q, k, v, rows);
  result.limit_o = 2 * standard_error(standard.o, reference.o) + 1e-5;
  result.limit_lse = 1e-3 + (lse_from_rounded_scores ? 2 * standard_error(standard.lse, reference.lse) : 0);

  const auto note_failure = [&](const std::string& where, double got, double expected, double limit) {
    if (!result.first_failure.empty()) return;
    result.first_failure = fmt::format("{} is {:.6g}, expected {:.6g} within {:.2g}", where, got, expected, limit);
  };
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const RowId& row = rows[n];
    const bool empty_row = reference.lse[n] == -kInfinity;
    const double limit_o = empty_row ? 0 : result.limit_o;
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      const double got = o.at(row.batch, row.row, row.head, d);
      const double expected = reference.o[n * std::size_t(problem.head_dim) + std::size_t(d)];
      const double error = error_of_class(got, expected);
      result.max_error_o = std::max(result.max_error_o, error);
      if (!(error <= limit_o)) {
        note_failure(fmt::format("O[batch {}, row {}, head {}, dim {}]", row.batch, row.row, row.head, d), got,
                     expected, limit_o);
      }
    }
    const double got = lse[std::size_t((row.batch * problem.heads + row.head) * problem.seq_q + row.row)];
    const double expected = reference.lse[n];
    const double error = empty_row ? error_of(got, expected) : error_of_class(got, expected);
    result.max_error_lse = std::max(result.max_error_lse, error);
    if (!(error <= result.limit_lse)) {
      note_failure(fmt::format("LSE[batch {}, head {}, row {}]", row.batch, row.head, row.row), got, expected,
                   result.limit_lse);
    }
  }
  result.passed = result.first_failure.empty();
  return result;
}

}  // namespace flash
