// Which Q tile of which head a block computes, where the grid has a block for each. A GPU starts blocks in the order of
// their index, so this is the order in which the work is done.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/kernel/attention_shape.hpp"

namespace flash {

/// So many blocks of chapter 05 an H100 or H200 holds at a time, two on each of its 132 SMs (rounded to a power of 2).
/// Of chapter 04 it holds half as many, and goes through a round in two turns.
constexpr int BlocksAtOnce = 256;

struct Place {
  int batch, head, q_block;
};

/// Works on `heads_at_once` heads in a round, as few as possible, so that their K and V stay in the L2 cache. Full
/// attention goes head by head. Causal blocks differ in length, and the short ones of a round fill in behind its long
/// ones: that balances if each round has a block for each place on the GPU, and all rounds have about equally many.
struct BlockOrder {
  int batch, heads, q_blocks, heads_at_once = 1;

  BlockOrder(const AttentionShape& shape, int block_q)
      : batch(shape.batch), heads(shape.heads), q_blocks(ceil_div(shape.seq_q, block_q)) {
    if (!shape.causal) return;
    const std::int64_t rounds = std::max<std::int64_t>(blocks() / BlocksAtOnce, 1);
    heads_at_once = int((std::int64_t(batch) * heads + rounds - 1) / rounds);
  }

  FLASH_HOST_DEVICE std::int64_t blocks() const { return std::int64_t(batch) * heads * q_blocks; }

  /// Counted from the last block: so the longest causal rows come first in each round, and a round of fewer heads than
  /// the others comes before them.
  FLASH_HOST_DEVICE Place place(int block) const {
    const int from_end = batch * heads * q_blocks - 1 - block;
    const int round = from_end / (heads_at_once * q_blocks), in_round = from_end % (heads_at_once * q_blocks);
    const int heads_left = batch * heads - round * heads_at_once;
    const int heads_of_round = heads_left < heads_at_once ? heads_left : heads_at_once;
    const int batch_head = round * heads_at_once + in_round % heads_of_round;
    return {batch_head / heads, batch_head % heads, in_round / heads_of_round};
  }
};

}  // namespace flash
