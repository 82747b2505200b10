#include "reference/attention.hpp"

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

namespace flash {
namespace {

template <typename Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Keys that are converted and multiplied at a time: K and V of one step stay in a core's cache.
constexpr std::int64_t kKeyBlock = 256;
// Rows that share one conversion of K and V, and the scores that they may hold together (32 MiB of double).
constexpr std::int64_t kMaxTaskRows = 256;
constexpr std::int64_t kMinTaskRows = 16;
constexpr std::int64_t kMaxTaskScores = std::int64_t(1) << 22;

/// Rows of one head that are computed together: positions in the caller's list.
struct Task {
  std::int64_t batch, head;
  std::vector<std::size_t> positions;
};

std::vector<Task> group_by_head(const Problem& problem, const std::vector<RowId>& rows) {
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t(0));
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rows[a] < rows[b]; });
  const auto limit = std::size_t(std::clamp(kMaxTaskScores / problem.seq_kv, kMinTaskRows, kMaxTaskRows));
  std::vector<Task> tasks;
  for (const std::size_t position : order) {
    const RowId& row = rows[position];
    if (tasks.empty() || tasks.back().batch != row.batch || tasks.back().head != row.head ||
        tasks.back().positions.size() == limit) {
      tasks.push_back({row.batch, row.head, {}});
    }
    tasks.back().positions.push_back(position);
  }
  return tasks;
}

void require_shape(const char* name, const HostTensor& tensor, const Problem& problem, std::int64_t seq,
                   std::int64_t heads) {
  if (tensor.batch() != problem.batch || tensor.seq() != seq || tensor.heads() != heads ||
      tensor.dim() != problem.head_dim || tensor.dtype() != problem.dtype) {
    throw std::invalid_argument(fmt::format("{} is [{}, {}, {}, {}] {}, not what the problem {} says", name,
                                            tensor.batch(), tensor.seq(), tensor.heads(), tensor.dim(),
                                            to_string(tensor.dtype()), problem.describe()));
  }
}

void require_input(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                   const std::vector<RowId>& rows) {
  require_shape("q", q, problem, problem.seq_q, problem.heads);
  require_shape("k", k, problem, problem.seq_kv, problem.kv_heads);
  require_shape("v", v, problem, problem.seq_kv, problem.kv_heads);
  for (const RowId& row : rows) {
    if (row.batch < 0 || row.batch >= problem.batch || row.head < 0 || row.head >= problem.heads || row.row < 0 ||
        row.row >= problem.seq_q) {
      throw std::invalid_argument(fmt::format("row {} of head {} of batch {} is outside the problem {}", row.row,
                                              row.head, row.batch, problem.describe()));
    }
  }
}

/// Copies the elements [batch, row, head, :] to `out`.
template <typename Scalar>
void load_row(const HostTensor& tensor, std::int64_t batch, std::int64_t row, std::int64_t head, Scalar* out) {
  const std::uint16_t* const bits = tensor.bits() + tensor.index(batch, row, head, 0);
  for (std::int64_t d = 0; d < tensor.dim(); ++d) out[d] = Scalar(tensor.decode(bits[d]));
}

/// Replaces the scores of the visible keys by their softmax, and returns LSE. Each stage passes through `round`.
template <typename Scalar, typename Round>
Scalar softmax(Scalar* scores, std::int64_t visible, const Round& round) {
  constexpr Scalar kInfinity = std::numeric_limits<Scalar>::infinity();
  Scalar m = -kInfinity;
  bool sees_something = false;  // anything but -inf, NaN too, which `m` passes over
  for (std::int64_t j = 0; j < visible; ++j) {
    m = std::max(m, scores[j]);
    sees_something |= !(scores[j] == -kInfinity);
  }
  if (!sees_something) {
    std::fill_n(scores, visible, Scalar(0));
    return -kInfinity;
  }
  Scalar l = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    scores[j] = std::exp(scores[j] - m);
    l += scores[j];
  }
  for (std::int64_t j = 0; j < visible; ++j) scores[j] = round(scores[j] / l);
  return m + std::log(l);
}

/// The first visible key with the same elements, for each key of a head. Keys that are alike have scores that are alike
/// in any arithmetic that treats all keys alike.
std::vector<std::int64_t> first_alike(const HostTensor& k, std::int64_t batch, std::int64_t kv_head,
                                      std::int64_t keys) {
  std::vector<std::int64_t> first(std::size_t(keys), 0);
  std::unordered_map<std::string_view, std::int64_t> seen;
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto* const bytes = reinterpret_cast<const char*>(k.bits() + k.index(batch, j, kv_head, 0));
    first[std::size_t(j)] = seen.try_emplace({bytes, std::size_t(k.dim()) * sizeof(std::uint16_t)}, j).first->second;
  }
  return first;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// LSE(s + b) - LSE(s) over the keys that have a score: by how much LSE may be off if each score is by its b.
double lse_error(const double* scores, const double* errors, std::int64_t visible) {
  double m = -kInfinity, m_raised = -kInfinity;
  for (std::int64_t j = 0; j < visible; ++j) {
    if (scores[j] == -kInfinity) continue;
    if (!std::isfinite(scores[j])) return 0;  // the row is not finite, and is held to that alone
    m = std::max(m, scores[j]);
    m_raised = std::max(m_raised, scores[j] + errors[j]);
  }
  if (m == -kInfinity) return 0;
  double l = 0, l_raised = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    if (scores[j] == -kInfinity) continue;
    l += std::exp(scores[j] - m);
    l_raised += std::exp(scores[j] + errors[j] - m_raised);
  }
  return (m_raised - m) + std::log(l_raised / l);
}

/// Keys with the same elements, as one key with the mean of their values.
struct AlikeKeys {
  double score, error, count;
  std::vector<double> value;
};

/// The visible keys of a row that have a score.
std::vector<AlikeKeys> merge_alike(const std::vector<std::int64_t>& first, const double* scores, const double* errors,
                                   std::int64_t visible, const HostTensor& v, std::int64_t batch,
                                   std::int64_t kv_head) {
  std::vector<AlikeKeys> merged;
  std::vector<std::size_t> place(std::size_t(visible), 0);  // of each first key in `merged`
  std::vector<double> value(std::size_t(v.dim()));
  for (std::int64_t j = 0; j < visible; ++j) {
    if (scores[j] == -kInfinity) continue;
    const std::int64_t f = first[std::size_t(j)];
    if (f == j) {
      place[std::size_t(j)] = merged.size();
      merged.push_back({scores[j], errors[j], 0, std::vector<double>(std::size_t(v.dim()), 0.0)});
    }
    AlikeKeys& keys = merged[place[std::size_t(f)]];
    load_row(v, batch, j, kv_head, value.data());
    keys.count += 1;
    for (std::size_t d = 0; d < value.size(); ++d) keys.value[d] += (value[d] - keys.value[d]) / keys.count;
  }
  return merged;
}

/// Between which numbers O lies if each score is off by at most its error. `o`, `low` and `high` are one row.
///
/// With weights w_j = p_j exp(e_j), |e_j| <= b_j, O' - O = sum w_j (v_j - O) / sum w_j, and since sum p_j (v_j - O) = 0
/// that is at most sum p_j (exp(b_j) - 1) |v_j - O| / sum p_j exp(-b_j). And whatever the weights are, O' lies between
/// the values of the keys that may have any weight.
void bound_output(const std::vector<AlikeKeys>& keys, double lse, std::int64_t head_dim, const double* o, double* low,
                  double* high) {
  constexpr double kNoWeight = 40;  // exp(-40) of the largest weight is none, for any number of keys
  double floor = -kInfinity, sum = 0;
  for (const AlikeKeys& key : keys) {
    floor = std::max(floor, key.score - key.error - kNoWeight);
    sum += key.count * std::exp(key.score - key.error - lse);
  }
  for (std::int64_t d = 0; d < head_dim; ++d) {
    if (!std::isfinite(o[d])) continue;
    double least = kInfinity, most = -kInfinity, change = 0;
    for (const AlikeKeys& key : keys) {
      const double value = key.value[std::size_t(d)];
      change +=
          key.count * (std::exp(key.score + key.error - lse) - std::exp(key.score - lse)) * std::abs(value - o[d]);
      if (key.score + key.error < floor) continue;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    change /= sum;
    if (!(change < kInfinity)) change = kInfinity;
    low[d] = std::min(o[d], std::max(least, o[d] - change));
    high[d] = std::max(o[d], std::min(most, o[d] + change));
  }
}

/// Attention of one task's rows, written to the task's positions of `result`, and to those of `bounds`, if there is
/// one.
template <typename Scalar, typename RoundScores, typename Round>
void attend(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
            const std::vector<RowId>& rows, const Task& task, const RoundScores& round_scores, const Round& round,
            AttentionRows& result, BoundedRows* bounds) {
  const std::int64_t count = std::int64_t(task.positions.size());
  const std::int64_t head_dim = problem.head_dim;
  const std::int64_t kv_head = task.head / (problem.heads / problem.kv_heads);
  const double scale = 1 / std::sqrt(double(head_dim));

  Matrix<double> queries(count, head_dim);
  std::vector<std::int64_t> visible(task.positions.size());  // a row sees keys 0 .. visible - 1
  for (std::int64_t i = 0; i < count; ++i) {
    const RowId& row = rows[task.positions[i]];
    load_row(q, row.batch, row.row, row.head, &queries(i, 0));
    visible[i] = problem.visible_keys(row.row);
  }
  const std::int64_t keys = *std::max_element(visible.begin(), visible.end());

  // S = scale Q K^T, in fp64 also for standard attention: keys that are alike then have the same score in fp32,
  // wherever they stand. Scores of keys that a row does not see are computed with the rest and overwritten below.
  Matrix<double> exact(count, keys);
  Matrix<double> errors(bounds ? count : 0, keys);  // what fp32 may make of each score
  Matrix<double> key_block(std::min(kKeyBlock, keys), head_dim);
  for (std::int64_t begin = 0; begin < keys; begin += kKeyBlock) {
    const std::int64_t size = std::min(kKeyBlock, keys - begin);
    for (std::int64_t j = 0; j < size; ++j) load_row(k, task.batch, begin + j, kv_head, &key_block(j, 0));
    exact.middleCols(begin, size).noalias() = queries * key_block.topRows(size).transpose();
    if (!bounds) continue;
    errors.middleCols(begin, size).noalias() = queries.cwiseAbs() * key_block.topRows(size).cwiseAbs().transpose();
  }
  exact *= scale;
  errors *= scale * score_error(head_dim);
  Matrix<Scalar> scores =
      exact.unaryExpr([&](double s) { return round_scores(Scalar(s)); });  // [rows, keys]: S, then P

  // P = softmax(S), zero where a row sees no key.
  for (std::int64_t i = 0; i < count; ++i) {
    if (bounds) {
      bounds->lse_error[task.positions[i]] = lse_error(&exact(i, 0), &errors(i, 0), visible[i]);
    }
    Scalar* const row = scores.data() + i * keys;
    result.lse[task.positions[i]] = softmax(row, visible[i], round);
    std::fill_n(row + visible[i], keys - visible[i], Scalar(0));
  }

  // O = P V. A value row with NaN or infinity is kept out of the product, where the zeros of rows that do not see it
  // would make NaN of it, and is added to the rows that see it.
  Matrix<Scalar> output = Matrix<Scalar>::Zero(count, head_dim);
  Matrix<Scalar> block(std::min(kKeyBlock, keys), head_dim);
  for (std::int64_t begin = 0; begin < keys; begin += kKeyBlock) {
    const std::int64_t size = std::min(kKeyBlock, keys - begin);
    for (std::int64_t j = 0; j < size; ++j) {
      load_row(v, task.batch, begin + j, kv_head, &block(j, 0));
      if (block.row(j).allFinite()) continue;
      for (std::int64_t i = 0; i < count; ++i) {
        if (begin + j < visible[i]) output.row(i) += scores(i, begin + j) * block.row(j);
      }
      block.row(j).setZero();
    }
    output.noalias() += scores.middleCols(begin, size) * block.topRows(size);
  }
  std::vector<std::int64_t> first;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t position = task.positions[i];
    double* const out = result.o.data() + std::int64_t(position) * head_dim;
    for (std::int64_t d = 0; d < head_dim; ++d) out[d] = round(output(i, d));
    if (!bounds) continue;
    double* const low = bounds->o_low.data() + std::int64_t(position) * head_dim;
    double* const high = bounds->o_high.data() + std::int64_t(position) * head_dim;
    std::copy_n(out, head_dim, low);
    std::copy_n(out, head_dim, high);
    if (bounds->lse_error[position] <= relative_rounding(problem.dtype)) continue;
    if (first.empty()) first = first_alike(k, task.batch, kv_head, keys);
    bound_output(merge_alike(first, &exact(i, 0), &errors(i, 0), visible[i], v, task.batch, kv_head),
                 result.lse[position], head_dim, out, low, high);
  }
}

/// Attention of `rows` in Scalar's arithmetic; S is rounded by `round_scores`, P and O by `round`.
template <typename Scalar, typename RoundScores, typename Round>
void attend_all(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                const std::vector<RowId>& rows, const RoundScores& round_scores, const Round& round,
                AttentionRows& result, BoundedRows* bounds = nullptr) {
  require_input(problem, q, k, v, rows);
  result.o.resize(rows.size() * std::size_t(problem.head_dim));
  result.lse.resize(rows.size());
  const std::vector<Task> tasks = group_by_head(problem, rows);
  parallel_for(std::int64_t(tasks.size()), 0, [&](std::int64_t t) {
    attend<Scalar>(problem, q, k, v, rows, tasks[std::size_t(t)], round_scores, round, result, bounds);
  });
}

}  // namespace

std::vector<RowId> all_rows(const Problem& problem) {
  std::vector<RowId> rows;
  rows.reserve(std::size_t(problem.batch * problem.heads * problem.seq_q));
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      for (std::int64_t i = 0; i < problem.seq_q; ++i) rows.push_back({b, h, i});
    }
  }
  return rows;
}

std::vector<RowId> sample_rows(const Problem& problem, std::int64_t count, const std::vector<std::int64_t>& tiles) {
  const std::int64_t heads = problem.batch * problem.heads;
  const std::int64_t total = heads * problem.seq_q;
  if (total <= std::max(count, kFullCheckPairs / problem.seq_kv)) return all_rows(problem);

  const std::int64_t last_batch = problem.batch - 1;
  const std::int64_t last_head = problem.heads - 1;
  const std::int64_t last_row = problem.seq_q - 1;
  std::set<RowId> sample;
  for (const std::int64_t b : {std::int64_t(0), last_batch}) {
    for (const std::int64_t h : {std::int64_t(0), last_head}) {
      for (const std::int64_t i : {std::int64_t(0), last_row}) sample.insert({b, h, i});
    }
  }

  std::vector<std::int64_t> edges = tiles;
  for (const std::int64_t tile : tiles) edges.push_back(last_row / tile * tile);
  if (problem.causal) edges.push_back(problem.seq_q - problem.seq_kv);
  for (const std::int64_t edge : edges) {
    for (const std::int64_t i : {edge - 1, edge, edge + 1}) {
      if (i < 0 || i > last_row) continue;
      sample.insert({0, 0, i});
      sample.insert({last_batch, last_head, i});
    }
  }

  // The engine's values are laid down by the standard; the distributions' are not, hence the remainders.
  std::mt19937_64 random(0);
  const std::int64_t rest = count - std::int64_t(sample.size());
  for (std::int64_t n = 0; n < rest; ++n) {
    const std::int64_t head = n % 2 == 0 ? n * heads / rest : std::int64_t(random() % std::uint64_t(heads));
    std::int64_t row = std::int64_t(random() % std::uint64_t(problem.seq_q));
    if (n % 4 < 2 && !tiles.empty()) {
      const std::int64_t tile = tiles[random() % tiles.size()];
      row = std::clamp<std::int64_t>(row / tile * tile + std::int64_t(random() % 3) - 1, 0, last_row);
    }
    sample.insert({head / problem.heads, head % problem.heads, row});
  }

  // Causal: the first rows see few keys, so that their outputs are large and err most. The limit is the error of
  // standard attention on these same rows, and a few of them would say little about it.
  if (problem.causal) {
    const std::int64_t first = std::max<std::int64_t>(0, problem.seq_q - problem.seq_kv);
    const std::int64_t step = (heads + 63) / 64;
    for (std::int64_t head = 0; head < heads; head += step) {
      for (std::int64_t i = first; i <= std::min(first + 3, last_row); ++i) {
        sample.insert({head / problem.heads, head % problem.heads, i});
      }
    }
  }
  return {sample.begin(), sample.end()};
}

AttentionRows reference_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                  const std::vector<RowId>& rows) {
  AttentionRows result;
  const auto keep = [](double x) { return x; };
  attend_all<double>(problem, q, k, v, rows, keep, keep, result);
  return result;
}

BoundedRows reference_with_bounds(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                  const std::vector<RowId>& rows) {
  BoundedRows result;
  result.lse_error.resize(rows.size());
  result.o_low.resize(rows.size() * std::size_t(problem.head_dim));
  result.o_high.resize(rows.size() * std::size_t(problem.head_dim));
  const auto keep = [](double x) { return x; };
  attend_all<double>(problem, q, k, v, rows, keep, keep, result, &result);
  return result;
}

AttentionRows standard_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                 const std::vector<RowId>& rows, bool round_scores) {
  AttentionRows result;
  const auto round = [&](float x) { return q.decode(q.encode(x)); };
  attend_all<float>(
      problem, q, k, v, rows, [&](float s) { return round_scores ? round(s) : s; }, round, result);
  return result;
}

}  // namespace flash
