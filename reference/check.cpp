#include "reference/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace flash {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The distance of `got` from the interval: never NaN, so that a comparison with a limit decides.
double error_of(double got, double low, double high) {
  if (low == -kInfinity && got == low) return 0;
  if (!std::isfinite(got) || !std::isfinite(low) || !std::isfinite(high)) return kInfinity;
  return std::max({0.0, low - got, got - high});
}

/// As error_of, where anything that is not finite may stand for anything else that is not.
double error_of_class(double got, double low, double high) {
  if (!std::isfinite(got) && !std::isfinite(low)) return 0;
  return error_of(got, low, high);
}

/// The largest error over the elements where both sides are finite.
double finite_error(const std::vector<double>& got, const std::vector<double>& low, const std::vector<double>& high) {
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isfinite(got[i]) && std::isfinite(low[i])) largest = std::max(largest, error_of(got[i], low[i], high[i]));
  }
  return largest;
}

/// The distance between numbers of the type at x's magnitude.
double spacing(DType dtype, double x) {
  const int fraction_bits = dtype == DType::fp16 ? 10 : 7, least_exponent = dtype == DType::fp16 ? -14 : -126;
  return std::ldexp(1.0, (x == 0 ? least_exponent : std::max(std::ilogb(x), least_exponent)) - fraction_bits);
}

/// What correct fp32 arithmetic may add to the error of a row's scores in its LSE; see check.hpp.
double lse_rounding(std::int64_t visible, double lse) {
  constexpr double kHalfSpacing = 0x1p-24;
  const double n = double(std::max<std::int64_t>(visible, 1));
  return kHalfSpacing * (4 * std::abs(lse) + 10 * std::sqrt(n) + 4 * (std::log(n) + 6));
}

/// The error that comes nearest to its limit.
struct Nearest {
  double error = 0, limit = 0, share = -1;
  void take(double e, double l) {
    const double s = e == 0 ? 0 : e / l;
    if (s > share) error = e, limit = l, share = s;
  }
};

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
  const BoundedRows reference = reference_with_bounds(problem, q, k, v, rows);
  const AttentionRows standard = standard_attention(problem, q, k, v, rows, lse_from_rounded_scores);
  const double standard_o = finite_error(standard.o, reference.o_low, reference.o_high);
  const double standard_lse = finite_error(standard.lse, reference.lse, reference.lse);

  const auto note_failure = [&](const std::string& where, double got, double expected, double limit) {
    if (!result.first_failure.empty()) return;
    result.first_failure = fmt::format("{} is {:.9g}, expected {:.9g} within {:.2g}", where, got, expected, limit);
  };
  Nearest nearest_o, nearest_lse;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const RowId& row = rows[n];
    const std::size_t first = n * std::size_t(problem.head_dim);
    // Where scores leave the range of the 16 bits that the chapter rounds them to, standard attention is what is right.
    const bool out_of_range =
        lse_from_rounded_scores && std::isfinite(reference.lse[n]) && !std::isfinite(standard.lse[n]);
    const AttentionRows& expected = out_of_range ? standard : reference;
    const std::vector<double>& low = out_of_range ? standard.o : reference.o_low;
    const std::vector<double>& high = out_of_range ? standard.o : reference.o_high;

    const bool empty_row = expected.lse[n] == -kInfinity;
    double magnitude = 0;
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      const double o_d = std::abs(expected.o[first + std::size_t(d)]);
      if (std::isfinite(o_d)) magnitude = std::max(magnitude, o_d);
    }
    const double limit_o = empty_row ? 0 : std::max(2 * standard_o + 1e-5, spacing(problem.dtype, magnitude));
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      const double got = o.at(row.batch, row.row, row.head, d);
      const std::size_t i = first + std::size_t(d);
      const double error = error_of_class(got, low[i], high[i]);
      nearest_o.take(error, limit_o);
      if (!(error <= limit_o)) {
        note_failure(fmt::format("O[batch {}, row {}, head {}, dim {}]", row.batch, row.row, row.head, d), got,
                     expected.o[i], limit_o);
      }
    }

    const double lse_n = expected.lse[n];
    // A kernel's own sums in fp32 are as long as those of standard attention in this row, its scores as rounded as all.
    const double standard_lse_n = lse_from_rounded_scores          ? standard_lse
                                  : std::isfinite(standard.lse[n]) ? error_of(standard.lse[n], lse_n, lse_n)
                                                                   : 0;
    const double limit_lse = !std::isfinite(lse_n) ? 0
                                                   : reference.lse_error[n] + 2 * standard_lse_n +
                                                         lse_rounding(problem.visible_keys(row.row), lse_n);
    const double got = lse[std::size_t((row.batch * problem.heads + row.head) * problem.seq_q + row.row)];
    const double error = empty_row ? error_of(got, lse_n, lse_n) : error_of_class(got, lse_n, lse_n);
    nearest_lse.take(error, limit_lse);
    if (!(error <= limit_lse)) {
      note_failure(fmt::format("LSE[batch {}, head {}, row {}]", row.batch, row.head, row.row), got, lse_n, limit_lse);
    }
  }
  result.max_error_o = nearest_o.error;
  result.limit_o = nearest_o.limit;
  result.max_error_lse = nearest_lse.error;
  result.limit_lse = nearest_lse.limit;
  result.passed = result.first_failure.empty();
  return result;
}

}  // namespace flash
