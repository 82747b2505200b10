// Chapter 06: the bytes that the copy engine should move.
//
// Compulsory: Q, K, V, O and LSE once.
//
// Requested: as in chapter 05. Each block of BlockQ query rows asks once for Q and O and for the K and V rows that some
// row of it sees, in whole tiles. A box brings each row in runs of 128 bytes; rows behind the end of a tensor cost
// nothing.
//
// Bank conflicts: none.
#pragma once

#include "common/base/traffic.hpp"

namespace flash::fa3_tma {

inline Traffic requested(const AttentionCall& call, const LaunchOptions& options) {
  // LSE: of half an accumulator's rows at once.
  return tiled_traffic(call, options.block_q, options.block_kv, box_rows_sectors, 8);
}

inline std::string refusal(const Problem& p, const LaunchOptions&) {
  if (p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256) return "";
  return "head-dim " + std::to_string(p.head_dim) + ": chapter 06 takes 64, 128 or 256";
}

/// sizeof(Storage) in kernel.cuh: Q, the stages of K and V, and the barriers.
inline std::size_t shared_bytes(const Problem& p, const LaunchOptions& options) {
  const std::int64_t stages = p.head_dim == 64 ? 3 : 2;
  return std::size_t(2 * p.head_dim * (options.block_q + 2 * stages * options.block_kv) + 8 * (1 + 2 * stages));
}

inline ChapterInfo info() {
  ChapterInfo chapter;
  chapter.title = "FlashAttention-3, first step: one thread has the copy engine bring whole tiles";
  chapter.variants = {{"tma", "tiles by tensor maps, completion by mbarriers"}};
  chapter.tiles = {{128, 64}};
  chapter.shared_bytes = shared_bytes;
  chapter.needs = {90, true, "TMA"};
  chapter.refusal = refusal;
  chapter.workspace = [](const Problem&, const LaunchOptions&) { return std::vector<TensorRef>{}; };
  chapter.requested = requested;
  chapter.compulsory = [](const AttentionCall& call, const LaunchOptions&) { return compulsory_traffic(call, {}); };
  chapter.requested_formula =
      "4·b·h·Nq·d [Q, O] + 4·b·h·ceil(Nq/block-q)·Nk·d [K, V; causal: the tiles up to the diagonal]";
  chapter.compulsory_formula = "4·b·h·Nq·d [Q, O] + 4·b·hkv·Nk·d [K, V]";
  return chapter;
}

}  // namespace flash::fa3_tma
