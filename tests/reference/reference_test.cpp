// The fp64 reference against cases computed by hand and against a plain loop, standard attention, and the sampled rows.
#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

#include "tests/catch.hpp"

using namespace flash;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Inputs {
  HostTensor q, k, v;
};

Inputs zero_inputs(const Problem& p) {
  return {HostTensor(p.dtype, p.batch, p.seq_q, p.heads, p.head_dim),
          HostTensor(p.dtype, p.batch, p.seq_kv, p.kv_heads, p.head_dim),
          HostTensor(p.dtype, p.batch, p.seq_kv, p.kv_heads, p.head_dim)};
}

Inputs random_inputs(const Problem& p, Distribution distribution = Distribution::normal) {
  Inputs in = zero_inputs(p);
  fill_random(in.q, distribution, 0, 0);
  fill_random(in.k, distribution, 0, 1);
  fill_random(in.v, distribution, 0, 2);
  return in;
}

/// Sets element 0 of each key's value, the same for all heads and batches, to `values`.
void set_values(HostTensor& v, const std::vector<float>& values) {
  for (std::int64_t b = 0; b < v.batch(); ++b) {
    for (std::int64_t h = 0; h < v.heads(); ++h) {
      for (std::size_t j = 0; j < values.size(); ++j) v.set(b, std::int64_t(j), h, 0, values[j]);
    }
  }
}

AttentionRows full_reference(const Problem& p, const Inputs& in) {
  return reference_attention(p, in.q, in.k, in.v, all_rows(p));
}

double o_at(const AttentionRows& r, std::size_t row, std::int64_t d = 0) {
  return r.o[row * (r.o.size() / r.lse.size()) + std::size_t(d)];
}

bool near(double a, double b, double limit = 1e-12) { return std::abs(a - b) <= limit; }

/// Attention as its definition reads, one row at a time, without the subtraction of the maximum.
AttentionRows plain_loop(const Problem& p, const Inputs& in, const std::vector<RowId>& rows) {
  AttentionRows result;
  for (const RowId& row : rows) {
    const std::int64_t kv_head = row.head * p.kv_heads / p.heads;
    std::vector<double> o(std::size_t(p.head_dim), 0.0);
    double l = 0;
    for (std::int64_t j = 0; j < p.seq_kv; ++j) {
      if (p.causal && j > row.row + p.seq_kv - p.seq_q) continue;
      double dot = 0;
      for (std::int64_t d = 0; d < p.head_dim; ++d) {
        dot += double(in.q.at(row.batch, row.row, row.head, d)) * in.k.at(row.batch, j, kv_head, d);
      }
      const double weight = std::exp(dot / std::sqrt(double(p.head_dim)));
      l += weight;
      for (std::int64_t d = 0; d < p.head_dim; ++d) {
        o[std::size_t(d)] += weight * in.v.at(row.batch, j, kv_head, d);
      }
    }
    for (const double x : o) result.o.push_back(l == 0 ? 0 : x / l);
    result.lse.push_back(std::log(l));
  }
  return result;
}

}  // namespace

TEST_CASE("with one key, O is its value and LSE its scaled score", "[reference]") {
  const Problem p{1, 1, 1, 1, 1, 16};
  Inputs in = zero_inputs(p);
  for (int d = 0; d < 16; ++d) {
    in.q.set(0, 0, 0, d, 0.5f);
    in.k.set(0, 0, 0, d, float(d));
    in.v.set(0, 0, 0, d, float(d) - 3.0f);
  }
  const AttentionRows r = full_reference(p, in);
  CHECK(near(r.lse[0], 0.5 * 120 / 4));
  for (int d = 0; d < 16; ++d) CHECK(o_at(r, 0, d) == d - 3.0);
}

TEST_CASE("keys of equal score share their weight", "[reference]") {
  const Problem p{1, 1, 1, 1, 2, 8};
  Inputs in = zero_inputs(p);
  set_values(in.v, {1.0f, 4.0f});
  const AttentionRows r = full_reference(p, in);
  CHECK(near(o_at(r, 0), 2.5));
  CHECK(near(r.lse[0], std::log(2.0)));
}

TEST_CASE("weights follow the exponential of the scaled score", "[reference]") {
  const Problem p{1, 1, 1, 1, 2, 64};  // scale 1/8
  Inputs in = zero_inputs(p);
  in.q.set(0, 0, 0, 5, 8.0f);
  in.k.set(0, 1, 0, 5, 2.0f);  // scores 0 and 2
  set_values(in.v, {0.0f, 1.0f});
  const AttentionRows r = full_reference(p, in);
  CHECK(near(o_at(r, 0), std::exp(2.0) / (1 + std::exp(2.0))));
  CHECK(near(r.lse[0], std::log(1 + std::exp(2.0))));
}

TEST_CASE("a causal row averages the keys up to its own", "[reference]") {
  const Problem p{1, 1, 1, 3, 3, 8, true};
  Inputs in = zero_inputs(p);
  set_values(in.v, {1.0f, 3.0f, 8.0f});
  const AttentionRows r = full_reference(p, in);
  CHECK(near(o_at(r, 0), 1));
  CHECK(near(o_at(r, 1), 2));
  CHECK(near(o_at(r, 2), 4));
  CHECK(near(r.lse[0], 0));
  CHECK(near(r.lse[2], std::log(3.0)));
}

TEST_CASE("causal with more keys than queries is aligned at the last key", "[reference]") {
  const Problem p{1, 1, 1, 2, 4, 8, true};
  Inputs in = zero_inputs(p);
  set_values(in.v, {1.0f, 2.0f, 6.0f, 11.0f});
  const AttentionRows r = full_reference(p, in);
  CHECK(near(o_at(r, 0), 3));  // keys 0 to 2
  CHECK(near(o_at(r, 1), 5));
}

TEST_CASE("causal with more queries than keys leaves the first rows nothing to see", "[reference]") {
  const Problem p{1, 1, 1, 4, 2, 8, true};
  Inputs in = zero_inputs(p);
  set_values(in.v, {1.0f, 3.0f});
  const AttentionRows r = full_reference(p, in);
  for (const std::size_t row : {0u, 1u}) {
    CHECK(o_at(r, row) == 0);
    CHECK(r.lse[row] == -kInfinity);
  }
  CHECK(near(o_at(r, 2), 1));
  CHECK(near(o_at(r, 3), 2));
  CHECK(near(r.lse[3], std::log(2.0)));

  // Alone too, without a row that sees something beside it.
  const AttentionRows blind = reference_attention(p, in.q, in.k, in.v, {{0, 0, 1}, {0, 0, 0}});
  CHECK(o_at(blind, 0) == 0);
  CHECK(blind.lse[0] == -kInfinity);
  CHECK(blind.lse[1] == -kInfinity);
  const AttentionRows standard = standard_attention(p, in.q, in.k, in.v, {{0, 0, 1}});
  CHECK(o_at(standard, 0) == 0);
  CHECK(standard.lse[0] == -kInfinity);
}

TEST_CASE("consecutive query heads share a key head", "[reference]") {
  const Problem p{2, 6, 2, 1, 1, 8};
  Inputs in = zero_inputs(p);
  for (int b = 0; b < 2; ++b) {
    in.v.set(b, 0, 0, 0, float(10 * b + 1));
    in.v.set(b, 0, 1, 0, float(10 * b + 2));
  }
  const AttentionRows r = full_reference(p, in);
  const std::vector<double> expected{1, 1, 1, 2, 2, 2, 11, 11, 11, 12, 12, 12};
  for (std::size_t n = 0; n < expected.size(); ++n) CHECK(o_at(r, n) == expected[n]);
}

TEST_CASE("rows come back in the order they were asked for", "[reference]") {
  const Problem p{2, 2, 1, 40, 33, 8, true, DType::bf16};
  const Inputs in = random_inputs(p);
  const std::vector<RowId> rows{{1, 1, 39}, {0, 0, 8}, {1, 0, 20}, {0, 0, 7}, {1, 1, 39}};
  const AttentionRows some = reference_attention(p, in.q, in.k, in.v, rows);
  const AttentionRows all = full_reference(p, in);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const auto position = std::size_t((rows[n].batch * p.heads + rows[n].head) * p.seq_q + rows[n].row);
    CHECK(near(some.lse[n], all.lse[position]));
    for (int d = 0; d < 8; ++d) CHECK(near(o_at(some, n, d), o_at(all, position, d)));
  }
}

TEST_CASE("the reference agrees with the definition on random input", "[reference]") {
  for (const Problem& p : {Problem{1, 1, 1, 1, 1, 8}, Problem{2, 4, 2, 33, 65, 64, true}, Problem{1, 3, 1, 70, 20, 40},
                           Problem{1, 2, 2, 300, 300, 24, true, DType::bf16}, Problem{1, 1, 1, 7, 1000, 128, true},
                           Problem{1, 6, 3, 65, 33, 256, true}, Problem{1, 1, 1, 3, 20000, 8}}) {
    INFO(p.describe());
    const Inputs in = random_inputs(p);
    const std::vector<RowId> rows = all_rows(p);
    const AttentionRows got = reference_attention(p, in.q, in.k, in.v, rows);
    const AttentionRows expected = plain_loop(p, in, rows);
    double error = 0;
    for (std::size_t i = 0; i < got.o.size(); ++i) error = std::max(error, std::abs(got.o[i] - expected.o[i]));
    CHECK(error < 1e-12);
    for (std::size_t n = 0; n < rows.size(); ++n) {
      if (expected.lse[n] == -kInfinity) {
        CHECK(got.lse[n] == -kInfinity);
      } else {
        CHECK(near(got.lse[n], expected.lse[n]));
      }
    }
  }
}

TEST_CASE("NaN or infinity in a key or a value reaches exactly the rows that see it", "[reference]") {
  const Problem p{2, 4, 2, 90, 80, 16, true};
  const std::int64_t bad_batch = 1, bad_key = 37, bad_kv_head = 0;
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    for (const bool in_value : {false, true}) {
      Inputs in = random_inputs(p);
      (in_value ? in.v : in.k).set(bad_batch, bad_key, bad_kv_head, 3, float(bad));
      if (!in_value && std::isinf(bad)) {
        // A score of +inf, whatever the signs of the infinity and of the rest.
        for (std::int64_t i = 0; i < p.seq_q; ++i) {
          for (std::int64_t h = 0; h < p.heads; ++h) in.q.set(bad_batch, i, h, 3, std::copysign(0.5f, float(bad)));
        }
      }
      const std::vector<RowId> rows = all_rows(p);
      const AttentionRows r = reference_attention(p, in.q, in.k, in.v, rows);
      const AttentionRows standard = standard_attention(p, in.q, in.k, in.v, rows);
      int wrong = 0;
      for (std::size_t n = 0; n < rows.size(); ++n) {
        const bool reached = rows[n].batch == bad_batch && rows[n].head / 2 == bad_kv_head &&
                             rows[n].row + p.seq_kv - p.seq_q >= bad_key;
        for (int d = 0; d < 16; ++d) {
          const bool finite = std::isfinite(o_at(r, n, d));
          wrong += finite == (reached && (!in_value || d == 3));
          wrong += finite != std::isfinite(o_at(standard, n, d));
          if (in_value && reached && d == 3 && std::isinf(bad)) wrong += o_at(r, n, d) != bad;
        }
        const bool sees_nothing = rows[n].row + p.seq_kv - p.seq_q < 0;
        if (reached && !in_value) {
          wrong += !std::isnan(r.lse[n]);
        } else {
          wrong += sees_nothing ? r.lse[n] != -kInfinity : !std::isfinite(r.lse[n]);
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a score of -inf takes its key out, and a row of them gives zero", "[reference]") {
  const Problem p{1, 1, 1, 3, 3, 8, true};
  Inputs in = zero_inputs(p);
  for (int i = 0; i < 3; ++i) in.q.set(0, i, 0, 0, 1.0f);
  in.k.set(0, 0, 0, 0, float(-kInfinity));
  in.k.set(0, 1, 0, 0, float(-kInfinity));
  set_values(in.v, {1.0f, 3.0f, 8.0f});
  const AttentionRows r = full_reference(p, in);
  for (const std::size_t row : {0u, 1u}) {
    CHECK(o_at(r, row) == 0);
    CHECK(r.lse[row] == -kInfinity);
  }
  CHECK(near(o_at(r, 2), 8));
  CHECK(near(r.lse[2], 0));
}

TEST_CASE("NaN beside scores of -inf is not mistaken for a row of them", "[reference]") {
  const Problem p{1, 1, 1, 1, 2, 8};
  Inputs in = zero_inputs(p);
  in.q.set(0, 0, 0, 0, 1.0f);
  in.k.set(0, 0, 0, 0, float(-kInfinity));
  in.k.set(0, 1, 0, 0, float(kNan));
  const AttentionRows r = full_reference(p, in);
  CHECK(std::isnan(o_at(r, 0)));
  CHECK(std::isnan(r.lse[0]));
}

TEST_CASE("standard attention rounds its scores, its weights and its output", "[reference]") {
  const Problem p{1, 1, 1, 1, 2, 16, false, DType::bf16};  // scale 1/4
  Inputs in = zero_inputs(p);
  in.q.set(0, 0, 0, 0, 1.0f);
  in.q.set(0, 0, 0, 1, 1.0f);
  in.k.set(0, 0, 0, 0, 2.0f);
  in.k.set(0, 0, 0, 1, 0x1p-7f);  // score 1/2 + 2^-9, a tie that rounds to 1/2
  set_values(in.v, {1.0f, -1.0f});
  const AttentionRows r = standard_attention(p, in.q, in.k, in.v, {{0, 0, 0}});
  // The weights 0.62246 and 0.37754 round to 159/256 and 193/512; unrounded, their difference would round to 251/1024.
  CHECK(o_at(r, 0) == 250.0 / 1024);
  CHECK(near(r.lse[0], std::log(1 + std::exp(0.5)), 1e-6));

  in.k.set(0, 0, 0, 0, 0.0f);
  in.k.set(0, 0, 0, 1, 0.0f);
  set_values(in.v, {1.0f, 0x1p-7f});  // the mean, 1/2 + 2^-8, fits; 1/2 + 2^-9 does not
  CHECK(o_at(standard_attention(p, in.q, in.k, in.v, {{0, 0, 0}}), 0) == 0.5 + 0x1p-8);
  set_values(in.v, {1.0f, 0x1p-8f});
  CHECK(o_at(standard_attention(p, in.q, in.k, in.v, {{0, 0, 0}}), 0) == 0.5);
}

TEST_CASE("standard attention errs by about the precision of its type", "[reference]") {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    const Problem p{1, 2, 1, 64, 256, 64, false, dtype};
    const Inputs in = random_inputs(p);
    const AttentionRows r = full_reference(p, in);
    const AttentionRows standard = standard_attention(p, in.q, in.k, in.v, all_rows(p));
    double error = 0;
    for (std::size_t i = 0; i < r.o.size(); ++i) error = std::max(error, std::abs(standard.o[i] - r.o[i]));
    CHECK(error > (dtype == DType::fp16 ? 5e-5 : 4e-4));
    CHECK(error < (dtype == DType::fp16 ? 1e-3 : 8e-3));
  }
}

TEST_CASE("tensors of another shape and rows outside the problem are refused", "[reference]") {
  const Problem p{1, 2, 1, 4, 4, 8};
  const Inputs in = zero_inputs(p);
  CHECK_THROWS_AS(reference_attention(p, in.k, in.k, in.v, all_rows(p)), std::invalid_argument);
  CHECK_THROWS_AS(reference_attention(p, in.q, in.k, in.v, {{0, 2, 0}}), std::invalid_argument);
  CHECK_THROWS_AS(standard_attention(p, in.q, in.k, in.v, {{0, 0, 4}}), std::invalid_argument);
}

TEST_CASE("a small problem is sampled in full", "[reference]") {
  const Problem p{2, 8, 8, 512, 512, 64};
  CHECK(sample_rows(p) == all_rows(p));
  CHECK(sample_rows(Problem{1, 2, 2, 3, std::int64_t(1) << 30, 64}).size() == 6);
}

TEST_CASE("a large problem is sampled at its ends, at tile edges and over all heads", "[reference]") {
  const Problem p{4, 16, 4, 8000, 8192, 128, true};
  const std::vector<RowId> rows = sample_rows(p, 256);
  CHECK(rows.size() > 240);
  CHECK(rows.size() <= 256 + 4 * 64);
  CHECK(sample_rows(Problem{4, 16, 4, 8000, 8192, 128, false}, 256).size() <= 256);
  CHECK(std::is_sorted(rows.begin(), rows.end()));
  CHECK(rows == sample_rows(p, 256));

  const std::set<RowId> sample(rows.begin(), rows.end());
  CHECK(sample.size() == rows.size());
  std::set<std::pair<std::int64_t, std::int64_t>> heads;
  for (const RowId& row : rows) {
    heads.insert({row.batch, row.head});
    CHECK((row.row >= 0 && row.row < 8000));
  }
  CHECK(heads.size() == 64);
  for (const auto& [batch, head] : heads) {
    for (const std::int64_t i : {0, 1, 2, 3}) CHECK(sample.count({batch, head, i}) == 1);  // few keys: large errors
  }
  for (const std::int64_t b : {0, 3}) {
    for (const std::int64_t h : {0, 15}) {
      CHECK(sample.count({b, h, 0}) == 1);
      CHECK(sample.count({b, h, 7999}) == 1);
    }
  }
  for (const std::int64_t i : {15, 16, 17, 63, 64, 65, 127, 128, 129, 7935, 7936, 7937, 7983, 7984, 7985}) {
    CHECK(sample.count({0, 0, i}) == 1);
    CHECK(sample.count({3, 15, i}) == 1);
  }
}

TEST_CASE("the first row that sees a key is sampled", "[reference]") {
  const Problem p{1, 4, 4, 8000, 5000, 64, true};
  const std::vector<RowId> rows = sample_rows(p, 100, {192});
  for (const std::int64_t i : {2999, 3000, 3001, 191, 192, 193}) {
    CHECK(std::count(rows.begin(), rows.end(), RowId{0, 0, i}) == 1);
  }
}
