// Building blocks for a chapter's predictions (chapters/NN_name/traffic.hpp): which sectors an access touches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/chapter.hpp"

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

/// Sectors of columns [col, col + count) of rows [row, row + rows), accessed by one warp at once: neighbouring rows may
/// share a sector. Row strides are not negative.
inline std::int64_t rows_sectors(const TensorRef& t, std::int64_t batch, std::int64_t head, std::int64_t row,
                                 std::int64_t rows, std::int64_t col, std::int64_t count) {
  std::int64_t sum = 0, next = 0;  // the first sector that is not counted yet
  for (std::int64_t r = row; r < row + rows; ++r) {
    const std::int64_t start = byte_offset(t, batch, head, r, col);
    const std::int64_t end = (start + count * t.element_bytes - 1) / 32 + 1;
    sum += std::max<std::int64_t>(0, end - std::max(start / 32, next));
    next = std::max(next, end);
  }
  return sum;
}

/// Element n: sectors of the first n whole rows, of which a warp accesses as many at once as 32 lanes of 16 bytes
/// cover.
inline std::vector<std::int64_t> whole_rows_sectors(const TensorRef& t, std::int64_t batch, std::int64_t head) {
  const std::int64_t at_once = 512 / (t.cols * t.element_bytes);
  std::vector<std::int64_t> sum(std::size_t(t.rows) + 1, 0);
  for (std::int64_t n = 1; n <= t.rows; ++n) {
    const std::int64_t first = (n - 1) / at_once * at_once;
    sum[std::size_t(n)] = sum[std::size_t(first)] + rows_sectors(t, batch, head, first, n - first, 0, t.cols);
  }
  return sum;
}

/// Sectors of a head's statistics, of which a warp accesses the `rows` of one tile at once.
inline std::int64_t statistics_sectors(const TensorRef& t, std::int64_t batch, std::int64_t head, std::int64_t rows) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < t.cols; i += rows) {
    sum += row_sectors(t, batch, head, 0, i, std::min(rows, t.cols - i));
  }
  return sum;
}

/// Element n: sectors of the first n whole rows, which the copy engine moves in runs of 128 bytes.
std::vector<std::int64_t> box_rows_sectors(const TensorRef& t, std::int64_t batch, std::int64_t head);

/// How the rows of a head are moved: whole_rows_sectors or box_rows_sectors.
using RowsSectors = std::vector<std::int64_t> (*)(const TensorRef& t, std::int64_t batch, std::int64_t head);

/// What kernels with a block for each `block_q` query rows ask for: Q and O once, and for each block K and V up to the
/// last row that some query of it sees, in whole tiles of `block_kv`, `least_tiles` at least. LSE is written by the
/// warps, `lse_rows` at once.
Traffic tiled_traffic(const AttentionCall& call, std::int64_t block_q, std::int64_t block_kv, RowsSectors rows_sectors,
                      std::int64_t lse_rows, std::int64_t least_tiles = 0);

/// Each tensor of the call once: Q, K, V read, O and LSE written; then `kept` tensors written once and read once.
/// K and V count only the rows that some query sees.
Traffic compulsory_traffic(const AttentionCall& call, const std::vector<TensorRef>& kept);

}  // namespace flash
