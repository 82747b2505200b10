#include "common/base/problem.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <optional>

#include "common/base/error.hpp"

namespace flash {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t(1) << 62;

/// The product of positive factors; no value where it does not fit 64 bits.
std::optional<std::int64_t> product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) return std::nullopt;
  }
  return result;
}

/// What --kv-heads could be instead of `kv_heads`: all divisors of `heads` where these are few, else the nearest.
std::string suggest_kv_heads(std::int64_t heads, std::int64_t kv_heads) {
  constexpr std::int64_t kMaxSearched = 1 << 16;
  constexpr std::size_t kMaxListed = 8;
  if (heads > kMaxSearched) return fmt::format("1, {} or another divisor of it", heads);
  std::vector<std::int64_t> divisors;
  for (std::int64_t i = 1; i <= heads; ++i) {
    if (heads % i == 0) divisors.push_back(i);
  }
  if (divisors.size() > kMaxListed) {
    // 1 and `heads` are divisors, so there is one on each side.
    const auto above = std::upper_bound(divisors.begin(), divisors.end(), std::min(kv_heads, heads - 1));
    return fmt::format("{}, {} or another divisor of {}", *(above - 1), *above, heads);
  }
  std::string list = fmt::format("{}", divisors.front());
  for (std::size_t i = 1; i < divisors.size(); ++i) {
    list += fmt::format("{}{}", i + 1 == divisors.size() ? " or " : ", ", divisors[i]);
  }
  return list;
}

void require_at_least_one(const char* option, std::int64_t value) {
  if (value < 1) throw UsageError(fmt::format("{} is {}: it must be at least 1", option, value));
}

void require_countable(const char* tensor, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                       std::int64_t cols) {
  const auto elements = product({batch, rows, heads, cols});
  if (!elements || *elements > kMaxElements) {
    throw UsageError(
        fmt::format("{} of batch {} x seq {} x heads {} x head-dim {} has more than 2^62 elements: make one of these "
                    "smaller",
                    tensor, batch, rows, heads, cols));
  }
}

/// Throws UsageError if the bytes of these many elements cannot be counted in 64 bits.
void require_addressable(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                         std::int64_t row_elements, int element_bytes) {
  if (!product({batch, heads, rows, row_elements, element_bytes})) {
    throw UsageError(fmt::format("tensor {} of {} x {} x {} x {} elements of {} bytes is beyond 64-bit addresses", name,
                                 batch, heads, rows, row_elements, element_bytes));
  }
}

}  // namespace

void Problem::validate() const {
  require_at_least_one("batch", batch);
  require_at_least_one("heads", heads);
  require_at_least_one("kv-heads", kv_heads);
  require_at_least_one("seq", seq_q);
  require_at_least_one("seq-kv", seq_kv);
  require_at_least_one("head-dim", head_dim);
  if (heads % kv_heads != 0) {
    throw UsageError(fmt::format("heads {} is not a multiple of kv-heads {}: use --kv-heads {}", heads, kv_heads,
                                 suggest_kv_heads(heads, kv_heads)));
  }
  require_countable("Q", batch, seq_q, heads, head_dim);
  require_countable("K", batch, seq_kv, kv_heads, head_dim);
  if (head_dim % 8 != 0) {
    const std::int64_t below = head_dim / 8 * 8;
    const std::string use = below == 0 ? "8" : fmt::format("{} or {}", below, below + 8);
    throw UsageError(fmt::format("head-dim {} is not a multiple of 8: use --head-dim {}", head_dim, use));
  }
}

std::string Problem::describe() const {
  return fmt::format("b={} h={} kv={} nq={} nk={} d={} {}{}", batch, heads, kv_heads, seq_q, seq_kv, head_dim,
                     to_string(dtype), causal ? " causal" : "");
}

TensorRef sequence_tensor(const char* name, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                          std::int64_t cols, int element_bytes) {
  require_addressable(name, batch, heads, rows, cols, element_bytes);
  TensorRef tensor;
  tensor.name = name;
  tensor.batch = batch;
  tensor.heads = heads;
  tensor.rows = rows;
  tensor.cols = cols;
  tensor.head_stride = cols;
  tensor.row_stride = heads * cols;
  tensor.batch_stride = rows * heads * cols;
  tensor.element_bytes = element_bytes;
  return tensor;
}

TensorRef workspace_tensor(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                           std::int64_t cols, int element_bytes) {
  const std::int64_t sector_elements = 32 / element_bytes;
  // Checked before the padding, which could overflow, and with it.
  require_addressable(name, batch, heads, rows, cols, element_bytes);
  const std::int64_t padded_sectors = (cols - 1) / sector_elements + 1;
  require_addressable(name, batch, heads, rows, padded_sectors, 32);
  TensorRef tensor;
  tensor.name = name;
  tensor.batch = batch;
  tensor.heads = heads;
  tensor.rows = rows;
  tensor.cols = cols;
  tensor.row_stride = padded_sectors * sector_elements;
  tensor.head_stride = rows * tensor.row_stride;
  tensor.batch_stride = heads * tensor.head_stride;
  tensor.element_bytes = element_bytes;
  return tensor;
}

TensorRef statistics_tensor(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t cols) {
  require_addressable(name, batch, heads, 1, cols, 4);
  TensorRef tensor;
  tensor.name = name;
  tensor.batch = batch;
  tensor.heads = heads;
  tensor.rows = 1;
  tensor.cols = cols;
  tensor.row_stride = cols;
  tensor.head_stride = cols;
  tensor.batch_stride = heads * cols;
  tensor.element_bytes = 4;
  return tensor;
}

AttentionCall contiguous_call(const Problem& problem) {
  AttentionCall call;
  call.problem = problem;
  call.q = sequence_tensor("Q", problem.batch, problem.seq_q, problem.heads, problem.head_dim);
  call.k = sequence_tensor("K", problem.batch, problem.seq_kv, problem.kv_heads, problem.head_dim);
  call.v = sequence_tensor("V", problem.batch, problem.seq_kv, problem.kv_heads, problem.head_dim);
  call.o = sequence_tensor("O", problem.batch, problem.seq_q, problem.heads, problem.head_dim);
  call.lse = statistics_tensor("LSE", problem.batch, problem.heads, problem.seq_q);
  return call;
}

}  // namespace flash
