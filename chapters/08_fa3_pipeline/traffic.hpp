// Chapter 08: the bytes that FlashAttention-3's pipeline should move.
//
// Compulsory: Q, K, V, O and LSE once.
//
// Requested: as in chapter 07: Q and O once, and for each BlockQ query rows the K and V rows that some row of them
// sees, in whole tiles; rows that see nothing ask for one tile, whose scores are all masked. The pipeline changes when
// bytes move, not how many.
//
// Bank conflicts: none.
#pragma once

#include "common/base/timeline_notes.hpp"
#include "common/base/traffic.hpp"

namespace flash::fa3_pipeline {

inline Traffic requested(const AttentionCall& call, const LaunchOptions& options) {
  // LSE: of half an accumulator's rows at once.
  return tiled_traffic(call, options.block_q, options.block_kv, box_rows_sectors, 8, 1);
}

inline std::string refusal(const Problem& p, const LaunchOptions& options) {
  const std::string head_dim = "head-dim " + std::to_string(p.head_dim);
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) return head_dim + ": chapter 08 takes 64, 128 or 256";
  if (options.timeline && options.variant != "pipeline")
    return "the timeline is compiled for the variant pipeline alone";
  const auto is = [&](int block_q, int block_kv) { return options.block_q == block_q && options.block_kv == block_kv; };
  if (p.head_dim == 64 && (is(256, 64) || (is(192, 128) && options.variant == "pipeline"))) return "";
  if (p.head_dim == 128 && is(128, 128)) return "";
  if (p.head_dim == 256 && is(128, 64)) return "";
  return head_dim + " is compiled for tiles of " +
         (p.head_dim == 64    ? "256x64 and 192x128"
          : p.head_dim == 128 ? "128x128"
                              : "128x64");
}

/// sizeof(Storage) in producer.cuh: the slots of K and V, those of Q and O, and the barriers.
inline std::size_t shared_bytes(const Problem& p, const LaunchOptions& options) {
  const std::int64_t slots = options.variant == "stages-2" ? 4 : p.head_dim > 64 ? 5 : options.block_kv == 64 ? 12 : 8;
  const std::int64_t q_slots = p.head_dim == 64 ? 2 : 1, o_slots = p.head_dim == 256 ? 0 : 1;
  return std::size_t(2 * p.head_dim * ((q_slots + o_slots) * options.block_q + slots * options.block_kv) +
                     8 * 2 * (q_slots + slots));
}

/// The notes of the timeline: for a few blocks, each consumer and the producer.
inline std::vector<TensorRef> workspace(const Problem&, const LaunchOptions& options) {
  if (!options.timeline) return {};
  return {workspace_tensor("timeline", 1, TimelineBlocks, options.block_q / 64 + 1, TimelineNotes, 4)};
}

inline std::vector<std::string> tracks(const LaunchOptions& options) {
  std::vector<std::string> names;
  for (int i = 0; i < options.block_q / 64; ++i) names.push_back("consumer " + std::to_string(i));
  names.push_back("producer");
  return names;
}

inline ChapterInfo info() {
  ChapterInfo chapter;
  chapter.title = "FlashAttention-3's pipeline: loads, products and softmax at once";
  chapter.variants = {
      {"pipeline", "producer and consumer warpgroups, ping-pong, overlap within a warpgroup"},
      {"no-specialization", "no producer: a consumer's thread asks for the tiles"},
      {"no-pingpong", "the consumers' products and softmax as it happens"},
      {"no-overlap", "a warpgroup waits for its products before its softmax, as four consumers do anyway"},
      {"stages-2", "a ring of two tiles of K and two of V"}};
  chapter.tiles = {{128, 128}, {256, 64}, {192, 128}, {128, 64}};
  // With 64 columns the tiles of 256 rows start and end sooner, those of 128 keys have fewer softmax steps.
  chapter.preferred_tile = [](const Problem& p) {
    const bool long_and_full = !p.causal && std::max(p.seq_q, p.seq_kv) > 4096;
    return p.head_dim == 64 && long_and_full ? TileShape{192, 128} : TileShape{0, 0};
  };
  chapter.shared_bytes = shared_bytes;
  chapter.needs = {90, true, "TMA, wgmma, setmaxnreg"};
  chapter.refusal = refusal;
  chapter.workspace = workspace;
  // By number: Doing in producer.cuh.
  chapter.timeline = {
      {"waits for a slot", "asks for a tile", "waits for tiles", "waits for its turn", "issues products",
       "waits for scores", "softmax", "waits for output", "rescales and rounds", "writes output", "done"},
      tracks};
  chapter.requested = requested;
  chapter.compulsory = [](const AttentionCall& call, const LaunchOptions&) { return compulsory_traffic(call, {}); };
  chapter.requested_formula =
      "4·b·h·Nq·d [Q, O] + 4·b·h·ceil(Nq/block-q)·Nk·d [K, V; causal: the tiles up to the diagonal]";
  chapter.compulsory_formula = "4·b·h·Nq·d [Q, O] + 4·b·hkv·Nk·d [K, V]";
  return chapter;
}

}  // namespace flash::fa3_pipeline
