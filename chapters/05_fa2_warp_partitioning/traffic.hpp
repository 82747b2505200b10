// Chapter 05: the bytes that FlashAttention-2 should move.
//
// Compulsory: Q, K, V, O and LSE once.
//
// Requested: Q and O once. Each block of BlockQ query rows asks once for the K and V rows that some row of it sees, in
// whole tiles of BlockKV: b·h·Nq·Nk/BlockQ rows of each, about half for causal. How the warps of the block share
// the work does not change that. Every access is of whole rows: 32 lanes of 16 bytes.
//
// Bank conflicts: none in swizzled tiles. With row-major ones (no-swizzle) a row is a whole number of 128 bytes, so a
// column of pieces lies in the same four banks. Each ldmatrix reads four times eight such pieces: 4 wavefronts become
// 32. And each store of O, 8 rows of 16 bytes at once, takes 8 wavefronts and not one.
#pragma once

#include "common/base/traffic.hpp"

namespace flash::fa2_warp_partitioning {

inline Traffic requested(const AttentionCall& call, const LaunchOptions& options) {
  // LSE: of half an accumulator's rows at once.
  return tiled_traffic(call, options.block_q, options.block_kv, whole_rows_sectors, 8);
}

/// ldmatrix instructions of all blocks with split-q's kernel.
inline std::int64_t ldmatrix_count(const Problem& p, const LaunchOptions& options) {
  const std::int64_t BlockQ = options.block_q, BlockKV = options.block_kv, depth = p.head_dim / 16;
  const std::int64_t warp_rows = p.head_dim <= 128 ? 32 : 16, row_tiles = warp_rows / 16;
  const bool q_in_registers = p.head_dim == 64;
  std::int64_t of_head = 0;
  for (std::int64_t q_row = 0; q_row < p.seq_q; q_row += BlockQ) {
    for (std::int64_t warp_row = q_row; warp_row < q_row + BlockQ; warp_row += warp_rows) {
      // Tiles that some row of the warp sees: all of K, and Q beside it or once; V in pieces of 16 keys.
      const std::int64_t sees = p.visible_keys(warp_row + warp_rows - 1), tiles = (sees + BlockKV - 1) / BlockKV;
      of_head += q_in_registers ? row_tiles * depth : tiles * row_tiles * depth;
      of_head += tiles * BlockKV / 16 * depth + (sees + 15) / 16 * depth;
    }
  }
  return p.batch * p.heads * of_head;
}

inline BankConflicts bank_conflicts(const Problem& p, const LaunchOptions& options) {
  BankConflicts conflicts;
  if (options.variant != "no-swizzle") return conflicts;
  // O: 8 rows and 8 columns a store, for all rows of all Q tiles.
  const std::int64_t rows = (p.seq_q + options.block_q - 1) / options.block_q * options.block_q;
  conflicts.stores = p.batch * p.heads * (rows / 8) * (p.head_dim / 8) * (8 - 1);
  conflicts.ldmatrix = ldmatrix_count(p, options) * (32 - 4);
  return conflicts;
}

inline std::string refusal(const Problem& p, const LaunchOptions& options) {
  const std::string head_dim = "head-dim " + std::to_string(p.head_dim);
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) return head_dim + ": chapter 05 takes 64, 128 or 256";
  if (options.block_q == 256 && p.head_dim == 256) {
    return head_dim + ": a block of 256 rows would have 16 warps, and registers for 8; use --block-q 128";
  }
  if (options.block_kv == 32 && p.head_dim != 256) {
    return head_dim +
           ": tiles of 32 keys are for head-dim 256, where less shared memory than Hopper's holds no others; " +
           "use --block-kv 64";
  }
  if (options.variant != "split-q" && (options.block_q != 128 || options.block_kv != 64)) {
    return options.variant + " is compiled for one tile: use --block-q 128 --block-kv 64";
  }
  return "";
}

/// sizeof(Storage) in kernel.cuh and split_k.cuh: Q, two stages of K and V; for split-k what the warps exchange as
/// well.
inline std::size_t shared_bytes(const Problem& p, const LaunchOptions& options) {
  const std::int64_t tiles = 2 * p.head_dim * (options.block_q + 4 * options.block_kv);
  const std::int64_t shares = 4 * options.block_q * 8 * 4, statistics = (2 * 4 + 2) * options.block_q * 4;
  return std::size_t(options.variant == "split-k" ? tiles + shares + statistics : tiles);
}

inline ChapterInfo info() {
  ChapterInfo chapter;
  chapter.title = "FlashAttention-2: each warp owns query rows, P stays in registers";
  chapter.variants = {
      {"split-q", "each warp owns query rows"},
      {"split-k", "the warps split the keys of each tile and exchange their sums, as in FlashAttention-1"},
      {"no-swizzle", "split-q with the 16-byte pieces of a row in order: bank conflicts"}};
  chapter.tiles = {{128, 64}, {256, 64}, {128, 32}, {64, 32}};
  chapter.shared_bytes = shared_bytes;
  chapter.needs = {80, false, "mma.sync on 16-bit elements with 16 keys, cp.async"};
  chapter.refusal = refusal;
  chapter.workspace = [](const Problem&, const LaunchOptions&) { return std::vector<TensorRef>{}; };
  chapter.requested = requested;
  chapter.bank_conflicts = bank_conflicts;
  chapter.compulsory = [](const AttentionCall& call, const LaunchOptions&) { return compulsory_traffic(call, {}); };
  chapter.requested_formula =
      "4·b·h·Nq·d [Q, O] + 4·b·h·ceil(Nq/block-q)·Nk·d [K, V; causal: the tiles up to the diagonal]";
  chapter.compulsory_formula = "4·b·h·Nq·d [Q, O] + 4·b·hkv·Nk·d [K, V]";
  return chapter;
}

}  // namespace flash::fa2_warp_partitioning
