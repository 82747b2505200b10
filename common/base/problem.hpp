// One attention problem: its shape, its element type, and the description of the tensors that hold it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/dtype.hpp"

namespace flash {

/// Forward attention O = softmax(Q K^T / sqrt(head_dim)) V with `heads` query heads over `kv_heads` key/value heads.
struct Problem {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;  // divides heads; query head h reads K/V head h / (heads / kv_heads)
  std::int64_t seq_q = 1;
  std::int64_t seq_kv = 1;
  std::int64_t head_dim = 64;
  bool causal = false;  // aligned bottom-right: query i sees key j when j <= i + seq_kv - seq_q
  DType dtype = DType::fp16;

  /// The factor on the scores, 1 / sqrt(head_dim).
  float scale() const { return 1.0f / std::sqrt(float(head_dim)); }

  /// How many keys query row `row` sees: keys 0 .. visible_keys(row) - 1; 0 for a row that sees nothing.
  std::int64_t visible_keys(std::int64_t row) const {
    if (!causal) return seq_kv;
    return std::clamp<std::int64_t>(row + 1 + seq_kv - seq_q, 0, seq_kv);
  }

  /// The field's convention for TFLOP/s: 4·b·h·Nq·Nk·d, half of that for causal.
  double flops() const {
    return (causal ? 2.0 : 4.0) * double(batch) * double(heads) * double(seq_q) * double(seq_kv) * double(head_dim);
  }

  /// Throws UsageError, one line, for a shape that no chapter can have: an extent below 1, heads not divisible by
  /// kv_heads, a head_dim that is not a multiple of 8, or more than 2^62 elements in a tensor.
  void validate() const;

  /// "b=1 h=16 kv=16 nq=4096 nk=4096 d=128 fp16 causal"
  std::string describe() const;
};

/// A tensor on some machine: [batch, heads, rows, cols] with any batch, head and row stride (in elements) and a
/// column stride of 1. Q, K, V and O have rows = sequence and cols = head_dim; per-row statistics (LSE) are
/// [batch, heads, 1, seq]. `name` labels the traffic counters and the fault reports.
struct TensorRef {
  const char* name = "";
  void* data = nullptr;
  std::int64_t batch = 1, heads = 1, rows = 1, cols = 1;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
  int element_bytes = 2;

  /// Bytes from the first element to one past the last.
  std::int64_t span_bytes() const {
    return ((batch - 1) * batch_stride + (heads - 1) * head_stride + (rows - 1) * row_stride + cols) * element_bytes;
  }
};

/// Contiguous [batch, rows, heads, cols], the layout of NumPy files and of PyTorch's attention modules.
TensorRef sequence_tensor(const char* name, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                          std::int64_t cols, int element_bytes = 2);

/// Contiguous [batch, heads, rows, cols] whose rows start at multiples of 32 bytes (one memory sector): the layout
/// of intermediate tensors that a chapter keeps in HBM.
TensorRef workspace_tensor(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                           std::int64_t cols, int element_bytes);

/// Contiguous fp32 [batch, heads, cols]: one statistic for each row of each head.
TensorRef statistics_tensor(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t cols);

/// What one launch of a chapter works on. The tensors lie on the machine that runs it.
struct AttentionCall {
  Problem problem;
  TensorRef q, k, v, o;              // [batch, seq, heads, head_dim] by strides
  TensorRef lse;                     // fp32 [batch, heads, seq_q]: log(sum exp(scale * scores)), natural log
  std::vector<TensorRef> workspace;  // what the chapter asked for, in its order
};

/// The tensors of a contiguous problem, with no memory behind them.
AttentionCall contiguous_call(const Problem& problem);

}  // namespace flash
