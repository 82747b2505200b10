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

/// Attention of one task's rows, written to the task's positions of `result`.
template <typename Scalar, typename Round>
void attend(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
            const std::vector<RowId>& rows, const Task& task, const Round& round, AttentionRows& result) {
  const std::int64_t count = std::int64_t(task.positions.size());
  const std::int64_t head_dim = problem.head_dim;
  const std::int64_t kv_head = task.head / (problem.heads / problem.kv_heads);
  const Scalar scale = Scalar(1) / std::sqrt(Scalar(head_dim));

  Matrix<Scalar> queries(count, head_dim);
  std::vector<std::int64_t> visible(task.positions.size());  // a row sees keys 0 .. visible - 1
  for (std::int64_t i = 0; i < count; ++i) {
    const RowId& row = rows[task.positions[i]];
    load_row(q, row.batch, row.row, row.head, &queries(i, 0));
    visible[i] = problem.visible_keys(row.row);
  }
  const std::int64_t keys = *std::max_element(visible.begin(), visible.end());

  // S = scale Q K^T. Scores of keys that a row does not see are computed with the rest and overwritten below.
  Matrix<Scalar> scores(count, keys);  // [rows, keys]: S, then P
  Matrix<Scalar> block(std::min(kKeyBlock, keys), head_dim);
  for (std::int64_t begin = 0; begin < keys; begin += kKeyBlock) {
    const std::int64_t size = std::min(kKeyBlock, keys - begin);
    for (std::int64_t j = 0; j < size; ++j) load_row(k, task.batch, begin + j, kv_head, &block(j, 0));
    scores.middleCols(begin, size).noalias() = queries * block.topRows(size).transpose();
  }
  scores = scores.unaryExpr([&](Scalar s) { return round(s * scale); });

  // P = softmax(S), zero where a row sees no key.
  for (std::int64_t i = 0; i < count; ++i) {
    Scalar* const row = scores.data() + i * keys;
    result.lse[task.positions[i]] = softmax(row, visible[i], round);
    std::fill_n(row + visible[i], keys - visible[i], Scalar(0));
  }

  // O = P V. A value row with NaN or infinity is kept out of the product, where the zeros of rows that do not see it
  // would make NaN of it, and is added to the rows that see it.
  Matrix<Scalar> output = Matrix<Scalar>::Zero(count, head_dim);
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
  for (std::int64_t i = 0; i < count; ++i) {
    double* const out = result.o.data() + std::int64_t(task.positions[i]) * head_dim;
    for (std::int64_t d = 0; d < head_dim; ++d) out[d] = round(output(i, d));
  }
}

/// Attention of `rows` in Scalar's arithmetic; S, P and O pass through `round`.
template <typename Scalar, typename Round>
AttentionRows attend_all(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                         const std::vector<RowId>& rows, const Round& round) {
  require_input(problem, q, k, v, rows);
  AttentionRows result;
  result.o.resize(rows.size() * std::size_t(problem.head_dim));
  result.lse.resize(rows.size());
  const std::vector<Task> tasks = group_by_head(problem, rows);
  parallel_for(std::int64_t(tasks.size()), 0,
               [&](std::int64_t t) { attend<Scalar>(problem, q, k, v, rows, tasks[std::size_t(t)], round, result); });
  return result;
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
  return attend_all<double>(problem, q, k, v, rows, [](double x) { return x; });
}

AttentionRows standard_attention(const Problem& problem, const HostTensor& q, const HostTensor& k, const HostTensor& v,
                                 const std::vector<RowId>& rows) {
  return attend_all<float>(problem, q, k, v, rows, [&](float x) { return q.decode(q.encode(x)); });
}

}  // namespace flash
