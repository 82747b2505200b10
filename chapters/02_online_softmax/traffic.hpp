// Chapter 02: the bytes that one-pass attention should move.
//
// Compulsory: Q, K, V, O and LSE once, O(N·d): nothing of size Nq·Nk is left.
//
// Requested: every row asks for all the K and V rows that it sees, 4·Nq·Nk·d bytes for each head (K twice more in the
// `safe` variant, which computes the scores in each of its three passes). Whole rows are accessed 64 columns at a time.
#pragma once

#include "common/base/traffic.hpp"

namespace flash::online_softmax {

inline Traffic requested(const AttentionCall& call, const LaunchOptions& options) {
  const Problem& p = call.problem;
  const std::int64_t group = p.heads / p.kv_heads;
  const std::int64_t passes_over_k = options.variant == "safe" ? 3 : 1;
  std::int64_t q = 0, k = 0, v = 0, o = 0;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      // Sectors of the first n rows of K and V.
      std::vector<std::int64_t> k_rows(std::size_t(p.seq_kv) + 1, 0), v_rows(std::size_t(p.seq_kv) + 1, 0);
      for (std::int64_t key = 0; key < p.seq_kv; ++key) {
        const auto at = std::size_t(key);
        k_rows[at + 1] = k_rows[at] + chunked_row_sectors(call.k, batch, head / group, key);
        v_rows[at + 1] = v_rows[at] + chunked_row_sectors(call.v, batch, head / group, key);
      }
      for (std::int64_t row = 0; row < p.seq_q; ++row) {
        const auto visible = std::size_t(p.visible_keys(row));
        q += chunked_row_sectors(call.q, batch, head, row);
        k += passes_over_k * k_rows[visible];
        v += v_rows[visible];
        o += chunked_row_sectors(call.o, batch, head, row);
      }
    }
  }
  Traffic traffic;
  traffic.add("Q", 32 * q, 0);
  traffic.add("K", 32 * k, 0);
  traffic.add("V", 32 * v, 0);
  traffic.add("O", 0, 32 * o);
  traffic.add("LSE", 0, 32 * p.batch * p.heads * p.seq_q);  // 4 bytes a row, each a store of its own
  return traffic;
}

inline ChapterInfo info() {
  ChapterInfo chapter;
  chapter.title = "online softmax: one pass over the keys, no N×N tensor";
  chapter.variants = {{"online", "the (m, l) recurrence, one pass"}, {"safe", "three passes: maximum, sum, output"}};
  chapter.refusal = [](const Problem& p, const LaunchOptions&) {
    return p.head_dim <= 512 ? std::string()
                             : "head-dim " + std::to_string(p.head_dim) + ": chapter 02 takes up to 512";
  };
  chapter.workspace = [](const Problem&, const LaunchOptions&) { return std::vector<TensorRef>{}; };
  chapter.requested = requested;
  chapter.compulsory = [](const AttentionCall& call, const LaunchOptions&) { return compulsory_traffic(call, {}); };
  chapter.requested_formula = "b·h·Nq·Nk·2·d·(1 [K; 3 in safe] + 1 [V]) + 4·b·h·Nq·d [Q, O] + 32·b·h·Nq [LSE]";
  chapter.compulsory_formula = "4·b·h·Nq·d [Q, O] + 4·b·hkv·Nk·d [K, V] + 4·b·h·Nq [LSE]";
  return chapter;
}

}  // namespace flash::online_softmax
