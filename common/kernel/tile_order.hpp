// Which tiles of Q the blocks of a persistent grid compute, one after another: a grid of as many blocks as the GPU has
// SMs, each of which goes from tile to tile. Without a counter in memory: every index follows from the block's number,
// so it is the same for all threads and known before the tile before it is done.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/block_order.hpp"
#include "common/kernel/divisor.hpp"

namespace flash {

/// In each wave a block has at most one tile. Full attention goes head by head: all tiles are equally long.
///
/// Causal tiles are not. Sorted by length, the longest first, and dealt out to the blocks from left to right in one
/// wave and from right to left in the next, they give each block nearly the same sum. Sorting the tiles of all heads
/// would bring K and V of all of them through the L2 cache again and again, so it is done for a group of heads whose K
/// and V fit, and a group gets whole pairs of waves. Where these have more places than the group has tiles, some blocks
/// get none in the second: other blocks in each group, since the blocks move up by so many from group to group.
struct TileOrder {
  static constexpr std::int64_t GroupBytes = 24 << 20;  // of K and V, about half of an H100's L2 cache

  int batch_heads, heads, q_blocks;
  bool causal;
  int group_heads, group_waves, waves;
  int last_group, last_heads;  // the last group's number, and its heads: as many as are left
  int group_idle;              // places of a group without a tile
  // What `find` divides by; by_tiles is the number of heads for causal and that of a head's tiles for full attention.
  Divisor by_waves, by_heads, by_blocks, by_tiles, by_tiles_of_last;

  /// For `blocks` blocks, tiles of `block_q` rows, elements of 2 bytes.
  TileOrder(const AttentionShape& shape, int block_q, int blocks)
      : batch_heads(shape.batch * shape.heads),
        heads(shape.heads),
        q_blocks(ceil_div(shape.seq_q, block_q)),
        causal(shape.causal),
        group_heads(batch_heads) {
    if (causal) {
      const std::int64_t head_bytes = 4 * std::int64_t(shape.seq_kv) * shape.head_dim;
      const std::int64_t heads_that_fit = std::max<std::int64_t>(GroupBytes / head_bytes, 1);
      const std::int64_t pairs_of_waves = std::max<std::int64_t>(heads_that_fit * q_blocks / (2 * blocks), 1);
      const std::int64_t heads_of_pairs = std::max<std::int64_t>(2 * pairs_of_waves * blocks / q_blocks, 1);
      group_heads = int(std::min<std::int64_t>(heads_of_pairs, batch_heads));
    }
    group_waves = int((std::int64_t(group_heads) * q_blocks + blocks - 1) / blocks);
    if (group_heads < batch_heads) group_waves = (group_waves + 1) / 2 * 2;
    last_group = ceil_div(batch_heads, group_heads) - 1;
    last_heads = batch_heads - last_group * group_heads;
    waves = (last_group + 1) * group_waves;
    group_idle = int(std::int64_t(group_waves) * blocks - std::int64_t(group_heads) * q_blocks) % blocks;
    by_waves = Divisor(group_waves);
    by_blocks = Divisor(blocks);
    by_heads = Divisor(heads);
    by_tiles = Divisor(causal ? group_heads : q_blocks);
    by_tiles_of_last = Divisor(causal ? last_heads : q_blocks);
  }

  /// The tile of block `block` of `blocks` in the first wave from `wave` on in which it has one, which `wave` then is;
  /// false if there is none.
  FLASH_HOST_DEVICE bool find(int& wave, int block, int blocks, Place& at) const {
    for (; wave < waves; ++wave) {
      const int group = by_waves.quotient(wave), in_group = wave - group * group_waves;
      const bool last = group == last_group;
      const int heads_of_group = last ? last_heads : group_heads;
      const int moved = block + group * group_idle, place = moved - by_blocks.quotient(moved) * blocks;
      const int from_left = causal && in_group % 2 == 1 ? blocks - 1 - place : place;
      const int tile = in_group * blocks + from_left;
      if (tile >= heads_of_group * q_blocks) continue;
      const int quotient = (last ? by_tiles_of_last : by_tiles).quotient(tile);
      const int rest = tile - quotient * (causal ? heads_of_group : q_blocks);
      const int batch_head = group * group_heads + (causal ? rest : quotient);
      const int batch = by_heads.quotient(batch_head);
      at = {batch, batch_head - batch * heads, causal ? q_blocks - 1 - quotient : rest};
      return true;
    }
    return false;
  }
};

}  // namespace flash
