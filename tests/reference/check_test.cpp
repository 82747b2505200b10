// The check passes honest kernels and fails seeded errors: each case of the second kind is a bug that attention
// kernels have had.
#include "reference/check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/catch.hpp"

using namespace flash;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Bug {
  none,
  dropped_key,          // the last key that a row sees is skipped
  padded_key,           // one key beyond the last counts with a score of 0
  skipped_rescale,      // O is not rescaled when the maximum grows in the last block
  skipped_sum_rescale,  // nor l
  mask_off_by_one,      // causal rows miss their own key
  mask_too_wide,        // causal rows see one key too many
  mask_top_left,        // causal aligned at the first key
  no_scale,
  no_division,
  wrong_kv_head,      // query head h reads h modulo kv_heads
  key_block_twice,    // the first block of keys instead of the second
  lse_without_max,    // LSE = log(l)
  lse_base_two,       // LSE in units of log2
  lse_sentinel,       // a large negative number instead of -inf
  nan_for_empty_rows  // 0 / 0
};

struct Case {
  Problem problem;
  HostTensor q, k, v, o;
  std::vector<float> lse;

  explicit Case(const Problem& p, Distribution distribution = Distribution::normal)
      : problem(p),
        q(p.dtype, p.batch, p.seq_q, p.heads, p.head_dim),
        k(p.dtype, p.batch, p.seq_kv, p.kv_heads, p.head_dim),
        v(p.dtype, p.batch, p.seq_kv, p.kv_heads, p.head_dim),
        o(p.dtype, p.batch, p.seq_q, p.heads, p.head_dim),
        lse(std::size_t(p.batch * p.heads * p.seq_q), kNan) {
    fill_random(q, distribution, 3, 0);
    fill_random(k, distribution, 3, 1);
    fill_random(v, distribution, 3, 2);
    std::fill_n(o.bits(), o.elements(), std::uint16_t(0x7fff));  // poison
  }

  float& lse_at(std::int64_t b, std::int64_t h, std::int64_t i) {
    return lse[std::size_t((b * problem.heads + h) * problem.seq_q + i)];
  }

  /// Online softmax over blocks of keys in fp32, P rounded to the dtype for its product with V as tensor cores need it.
  void run_row(std::int64_t b, std::int64_t h, std::int64_t i, Bug bug) {
    constexpr std::int64_t kBlock = 32;
    const Problem& p = problem;
    const std::int64_t kv_head = bug == Bug::wrong_kv_head ? h % p.kv_heads : h / (p.heads / p.kv_heads);
    const float scale = bug == Bug::no_scale ? 1.0f : p.scale();
    std::int64_t visible = p.visible_keys(i);
    if (bug == Bug::dropped_key) visible -= 1;
    if (bug == Bug::mask_off_by_one && p.causal) visible -= 1;
    if (bug == Bug::mask_too_wide && p.causal) visible = std::min(visible + 1, p.seq_kv);
    if (bug == Bug::mask_top_left && p.causal) visible = std::min(i + 1, p.seq_kv);

    std::vector<float> acc(std::size_t(p.head_dim), 0.0f);
    float m = -kInfinity, l = 0;
    for (std::int64_t begin = 0; begin < visible; begin += kBlock) {
      const std::int64_t end = std::min(visible, begin + kBlock);
      const std::int64_t shift = bug == Bug::key_block_twice && begin == kBlock ? -kBlock : 0;
      std::vector<float> s(std::size_t(end - begin));
      float m_new = m;
      for (std::int64_t j = begin; j < end; ++j) {
        float dot = 0;
        for (std::int64_t d = 0; d < p.head_dim; ++d) dot += q.at(b, i, h, d) * k.at(b, j + shift, kv_head, d);
        s[std::size_t(j - begin)] = scale * dot;
        if (!(s[std::size_t(j - begin)] <= m_new)) m_new = s[std::size_t(j - begin)];
      }
      if (m_new == -kInfinity) continue;
      const float rescale = std::exp(m - m_new);
      const bool last = end == visible;
      if (!(last && bug == Bug::skipped_sum_rescale)) l *= rescale;
      if (!(last && bug == Bug::skipped_rescale)) {
        for (float& x : acc) x *= rescale;
      }
      for (std::int64_t j = begin; j < end; ++j) {
        const float weight = std::exp(s[std::size_t(j - begin)] - m_new);
        l += weight;
        const float rounded = v.decode(v.encode(weight));
        for (std::int64_t d = 0; d < p.head_dim; ++d) acc[std::size_t(d)] += rounded * v.at(b, j + shift, kv_head, d);
      }
      m = m_new;
    }
    if (bug == Bug::padded_key) l += std::exp(0.0f - m);

    const bool empty = l == 0 && bug != Bug::nan_for_empty_rows;
    for (std::int64_t d = 0; d < p.head_dim; ++d) {
      const float divisor = empty || bug == Bug::no_division ? 1.0f : l;
      o.set(b, i, h, d, acc[std::size_t(d)] / divisor);
    }
    float row_lse = l == 0 ? -kInfinity : m + std::log(l);
    if (bug == Bug::lse_without_max) row_lse = std::log(l);
    if (bug == Bug::lse_base_two) row_lse = row_lse / std::log(2.0f);
    if (bug == Bug::lse_sentinel && l == 0) row_lse = -5e4f;
    lse_at(b, h, i) = row_lse;
  }

  CheckResult check(const std::vector<RowId>& rows) const { return check_attention(problem, q, k, v, o, lse, rows); }
  CheckResult check() const { return check(all_rows(problem)); }

  CheckResult run_and_check(Bug bug = Bug::none) {
    for (const RowId& row : all_rows(problem)) run_row(row.batch, row.head, row.row, bug);
    return check();
  }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("honest kernels pass", "[check]") {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (const bool causal : {false, true}) {
      for (const Problem& p :
           {Problem{1, 1, 1, 1, 1, 8, causal, dtype}, Problem{1, 1, 1, 1, 300, 64, causal, dtype},
            Problem{2, 4, 2, 65, 129, 64, causal, dtype}, Problem{1, 6, 1, 197, 50, 40, causal, dtype},
            Problem{1, 2, 2, 256, 256, 128, causal, dtype}, Problem{1, 1, 1, 31, 33, 256, causal, dtype}}) {
        for (const Distribution distribution : {Distribution::normal, Distribution::outliers}) {
          INFO(p.describe() << " " << to_string(distribution));
          Case c(p, distribution);
          const CheckResult result = c.run_and_check();
          INFO(result.first_failure);
          CHECK(result.passed);
          CHECK(result.first_failure.empty());
          CHECK(result.max_error_o <= result.limit_o);
          CHECK(result.max_error_lse <= result.limit_lse);
          CHECK(result.limit_o < (dtype == DType::fp16 ? 0.04 : 0.3));
          CHECK(result.rows_checked == p.batch * p.heads * p.seq_q);
          CHECK(result.rows_total == result.rows_checked);
        }
      }
    }
  }
}

TEST_CASE("seeded errors fail", "[check]") {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (const std::int64_t n : {64, 129, 256}) {
      for (const Bug bug :
           {Bug::dropped_key, Bug::padded_key, Bug::skipped_rescale, Bug::skipped_sum_rescale, Bug::no_scale,
            Bug::no_division, Bug::wrong_kv_head, Bug::key_block_twice, Bug::lse_without_max, Bug::lse_base_two}) {
        Case c(Problem{1, 4, 2, n, n, 64, false, dtype});
        const CheckResult result = c.run_and_check(bug);
        INFO(c.problem.describe() << " bug " << int(bug));
        CHECK_FALSE(result.passed);
        CHECK_FALSE(result.first_failure.empty());
      }
      for (const Bug bug : {Bug::dropped_key, Bug::mask_off_by_one, Bug::mask_too_wide, Bug::mask_top_left}) {
        Case c(Problem{1, 2, 1, n, n + 3, 64, true, dtype});
        INFO(c.problem.describe() << " bug " << int(bug));
        CHECK_FALSE(c.run_and_check(bug).passed);
      }
    }
  }
}

TEST_CASE("rows that see nothing must be zero and -inf", "[check]") {
  const Problem p{1, 2, 1, 40, 20, 16, true};
  CHECK(Case(p).run_and_check().passed);
  CHECK_FALSE(Case(p).run_and_check(Bug::lse_sentinel).passed);
  CHECK_FALSE(Case(p).run_and_check(Bug::nan_for_empty_rows).passed);

  Case c(p);
  REQUIRE(c.run_and_check().passed);
  for (const float wrong : {kInfinity, kNan, -1e30f, 0.0f}) {
    c.lse_at(0, 1, 5) = wrong;
    const CheckResult result = c.check();
    CHECK_FALSE(result.passed);
    CHECK(contains(result.first_failure, "LSE[batch 0, head 1, row 5]"));
  }
  c.lse_at(0, 1, 5) = -kInfinity;
  c.o.set(0, 5, 1, 3, 1e-5f);
  const CheckResult result = c.check();
  CHECK_FALSE(result.passed);
  CHECK(contains(result.first_failure, "O[batch 0, row 5, head 1, dim 3]"));
}

TEST_CASE("an all-zero output fails", "[check]") {
  Case c(Problem{1, 1, 1, 256, 256, 64});
  REQUIRE(c.run_and_check().passed);
  std::fill_n(c.o.bits(), c.o.elements(), std::uint16_t(0));
  CHECK_FALSE(c.check().passed);
}

TEST_CASE("an output that was never written fails", "[check]") {
  Case c(Problem{1, 1, 1, 16, 16, 16});
  const CheckResult result = c.check();
  CHECK_FALSE(result.passed);
  CHECK(result.max_error_o == double(kInfinity));
  CHECK(result.max_error_lse == double(kInfinity));
}

TEST_CASE("one element that is NaN or infinite fails", "[check]") {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Case c(Problem{2, 2, 1, 30, 40, 16, false, DType::bf16});
    REQUIRE(c.run_and_check().passed);
    const float right = c.o.at(1, 29, 1, 15);
    c.o.set(1, 29, 1, 15, bad);
    CHECK_FALSE(c.check().passed);
    c.o.set(1, 29, 1, 15, right);
    c.lse_at(1, 1, 29) = bad;
    const CheckResult result = c.check();
    CHECK_FALSE(result.passed);
    CHECK(contains(result.first_failure, "LSE[batch 1, head 1, row 29]"));
    CHECK_FALSE(contains(result.first_failure, "\n"));
  }
}

TEST_CASE("one wrong head fails, and only rows asked for are looked at", "[check]") {
  Case c(Problem{2, 3, 3, 64, 64, 32});
  REQUIRE(c.run_and_check().passed);
  for (std::int64_t i = 0; i < 64; ++i) c.run_row(1, 2, i, Bug::dropped_key);
  CHECK_FALSE(c.check().passed);
  CHECK_FALSE(c.check({{1, 2, 0}, {1, 2, 63}}).passed);
  const CheckResult result = c.check({{0, 0, 0}, {1, 1, 63}});
  CHECK(result.passed);
  CHECK(result.rows_checked == 2);
  CHECK(result.rows_total == 2 * 3 * 64);
}

TEST_CASE("LSE may err by a few units in the last place and not by 5e-4", "[check]") {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (const Problem& p : {Problem{1, 1, 1, 8, 8, 16, false, dtype}, Problem{1, 2, 1, 64, 300, 64, true, dtype},
                             Problem{1, 1, 1, 8, 2000, 128, false, dtype}}) {
      INFO(p.describe());
      Case c(p);
      REQUIRE(c.run_and_check().passed);
      const std::vector<float> right = c.lse;
      for (const float wrong : {5e-4f, -5e-4f}) {
        for (std::size_t i = 0; i < right.size(); ++i) c.lse[i] = right[i] + wrong;
        CHECK_FALSE(c.check().passed);
      }
      for (const float direction : {-kInfinity, kInfinity}) {
        c.lse = right;
        for (float& x : c.lse) {
          for (int ulp = 0; ulp < 3; ++ulp) x = std::nextafter(x, direction);
        }
        const CheckResult result = c.check();
        INFO(result.first_failure);
        CHECK(result.passed);
        CHECK(result.limit_lse < 3e-4);
      }
    }
  }
}

TEST_CASE("the limit of LSE grows with the scores that have weight alone", "[check]") {
  Case c(Problem{1, 1, 1, 4, 64, 64});
  const double ordinary = c.run_and_check().limit_lse;
  for (std::int64_t d = 0; d < 64; ++d) {
    c.q.set(0, 0, 0, d, 100.0f);
    for (std::int64_t j = 0; j < 64; ++j) c.k.set(0, j, 0, d, j == 9 ? -100.0f : 0.0f);  // scores of -80000 and 0
  }
  const CheckResult result = c.run_and_check();
  INFO(result.first_failure);
  CHECK(result.passed);
  CHECK(result.limit_lse < 2 * ordinary);
  c.lse_at(0, 0, 0) += 1e-4f;
  CHECK_FALSE(c.check().passed);
}

TEST_CASE("LSE from rounded scores may err as standard attention's does", "[check]") {
  Case c(Problem{1, 2, 1, 64, 128, 64, false, DType::bf16});
  REQUIRE(c.run_and_check().passed);
  const std::vector<RowId> rows = all_rows(c.problem);
  const AttentionRows standard = standard_attention(c.problem, c.q, c.k, c.v, rows);
  for (std::size_t n = 0; n < rows.size(); ++n) c.lse[n] = float(standard.lse[n]);
  CHECK_FALSE(c.check(rows).passed);
  const CheckResult result = check_attention(c.problem, c.q, c.k, c.v, c.o, c.lse, rows, true);
  CHECK(result.passed);
  CHECK(result.limit_lse > 1e-3);
  CHECK(result.limit_lse < 5e-2);
  c.lse[7] += 0.1f;
  CHECK_FALSE(check_attention(c.problem, c.q, c.k, c.v, c.o, c.lse, rows, true).passed);
}

// -- Scores of any size

namespace {

/// All elements the same.
void fill(HostTensor& tensor, float value) { std::fill_n(tensor.bits(), tensor.elements(), tensor.encode(value)); }

/// O is the mean of V, rounded, and LSE that of keys that are all alike.
void write_mean(Case& c) {
  const Problem& p = c.problem;
  for (std::int64_t d = 0; d < p.head_dim; ++d) {
    double sum = 0;
    for (std::int64_t j = 0; j < p.seq_kv; ++j) sum += c.v.at(0, j, 0, d);
    for (std::int64_t i = 0; i < p.seq_q; ++i) c.o.set(0, i, 0, d, float(sum / double(p.seq_kv)));
  }
  double dot = 0;
  for (std::int64_t d = 0; d < p.head_dim; ++d) dot += double(c.q.at(0, 0, 0, d)) * c.k.at(0, 0, 0, d);
  const double lse = dot / std::sqrt(double(p.head_dim)) + std::log(double(p.seq_kv));
  std::fill(c.lse.begin(), c.lse.end(), float(lse));
}

}  // namespace

TEST_CASE("huge scores that are all alike leave the limits narrow", "[check]") {
  Case one(Problem{1, 1, 1, 1, 1, 64, false, DType::bf16});  // pytorch 121558
  for (HostTensor* tensor : {&one.q, &one.k, &one.v}) fill(*tensor, 133120.0f);
  write_mean(one);
  CHECK(one.lse[0] == 1.4176748e11f);
  CHECK(one.check().passed);
  one.lse[0] = std::nextafter(one.lse[0], 0.0f);  // 8192 less
  CHECK(one.check().passed);
  one.lse[0] = 1.418e11f;
  CHECK_FALSE(one.check().passed);
  write_mean(one);
  for (const float wrong : {0.0f, 131072.0f, 136192.0f, kNan, kInfinity}) {
    one.o.set(0, 0, 0, 5, wrong);
    CHECK_FALSE(one.check().passed);
  }

  // Standard attention overflows here, and is exact with scores in fp32 and a number of keys that is a power of 2.
  for (const std::int64_t n : {40, 32}) {
    Case c(Problem{1, 1, 1, n, n, 64, false, DType::fp16});
    fill(c.q, 30000.0f);
    fill(c.k, 30000.0f);
    write_mean(c);
    const HostTensor right = c.o;
    CheckResult result = c.check();
    INFO(result.first_failure);
    CHECK(result.passed);
    CHECK(result.limit_o < 2e-3);
    for (std::int64_t d = 0; d < 64; ++d) {  // one rounding off, upwards in size
      c.o.bits()[c.o.index(0, 3, 0, d)] += std::fabs(c.o.at(0, 3, 0, d)) < 0.25f ? 1 : 0;
    }
    CHECK(c.check().passed);
    c.o = right;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t d = 0; d < 64; ++d) {  // the last key dropped
        c.o.set(0, i, 0, d, (float(n) * right.at(0, i, 0, d) - c.v.at(0, n - 1, 0, d)) / float(n - 1));
      }
    }
    CHECK_FALSE(c.check().passed);
    fill(c.o, 0.0f);
    CHECK_FALSE(c.check().passed);
  }
}

TEST_CASE("scores far below -5e4 are held to what fp32 can say of them", "[check]") {
  // As reported from a served model (flashinfer 4267): LSE is -9.5e6, where neighbouring fp32 numbers are 1 apart.
  Case c(Problem{1, 1, 1, 70, 70, 128, true, DType::bf16});
  for (std::int64_t i = 0; i < 70; ++i) {
    for (std::int64_t d = 0; d < 128; ++d) {
      c.q.set(0, i, 0, d, 448.0f + 2.0f * float((i * 7 + d * 5) % 3 - 1));
      c.k.set(0, i, 0, d, -1880.0f + 8.0f * float((i * 11 + d * 3 + i * d) % 3 - 1));
    }
  }
  const CheckResult result = c.run_and_check();
  INFO(result.first_failure);
  CHECK(result.passed);
  CHECK(c.lse_at(0, 0, 69) < -9e6f);
  for (float& lse : c.lse) lse = std::nextafter(lse, 0.0f);
  CHECK(c.check().passed);
  for (float& lse : c.lse) lse *= 1 - 1e-4f;
  CHECK_FALSE(c.check().passed);
  REQUIRE(c.run_and_check().passed);
  fill(c.o, 0.0f);
  CHECK_FALSE(c.check().passed);
}

TEST_CASE("where fp32 cannot tell scores apart O lies between the values of the keys that may be the largest",
          "[check]") {
  // Keys 1 and 2 have scores 2^30 and 2^30 + 1/8, for fp32 the same; key 0 has 0 and key 3 half of theirs.
  Case c(Problem{1, 1, 1, 1, 4, 64, false, DType::bf16});
  fill(c.q, 0.0f);
  fill(c.k, 0.0f);
  c.q.set(0, 0, 0, 0, 0x1p16f);
  c.q.set(0, 0, 0, 1, 1.0f);
  c.k.set(0, 1, 0, 0, 0x1p17f);
  c.k.set(0, 2, 0, 0, 0x1p17f);
  c.k.set(0, 2, 0, 1, 1.0f);
  c.k.set(0, 3, 0, 0, 0x1p16f);
  for (std::int64_t d = 0; d < 64; ++d) {
    for (std::int64_t j = 0; j < 4; ++j) c.v.set(0, j, 0, d, float(j == 0 ? -1 : j));
  }
  c.lse_at(0, 0, 0) = 0x1p30f;
  for (const float weight : {0.0f, 0.5f, 1.0f}) {
    fill(c.o, 1.0f + weight);
    const CheckResult result = c.check();
    INFO(result.first_failure);
    CHECK(result.passed);
    CHECK(result.limit_o < 0.05);
  }
  for (const float wrong : {0.0f, -1.0f, 0.9f, 2.1f, 3.0f, kNan}) {
    c.o.set(0, 0, 0, 7, wrong);
    CHECK_FALSE(c.check().passed);
  }
}

TEST_CASE("a row of huge scores does not loosen the limit of others", "[check]") {
  Case c(Problem{1, 1, 1, 16, 64, 64, false, DType::bf16});
  const double ordinary = c.run_and_check().limit_o;
  for (std::int64_t d = 0; d < 64; ++d) c.q.set(0, 5, 0, d, c.q.at(0, 5, 0, d) * 0x1p40f);
  REQUIRE(c.run_and_check().passed);
  CHECK(c.check().limit_o < 2 * ordinary);
  for (std::int64_t d = 0; d < 64; ++d) c.o.set(0, 9, 0, d, 0.0f);
  CHECK_FALSE(c.check().passed);
}

TEST_CASE("where rounded scores leave the range of their type, standard attention is what is right", "[check]") {
  Case c(Problem{1, 1, 1, 3, 16, 64, false, DType::fp16});
  for (std::int64_t d = 0; d < 64; ++d) {
    c.q.set(0, 1, 0, d, 200.0f);
    c.q.set(0, 2, 0, d, -200.0f);
    for (std::int64_t j = 0; j < 16; ++j) c.k.set(0, j, 0, d, 200.0f);  // scores of 320000 and of -320000
  }
  REQUIRE(c.run_and_check().passed);  // with scores in fp32
  const std::vector<RowId> rows = all_rows(c.problem);
  const auto check_rounded = [&] { return check_attention(c.problem, c.q, c.k, c.v, c.o, c.lse, rows, true); };
  CHECK_FALSE(check_rounded().passed);
  const AttentionRows standard = standard_attention(c.problem, c.q, c.k, c.v, rows);
  CHECK(std::isnan(standard.lse[1]));
  CHECK(standard.lse[2] == -kInfinity);
  for (std::int64_t i = 1; i < 3; ++i) {
    c.lse_at(0, 0, i) = float(standard.lse[std::size_t(i)]);
    for (std::int64_t d = 0; d < 64; ++d) c.o.set(0, i, 0, d, i == 1 ? kNan : 0.0f);
  }
  const CheckResult result = check_rounded();
  INFO(result.first_failure);
  CHECK(result.passed);
  CHECK_FALSE(c.check().passed);
  c.o.set(0, 2, 0, 0, 0.01f);
  CHECK_FALSE(check_rounded().passed);
  c.o.set(0, 2, 0, 0, 0.0f);
  c.o.set(0, 1, 0, 0, 0.0f);
  CHECK_FALSE(check_rounded().passed);
}

TEST_CASE("where the reference is not finite the output must not be", "[check]") {
  for (const float bad : {kNan, kInfinity}) {
    Case c(Problem{1, 2, 2, 40, 40, 16, true});
    c.v.set(0, 10, 0, 3, bad);
    c.k.set(0, 20, 1, 0, kNan);
    const CheckResult honest = c.run_and_check();
    INFO(honest.first_failure);
    CHECK(honest.passed);
    CHECK(honest.max_error_o < 1e-2);  // elements that are not finite do not count
    CHECK(honest.limit_o < 1e-2);

    // NaN for infinity is right, a number is not.
    c.o.set(0, 39, 0, 3, kNan);
    CHECK(c.check().passed);
    c.o.set(0, 39, 0, 3, 0.0f);
    CHECK_FALSE(c.check().passed);
    c.o.set(0, 39, 0, 3, kNan);
    c.lse_at(0, 1, 39) = 1.0f;
    CHECK_FALSE(c.check().passed);
  }
}

TEST_CASE("NaN in a row that does not see the bad key fails", "[check]") {
  Case c(Problem{1, 1, 1, 40, 40, 16, true});
  c.v.set(0, 20, 0, 3, kNan);
  REQUIRE(c.run_and_check().passed);
  c.o.set(0, 19, 0, 3, kNan);
  CHECK_FALSE(c.check().passed);
}

TEST_CASE("scores beyond fp16 leave the limit finite and the check awake", "[check]") {
  const Problem p{1, 1, 1, 8, 16, 64};
  Case c(p);
  for (std::int64_t d = 0; d < 64; ++d) {
    c.q.set(0, 2, 0, d, 200.0f);
    c.k.set(0, 5, 0, d, 200.0f);  // scaled score 320000
  }
  const CheckResult honest = c.run_and_check();
  INFO(honest.first_failure);
  CHECK(honest.passed);
  CHECK(std::isfinite(honest.limit_o));
  c.o.set(0, 2, 0, 0, kNan);  // what S in fp16 would give
  CHECK_FALSE(c.check().passed);
}

TEST_CASE("a check of nothing or of another shape is refused", "[check]") {
  Case c(Problem{1, 1, 1, 8, 8, 16});
  CHECK_THROWS_AS(c.check({}), std::invalid_argument);
  c.lse.pop_back();
  CHECK_THROWS_AS(c.check(), std::invalid_argument);
}
