// Chapter 04, FlashAttention-2's loop order (arXiv 2307.08691, algorithm 1): the loops of chapter 03 change places. The
// outer loop over Q tiles is the grid, so seq_q / BlockQ blocks work on each head at once, and O, m and l stay in
// registers from the first K/V tile to the last:
//
//     for each Q tile:                                                   a block of its own
//       for each K/V tile:                                               the loop in the block
//         S = scale·Q·K^T;  m' = max(m, rowmax(S));  P = exp(S − m')
//         l = l·exp(m − m') + rowsum(P)
//         O = O·exp(m − m') + P·V                                        not divided by l
//       O = O / l;  LSE = m + log(l)                                     one division, at the end
//
// The rescale by exp(m − m') remains: without it, the shares of different tiles would be exponentials relative to
// different maxima. Only the division by l has moved. A warp skips the rescale when no row's maximum has grown.
//
// With causal masking the K/V tiles above the diagonal are skipped, and only tiles that some row sees in part are
// masked. The longest Q tiles start first, so that the last blocks to run are short ones. In a masked tile P = 0 times
// a NaN in V is still NaN: it reaches its column of all rows of the Q tiles that visit the K/V tile, masked or not.
// What lies behind the tensors' ends reaches nothing: such rows are zeros in shared memory.
//
// Warps still split the keys of a tile, in pairs: the two warps of a pair have the same rows and each half of the
// keys. They agree on the maximum through shared memory for each tile; each then sums up its own keys' share of O and
// l, and the shares meet once, after the last tile. Four pairs share K and V. What streams by is now K and V: the next
// tile travels in registers while this one is worked on, K while S is computed, V during the rest.
#pragma once

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/block_order.hpp"
#include "common/kernel/fragments.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/load_tile.hpp"
#include "common/kernel/softmax.hpp"

namespace flash::MACHINE::fa2_loop_swap {

// -- Tiles ------------------------------------------------------------------------------------------------------------

constexpr int Warps = 2;  // that share a tile's keys
/// Of warps, which share the rows of the Q tile.
template <int BlockQ>
constexpr int Groups = BlockQ >= 64 ? 4 : 2;
template <int BlockQ>
constexpr int Threads = Groups<BlockQ> * 32 * Warps;

// Each warp keeps its share of O in fp32: 32 rows of 128 columns are half of a thread's registers, so BlockQ is 32 for
// each group, and 16 at d = 256. What is left holds a tile of S and the K or V that travels: 64 keys, 128 at d = 64.
// Where an SM has less shared memory than Hopper's, half as many rows meet in it (at d = 256 the keys are half as many
// too: the four warps that are left carry twice as much of K and V each).
template <typename Element, int HeadDim, int BlockQ, int BlockKV>
struct Storage {
  SharedTile<Element, BlockQ, HeadDim, Padded16> Q;
  struct KeysAndValues {
    SharedTile<Element, BlockKV, HeadDim, Padded16> K;
    SharedTile<Element, BlockKV, HeadDim, Padded16> V;
    SHARED_MEMBERS(K, V);
  };
  union {
    KeysAndValues tile;
    SharedTile<float, Warps * BlockQ, HeadDim, Padded32> O_of_warps;  // after the last tile: warp w's from w·BlockQ on
  };
  SharedTile<float, BlockQ, Warps> row_max;  // of each warp's keys
  SharedTile<float, BlockQ, Warps> row_sum;
  SHARED_MEMBERS(Q, tile, O_of_warps, row_max, row_sum);
};

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
__global__ void __launch_bounds__(Threads<BlockQ>, 1)
    fa2_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
               GlobalTensor<Element> o, GlobalTensor<float> lse, AttentionShape shape, BlockOrder order) {
  constexpr int RowsPerWarp = BlockQ / Groups<BlockQ>, KeysPerWarp = BlockKV / Warps;
  constexpr int RowTiles = RowsPerWarp / 16, KeyTiles = KeysPerWarp / 8, ColTiles = HeadDim / 8;
  static_assert(KeysPerWarp % 16 == 0, "P·V takes a warp's keys in sixteens");
  static_assert(RowsPerWarp % 16 == 0, "products have 16 rows");
  static_assert(BlockQ <= Threads<BlockQ>, "a thread writes the LSE of one row");
  auto& smem = shared_storage<Storage<Element, HeadDim, BlockQ, BlockKV>>();

  const Place at = order.place(int(blockIdx.x));
  const auto Q = q.head(at.batch, at.head);                            // [seq_q, HeadDim]
  const auto K = k.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const auto V = v.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const int thread = int(threadIdx.x), warp = thread / 32 % Warps, group = thread / 32 / Warps;
  const int warp_row = group * RowsPerWarp;  // of the Q tile
  const int warp_key = warp * KeysPerWarp;   // of the K/V tile
  const int q_row = at.q_block * BlockQ;

  const int kv_blocks = ceil_div(shape.visible_keys(q_row + BlockQ - 1), BlockKV);
  const auto kv_row = [&](int kv_block) { return kv_block < kv_blocks ? kv_block * BlockKV : shape.seq_kv; };
  RowsInFlight<Threads<BlockQ>, Element, BlockKV, HeadDim> next;  // the tile of K or V that comes next
  next.load(thread, K, kv_row(0));
  load_tile<Threads<BlockQ>>(smem.Q, Q, q_row);
  next.store(thread, smem.tile.K);
  next.load(thread, V, kv_row(0));
  Accumulator O_of_warp[RowTiles][ColTiles] = {};  // [RowsPerWarp, HeadDim], this warp's keys
  float m[RowTiles][2], l[RowTiles][2];            // rows Accumulator::row(h); l of this lane's columns of S
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) m[r][0] = m[r][1] = NothingSeen, l[r][0] = l[r][1] = 0.0f;

  for (int kv_block = 0; kv_block < kv_blocks; ++kv_block) {
    __syncthreads();  // K is there; all warps are done with the last V
    next.store(thread, smem.tile.V);
    next.load(thread, K, kv_row(kv_block + 1));

    // -- S = Q·K^T for this warp's keys, and their row maxima
    Accumulator S[RowTiles][KeyTiles] = {};  // [RowsPerWarp, KeysPerWarp]
    multiply_transposed<Element>(S, smem.Q, warp_row, smem.tile.K, warp_key);
    // The first row sees the fewest keys: a tile that it sees whole needs no mask.
    const bool masked = (kv_block + 1) * BlockKV > shape.visible_keys(q_row + warp_row);
    if (masked) mask_scores(S, shape, q_row + warp_row, kv_block * BlockKV + warp_key);
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float maximum = multiply_rounded(row_maximum(S[r], h), shape.scale_log2);
        if (thread % 4 == 0) smem.row_max.store(warp_row + 16 * r + Accumulator::row(h), warp, maximum);
      }
    }
    __syncthreads();  // the maxima and V are there; all warps are done with K
    next.store(thread, smem.tile.K);
    next.load(thread, V, kv_row(kv_block + 1));

    // -- m' = max(m, rowmax(S)) over the pair; O = O·exp(m − m'), l = l·exp(m − m'), where that is not 1
    float m_new[RowTiles][2];
    bool grown = false;
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto maxima = load_vector<Warps>(smem.row_max, warp_row + 16 * r + Accumulator::row(h), 0);
        m_new[r][h] = m[r][h];
#pragma unroll
        for (int w = 0; w < Warps; ++w) m_new[r][h] = fmaxf(m_new[r][h], maxima[w]);
        grown |= m_new[r][h] > m[r][h];
      }
    }
    if (__any_sync(0xffffffffu, grown)) rescale(O_of_warp, l, m, m_new);
    round_large_scores(S, m, shape.scale_log2);

    // -- P = exp(S − m'), l = l + rowsum(P)
    FragmentA P[RowTiles][KeyTiles / 2];  // [RowsPerWarp, KeysPerWarp]
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int c = 0; c < KeyTiles; c += 2) P[r][c / 2] = exponentiate<Element>(&S[r][c], m[r], l[r], shape.scale_log2);
    }

    // -- O = O + P·V
    multiply<Element>(O_of_warp, P, smem.tile.V, 0, 0, warp_key);
  }

  // -- The warps' shares of O and l meet
  __syncthreads();  // all warps are done with the last tile: its place is O_of_warps's
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp_row + 16 * r + Accumulator::row(h);
      const float sum = quad_sum(l[r][h]);
      if (thread % 4 == 0) {
        smem.row_sum.store(row, warp, sum);
        smem.row_max.store(row, warp, m[r][h]);
      }
    }
  }
  store_accumulators(smem.O_of_warps, warp * BlockQ + warp_row, 0, O_of_warp);
  __syncthreads();

  // -- O = O / l, a warp 512 bytes of whole rows at a time
  const auto O = o.head(at.batch, at.head);  // [seq_q, HeadDim]
  constexpr int ThreadsPerRow = HeadDim / 8;
#pragma unroll 1
  for (int row = thread / ThreadsPerRow; row < BlockQ; row += Threads<BlockQ> / ThreadsPerRow) {
    if (q_row + row >= shape.seq_q) break;
    const int col = thread % ThreadsPerRow * 8;
    const auto sums = load_vector<Warps>(smem.row_sum, row, 0);
    float l_row = 0.0f, sum[8] = {};
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      l_row += sums[w];
      const auto low = load_vector<4>(smem.O_of_warps, w * BlockQ + row, col);
      const auto high = load_vector<4>(smem.O_of_warps, w * BlockQ + row, col + 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += low[i], sum[4 + i] += high[i];
    }
    const float inverse = inverse_sum(l_row);
    Vector<Element, 8> rounded;
#pragma unroll
    for (int i = 0; i < 8; ++i) rounded[i] = from_float<Element>(inverse * sum[i]);
    O.store_vector(q_row + row, col, rounded);
  }
  if (thread < BlockQ && q_row + thread < shape.seq_q) {
    const auto sums = load_vector<Warps>(smem.row_sum, thread, 0);
    float l_row = 0.0f;
#pragma unroll
    for (int w = 0; w < Warps; ++w) l_row += sums[w];
    const float m_row = smem.row_max.load(thread, 0);  // the same of both warps of the pair
    lse.vector(at.batch, at.head).store(q_row + thread, log_sum_exp(m_row, l_row));
  }
}

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
void launch_tile(const AttentionCall& call, Machine& machine) {
  using BlockStorage = Storage<Element, HeadDim, BlockQ, BlockKV>;
  static_assert(sizeof(BlockStorage) <= kMaxSharedBytes, "the storage of one block fits the shared memory of an SM");
  const AttentionShape shape(call.problem);
  const BlockOrder order(shape, BlockQ);
  machine.launch({"fa2", {order.blocks()}, Threads<BlockQ>, sizeof(BlockStorage)},
                 fa2_kernel<Element, HeadDim, BlockQ, BlockKV>, GlobalTensor<const Element>(call.q),
                 GlobalTensor<const Element>(call.k), GlobalTensor<const Element>(call.v),
                 GlobalTensor<Element>(call.o), GlobalTensor<float>(call.lse), shape, order);
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  const std::int64_t d = call.problem.head_dim;  // traffic.hpp refuses other tiles
  if (d == 64) return launch_tile<Element, 64, 128, 128>(call, machine);
  if (d == 128 && options.block_q == 128) return launch_tile<Element, 128, 128, 64>(call, machine);
  if (d == 128) return launch_tile<Element, 128, 64, 64>(call, machine);
  if (options.block_q == 64) return launch_tile<Element, 256, 64, 64>(call, machine);
  launch_tile<Element, 256, 32, 32>(call, machine);
}

}  // namespace flash::MACHINE::fa2_loop_swap
