// Chapter 07: the bytes that attention on wgmma should move.
//
// Compulsory: Q, K, V, O and LSE once.
//
// Requested: Q and O once, and for each block of BlockQ query rows the K and V rows that some row of it sees, in whole
// tiles. wgmma reads shared memory only, so it changes nothing here.
//
// Bank conflicts: none.
#pragma once

#include "common/base/traffic.hpp"

namespace flash::fa3_wgmma {

inline Traffic requested(const AttentionCall& call, const LaunchOptions& options) {
  // LSE: of half an accumulator's rows at once.
  return tiled_traffic(call, options.block_q, options.block_kv, box_rows_sectors, 8);
}

inline std::string refusal(const Problem& p, const LaunchOptions& options) {
  const std::string head_dim = "head-dim " + std::to_string(p.head_dim);
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) return head_dim + ": chapter 07 takes 64, 128 or 256";
  const TileShape tile = p.head_dim == 64 ? TileShape{192, 128} : TileShape{128, p.head_dim == 128 ? 128 : 64};
  if (options.block_q == tile.block_q && options.block_kv == tile.block_kv) return "";
  return head_dim + " is compiled for one tile: use --block-q " + std::to_string(tile.block_q) + " --block-kv " +
         std::to_string(tile.block_kv);
}

/// sizeof(Storage) in kernel.cuh: Q, the stages of K and V, and the barriers.
inline std::size_t shared_bytes(const Problem& p, const LaunchOptions& options) {
  const std::int64_t stages = p.head_dim == 64 ? 3 : 2;
  return std::size_t(2 * p.head_dim * (options.block_q + 2 * stages * options.block_kv) + 8 * (1 + 2 * stages));
}

inline ChapterInfo info() {
  ChapterInfo chapter;
  chapter.title = "FlashAttention-3, second step: both products on wgmma, fed from shared memory";
  chapter.variants = {{"wgmma", "each product is waited for"}};
  chapter.tiles = {{128, 128}, {192, 128}, {128, 64}};
  chapter.shared_bytes = shared_bytes;
  chapter.needs = {90, true, "TMA, wgmma"};
  chapter.refusal = refusal;
  chapter.workspace = [](const Problem&, const LaunchOptions&) { return std::vector<TensorRef>{}; };
  chapter.requested = requested;
  chapter.compulsory = [](const AttentionCall& call, const LaunchOptions&) { return compulsory_traffic(call, {}); };
  chapter.requested_formula =
      "4·b·h·Nq·d [Q, O] + 4·b·h·ceil(Nq/block-q)·Nk·d [K, V; causal: the tiles up to the diagonal]";
  chapter.compulsory_formula = "4·b·h·Nq·d [Q, O] + 4·b·hkv·Nk·d [K, V]";
  return chapter;
}

}  // namespace flash::fa3_wgmma
