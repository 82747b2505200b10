// Chapter 03: the bytes that FlashAttention-1 should move (arXiv 2205.14135, algorithm 1).
//
// With T = ceil(Nk / BlockKV) K/V tiles, each head reads K and V once, and Q once for each K/V tile. O, m and l are
// read before and written after each K/V tile but the first and the last: nothing is there to read for the first, and
// the last writes the results O and LSE in their place. So BlockKV decides the traffic and BlockQ does not.
//
// The paper's count is the same: T trips over the N·d elements of Q and O, and with BlockKV = M / 4d for M elements of
// on-chip memory T = 4·N·d / M, which makes Θ(N²·d² / M) elements. It keeps O in the precision of Q; here the partial
// O has 4 bytes (kernel.cuh says why), so each trip moves 2 + 4 + 4 bytes for each of the N·d elements.
//
// Compulsory: each tensor once, the partial O, m and l among them when there is more than one K/V tile. HBM moves less
// than what is requested only as far as the L2 cache holds the Q and the partial O of all heads in flight.
//
// A warp accesses 512 bytes of whole rows at once; of O and the partial O 128 elements, four rows of its 32 columns or
// eight of 16; of m, l and LSE the rows of one tile.
#pragma once

#include "common/base/traffic.hpp"

namespace flash::fa1_tiling {

inline std::vector<TensorRef> workspace(const Problem& p, const LaunchOptions&) {
  return {workspace_tensor("O_partial", p.batch, p.heads, p.seq_q, p.head_dim, 4),
          statistics_tensor("m", p.batch, p.heads, p.seq_q), statistics_tensor("l", p.batch, p.heads, p.seq_q)};
}

inline Traffic requested(const AttentionCall& call, const LaunchOptions& options) {
  const Problem& p = call.problem;
  const std::int64_t group = p.heads / p.kv_heads;
  const std::int64_t kv_blocks = (p.seq_kv + options.block_kv - 1) / options.block_kv;
  const std::int64_t piece_cols = std::min<std::int64_t>(p.head_dim, 128) / 4, piece_rows = 128 / piece_cols;
  std::int64_t q = 0, k = 0, v = 0, o = 0, lse = 0;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      q += kv_blocks * whole_rows_sectors(call.q, batch, head).back();
      k += whole_rows_sectors(call.k, batch, head / group).back();
      v += whole_rows_sectors(call.v, batch, head / group).back();
      for (std::int64_t row = 0; row < p.seq_q; row += piece_rows) {
        for (std::int64_t col = 0; col < p.head_dim; col += piece_cols) {
          o += rows_sectors(call.o, batch, head, row, std::min(piece_rows, p.seq_q - row), col, piece_cols);
        }
      }
      lse += statistics_sectors(call.lse, batch, head, options.block_q);
    }
  }
  // m and l lie as LSE does; rows of the partial O are whole sectors.
  const std::int64_t statistics = 32 * lse * (kv_blocks - 1);
  const std::int64_t partial = 4 * p.batch * p.heads * p.seq_q * p.head_dim * (kv_blocks - 1);
  Traffic traffic;
  traffic.add("Q", 32 * q, 0);
  traffic.add("K", 32 * k, 0);
  traffic.add("V", 32 * v, 0);
  traffic.add("O_partial", partial, partial);
  traffic.add("m", statistics, statistics);
  traffic.add("l", statistics, statistics);
  traffic.add("O", 0, 32 * o);
  traffic.add("LSE", 0, 32 * lse);
  return traffic;
}

/// sizeof(Storage) in kernel.cuh: K and V, and for each group Q, the sums of P·V and the statistics of its rows.
inline std::size_t shared_bytes(const Problem& p, const LaunchOptions& options) {
  const std::int64_t padded = 2 * (p.head_dim + 8), sums = 4 * (std::min<std::int64_t>(p.head_dim, 128) + 8);
  const std::int64_t groups = p.head_dim <= 128 ? 3 : options.block_q == 32 ? 2 : 1;
  const std::int64_t statistics = (2 * 4 + 2) * 4;  // two of each of the 4 warps, two weights
  return std::size_t(2 * options.block_kv * padded + groups * options.block_q * (padded + sums + statistics));
}

inline ChapterInfo info() {
  ChapterInfo chapter;
  chapter.title = "FlashAttention-1: tiles in shared memory, K/V outer loop, O, m and l in HBM between steps";
  chapter.variants = {{"tiled", "one block for each head, groups of warps, the keys of a tile split across each"}};
  chapter.tiles = {{32, 256}, {32, 128}, {16, 128}, {32, 64}, {16, 64}};
  chapter.shared_bytes = shared_bytes;
  chapter.needs = {80, false, "mma.sync on 16-bit elements with 16 keys"};
  chapter.refusal = [](const Problem& p, const LaunchOptions& options) {
    if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) {
      return "head-dim " + std::to_string(p.head_dim) + ": chapter 03 takes 64, 128 or 256";
    }
    if (p.head_dim == 256 && options.block_kv == 256) {
      return std::string(
          "head-dim 256 with block-kv 256: K and V alone would take 256 KB of shared memory, an SM has "
          "227; use --block-kv 128 or 64");
    }
    return std::string();
  };
  chapter.workspace = workspace;
  chapter.requested = requested;
  chapter.compulsory = [](const AttentionCall& call, const LaunchOptions& options) {
    const std::vector<TensorRef> partial = workspace(call.problem, options);
    if (call.problem.seq_kv > options.block_kv) return compulsory_traffic(call, partial);
    Traffic traffic = compulsory_traffic(call, {});
    for (const TensorRef& t : partial) traffic.add(t.name, 0, 0);
    return traffic;
  };
  chapter.rereads_hbm = true;
  chapter.requested_formula =
      "b·h·Nq·d·(2·T [Q] + 8·(T-1) [O_partial] + 2 [O]) + b·h·Nq·16·(T-1) [m, l] + 4·b·h·Nk·d [K, V], "
      "T = ceil(Nk/block-kv)";
  chapter.compulsory_formula = "4·b·h·Nq·d [Q, O] + 4·b·hkv·Nk·d [K, V] + b·h·Nq·(8·d + 16) [O_partial, m, l]";
  return chapter;
}

}  // namespace flash::fa1_tiling
