// Chapter 04: the bytes that FlashAttention-2's loop order should move (arXiv 2307.08691, algorithm 1).
//
// Each Q tile is a block of its own that reads Q once and, for each of the ceil(Nq / BlockQ) tiles, the K/V tiles that
// some row of it sees: with causal masking about half of them, whole tiles up to the diagonal. O and LSE are written
// once; O, m and l never reach HBM in between. So BlockQ decides the traffic and BlockKV does not, but for the rest of
// the diagonal's tiles: the mirror image of chapter 03.
//
// Compulsory: each tensor once. The blocks in flight at a time work on few heads, so their K and V stay in the L2 cache
// and HBM moves little more than that.
//
// A warp accesses 512 bytes of whole rows at once; of LSE 32 rows.
//
// Bank conflicts: none but in what a block does once, at its end.
//  O      each lane takes 8 neighbouring columns of a warp's share of O, in two loads of 16 bytes. Eight lanes are
//         answered at once; their pieces are 32 bytes apart, so they reach over 256 bytes and two lanes meet in each
//         bank: one wavefront more for each eight lanes, that is for each 64 columns of a row, in two loads for each of
//         the two shares.
//  LSE    a thread takes the maximum of its row from pairs: 4 bytes every 8. Up to 16 lanes find banks of their own,
//         more meet in twos.
#pragma once

#include "common/base/traffic.hpp"

namespace flash::fa2_loop_swap {

inline Traffic requested(const AttentionCall& call, const LaunchOptions& options) {
  return tiled_traffic(call, options.block_q, options.block_kv, whole_rows_sectors, 32);
}

/// sizeof(Storage) in kernel.cuh: Q, the larger of K with V and the two warps' shares of O, the statistics.
inline std::size_t shared_bytes(const Problem& p, const LaunchOptions& options) {
  const std::int64_t padded = p.head_dim + 8;
  const std::int64_t keys_and_values = 2 * options.block_kv * 2 * padded, shares = 2 * options.block_q * 4 * padded;
  const std::int64_t statistics = 2 * options.block_q * 2 * 4;
  return std::size_t(options.block_q * 2 * padded + std::max(keys_and_values, shares) + statistics);
}

inline BankConflicts bank_conflicts(const Problem& p, const LaunchOptions& options) {
  std::int64_t warps = 0;  // that take the maxima of more than 16 rows
  for (std::int64_t q_row = 0; q_row < p.seq_q; q_row += options.block_q) {
    const std::int64_t rows = std::min<std::int64_t>(options.block_q, p.seq_q - q_row);
    warps += rows / 32 + (rows % 32 > 16 ? 1 : 0);
  }
  BankConflicts conflicts;
  conflicts.loads = p.batch * p.heads * (p.seq_q * p.head_dim / 64 * 2 * 2 + warps);
  return conflicts;
}

inline ChapterInfo info() {
  ChapterInfo chapter;
  chapter.title = "FlashAttention-2's loop order: one block for each Q tile, O stays on chip";
  chapter.variants = {{"swapped", "Q outer loop as the grid, the keys of a tile split across pairs of warps"}};
  chapter.tiles = {{128, 64}, {128, 128}, {64, 64}, {32, 32}};
  chapter.shared_bytes = shared_bytes;
  chapter.needs = {80, false, "mma.sync on 16-bit elements with 16 keys"};
  chapter.refusal = [](const Problem& p, const LaunchOptions& options) {
    if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) {
      return "head-dim " + std::to_string(p.head_dim) + ": chapter 04 takes 64, 128 or 256";
    }
    const int block_q = p.head_dim == 256 ? 64 : 128, block_kv = p.head_dim == 64 ? 128 : 64;
    if (options.block_q == block_q && options.block_kv == block_kv) return std::string();
    // For GPUs with less shared memory than Hopper's.
    const int small_kv = p.head_dim == 256 ? 32 : 64;
    if (p.head_dim > 64 && options.block_q == block_q / 2 && options.block_kv == small_kv) return std::string();
    const auto tile = [](int q, int kv) { return std::to_string(q) + " by " + std::to_string(kv); };
    return "head-dim " + std::to_string(p.head_dim) + ": the tile is " + tile(block_q, block_kv) +
           (p.head_dim > 64 ? " or " + tile(block_q / 2, small_kv) : "") + ", which is what a warp's registers hold";
  };
  chapter.workspace = [](const Problem&, const LaunchOptions&) { return std::vector<TensorRef>{}; };
  chapter.requested = requested;
  chapter.bank_conflicts = bank_conflicts;
  chapter.compulsory = [](const AttentionCall& call, const LaunchOptions&) { return compulsory_traffic(call, {}); };
  chapter.requested_formula =
      "4·b·h·Nq·d [Q, O] + 4·b·h·ceil(Nq/block-q)·Nk·d [K, V; causal: the tiles up to the diagonal]";
  chapter.compulsory_formula = "4·b·h·Nq·d [Q, O] + 4·b·hkv·Nk·d [K, V]";
  return chapter;
}

}  // namespace flash::fa2_loop_swap
