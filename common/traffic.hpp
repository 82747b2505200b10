// Building blocks for a chapter's predictions (chapters/NN_name/traffic.hpp): which sectors an access touches.
#pragma once

#include <cstdint>
#include <vector>

#include "common/chapter.hpp"

namespace flash {

/// Byte offset of element (row, col) of one head from the tensor's first element, which lies at a sector's start.
inline std::int64_t byte_offset(const TensorRef& t, std::int64_t batch, std::int64_t head, std::int64_t row,
                                std::int64_t col) {
  return (batch * t.batch_stride + head * t.head_stride + row * t.row_stride + col) * t.element_bytes;
}

/// Sectors of columns [col, col + count) of one row, accessed by one warp at once.
inline std::int64_t row_sectors(const TensorRef& t, std::int64_t batch, std::int64_t head, std::int64_t row,
                                std::int64_t col, std::int64_t count) {
  return sectors(byte_offset(t, batch, head, row, col), count * t.element_bytes);
}

/// Sectors of a whole row that a warp accesses 64 columns at a time.
inline std::int64_t chunked_row_sectors(const TensorRef& t, std::int64_t batch, std::int64_t head, std::int64_t row) {
  std::int64_t sum = 0;
  for (std::int64_t col = 0; col < t.cols; col += 64) {
    sum += row_sectors(t, batch, head, row, col, std::min<std::int64_t>(64, t.cols - col));
  }
  return sum;
}

/// Each tensor of the call once: Q, K, V read, O and LSE written; then `kept` tensors written once and read once.
/// K and V count only the rows that some query sees.
Traffic compulsory_traffic(const AttentionCall& call, const std::vector<TensorRef>& kept);

}  // namespace flash
