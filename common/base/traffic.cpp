#include "common/base/traffic.hpp"

namespace flash {

std::vector<std::int64_t> box_rows_sectors(const TensorRef& t, std::int64_t batch, std::int64_t head) {
  const std::int64_t run = 128 / t.element_bytes;  // columns
  std::vector<std::int64_t> sum(std::size_t(t.rows) + 1, 0);
  for (std::int64_t n = 1; n <= t.rows; ++n) {
    sum[std::size_t(n)] = sum[std::size_t(n - 1)];
    for (std::int64_t col = 0; col < t.cols; col += run)
      sum[std::size_t(n)] += row_sectors(t, batch, head, n - 1, col, run);
  }
  return sum;
}

Traffic tiled_traffic(const AttentionCall& call, std::int64_t block_q, std::int64_t block_kv, RowsSectors rows_sectors,
                      std::int64_t lse_rows, std::int64_t least_tiles) {
  const Problem& p = call.problem;
  const std::int64_t group = p.heads / p.kv_heads;
  std::int64_t q = 0, k = 0, v = 0, o = 0, lse = 0;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      q += rows_sectors(call.q, batch, head).back();
      o += rows_sectors(call.o, batch, head).back();
      lse += statistics_sectors(call.lse, batch, head, lse_rows);
      const auto k_rows = rows_sectors(call.k, batch, head / group);
      const auto v_rows = rows_sectors(call.v, batch, head / group);
      for (std::int64_t row = 0; row < p.seq_q; row += block_q) {
        const std::int64_t visible = p.visible_keys(row + block_q - 1);
        const std::int64_t tiles = std::max((visible + block_kv - 1) / block_kv, least_tiles);
        const auto rows = std::size_t(std::min(p.seq_kv, tiles * block_kv));
        k += k_rows[rows];
        v += v_rows[rows];
      }
    }
  }
  Traffic traffic;
  traffic.add("Q", 32 * q, 0);
  traffic.add("K", 32 * k, 0);
  traffic.add("V", 32 * v, 0);
  traffic.add("O", 0, 32 * o);
  traffic.add("LSE", 0, 32 * lse);
  return traffic;
}

Traffic compulsory_traffic(const AttentionCall& call, const std::vector<TensorRef>& kept) {
  const Problem& p = call.problem;
  const auto bytes = [](const TensorRef& t) { return t.batch * t.heads * t.rows * t.cols * t.element_bytes; };
  Traffic traffic;
  traffic.add("Q", bytes(call.q), 0);
  // The last row sees the most keys; with causal masking and more queries than keys that is still all of them.
  const bool any_visible = p.visible_keys(p.seq_q - 1) > 0;
  traffic.add("K", any_visible ? bytes(call.k) : 0, 0);
  traffic.add("V", any_visible ? bytes(call.v) : 0, 0);
  for (const TensorRef& t : kept) traffic.add(t.name, bytes(t), bytes(t));
  traffic.add("O", 0, bytes(call.o));
  traffic.add("LSE", 0, bytes(call.lse));
  return traffic;
}

}  // namespace flash
