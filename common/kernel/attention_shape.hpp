// The problem as kernels see it: a few integers by value.
#pragma once

#include <limits>
#include <string>

#include "common/base/error.hpp"
#include "common/base/layout.hpp"
#include "common/base/problem.hpp"

namespace flash {

struct AttentionShape {
  int batch, heads, heads_per_kv_head;
  int seq_q, seq_kv, head_dim;
  bool causal;
  float scale;       // 1 / sqrt(head_dim)
  float scale_log2;  // scale·log2 e, for exponentials in base 2

  /// Throws UsageError for extents that kernels cannot number with an int.
  explicit AttentionShape(const Problem& p)
      : batch(int(p.batch)),
        heads(int(p.heads)),
        heads_per_kv_head(int(p.heads / p.kv_heads)),
        seq_q(int(p.seq_q)),
        seq_kv(int(p.seq_kv)),
        head_dim(int(p.head_dim)),
        causal(p.causal),
        scale(p.scale()),
        scale_log2(scale * 1.4426950408889634f) {
    for (const std::int64_t extent : {p.batch, p.heads, p.head_dim, p.seq_q + p.seq_kv}) {
      if (extent > std::numeric_limits<int>::max()) {
        throw UsageError(p.describe() + ": kernels take up to 2^31 - 1 queries and keys together");
      }
    }
  }

  /// Query row `row` sees keys 0 .. visible_keys(row) - 1. Causal is aligned bottom-right: the last row sees all keys.
  FLASH_HOST_DEVICE int visible_keys(int row) const {
    if (!causal) return seq_kv;
    const int visible = row + 1 + seq_kv - seq_q;
    return visible < 0 ? 0 : visible > seq_kv ? seq_kv : visible;
  }
};

FLASH_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace flash
