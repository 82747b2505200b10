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
// Warps still split the keys of the tile as in chapter 03. They agree on the maximum through shared memory for each
// tile; each then sums up its own keys' share of O and l, and the shares meet once, after the last tile.
#pragma once

#include "common/attention_shape.hpp"
#include "common/block_order.hpp"
#include "common/fragments.hpp"
#include "common/kernel.hpp"
#include "common/load_tile.hpp"
#include "common/softmax.hpp"

namespace flash::MACHINE::fa2_loop_swap {

// -- Tiles ------------------------------------------------------------------------------------------------------------

constexpr int Warps = 4;
constexpr int Threads = 32 * Warps;

// Each warp keeps a [BlockQ, HeadDim] sum in fp32: with 32 rows of 128 columns half of a thread's registers, so BlockQ
// is 32, and 16 at d = 256. BlockKV fills the shared memory with two blocks on an SM, so that one computes while the
// other loads: 128 keys, and 64 at d = 256.
template <typename Element, int HeadDim, int BlockQ, int BlockKV>
struct Storage {
  SharedTile<Element, BlockQ, HeadDim, Padded16> Q;
  struct KeysAndValues {
    SharedTile<Element, BlockKV, HeadDim, Padded16> K;
    SharedTile<Element, BlockKV, HeadDim, Padded16> V;
  };
  union {
    KeysAndValues tile;
    SharedTile<float, Warps * BlockQ, HeadDim, Padded32> O_of_warps;  // after the last tile: warp w's from w·BlockQ on
  };
  SharedTile<float, Warps, BlockQ> row_max;  // of each warp's keys
  SharedTile<float, Warps, BlockQ> row_sum;
};

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
__global__ void __launch_bounds__(Threads, HeadDim == 64 ? 3 : 2)
    fa2_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
               GlobalTensor<Element> o, GlobalTensor<float> lse, AttentionShape shape, BlockOrder order) {
  constexpr int KeysPerWarp = BlockKV / Warps;
  constexpr int RowTiles = BlockQ / 16, KeyTiles = KeysPerWarp / 8, ColTiles = HeadDim / 8;
  static_assert(KeysPerWarp % 16 == 0, "P·V takes a warp's keys in sixteens");
  static_assert(BlockQ % 16 == 0 && BlockQ <= 32, "products have 16 rows; one warp writes the LSE of a tile");
  auto& smem = shared_storage<Storage<Element, HeadDim, BlockQ, BlockKV>>();

  const Place at = order.place(int(blockIdx.x));
  const auto Q = q.head(at.batch, at.head);                            // [seq_q, HeadDim]
  const auto K = k.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const auto V = v.head(at.batch, at.head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const int thread = int(threadIdx.x), warp = int(threadIdx.x / 32);
  const int warp_key = warp * KeysPerWarp;  // of the K/V tile
  const int q_row = at.q_block * BlockQ;
  const float scale_log2 = shape.scale * Log2E;

  load_tile<Threads>(smem.Q, Q, q_row);
  Accumulator O_of_warp[RowTiles][ColTiles] = {};  // [BlockQ, HeadDim], this warp's keys
  float m[RowTiles][2], l[RowTiles][2];            // rows Accumulator::row(h); l of this lane's columns of S
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) m[r][0] = m[r][1] = NothingSeen, l[r][0] = l[r][1] = 0.0f;

  const int kv_blocks = ceil_div(shape.visible_keys(q_row + BlockQ - 1), BlockKV);
  for (int kv_block = 0; kv_block < kv_blocks; ++kv_block) {
    __syncthreads();  // all warps are done with the last tile
    load_tile<Threads>(smem.tile.K, K, kv_block * BlockKV);
    load_tile<Threads>(smem.tile.V, V, kv_block * BlockKV);
    __syncthreads();

    // -- S = Q·K^T for this warp's keys, and their row maxima
    Accumulator S[RowTiles][KeyTiles] = {};  // [BlockQ, KeysPerWarp]
    multiply_transposed<Element>(S, smem.Q, 0, smem.tile.K, warp_key);
    // The first row sees the fewest keys: a tile that it sees whole needs no mask.
    const bool masked = (kv_block + 1) * BlockKV > shape.visible_keys(q_row);
    if (masked) mask_scores(S, shape, q_row, kv_block * BlockKV + warp_key);
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float maximum = scale_log2 * row_maximum(S[r], h);
        if (thread % 4 == 0) smem.row_max.store(warp, 16 * r + Accumulator::row(h), maximum);
      }
    }
    __syncthreads();

    // -- m' = max(m, rowmax(S)) over all warps; O = O·exp(m − m'), l = l·exp(m − m'), where that is not 1
    float m_new[RowTiles][2];
    bool grown = false;
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        m_new[r][h] = m[r][h];
#pragma unroll
        for (int w = 0; w < Warps; ++w) {
          m_new[r][h] = fmaxf(m_new[r][h], smem.row_max.load(w, 16 * r + Accumulator::row(h)));
        }
        grown |= m_new[r][h] > m[r][h];
      }
    }
    if (__any_sync(0xffffffffu, grown)) rescale(O_of_warp, l, m, m_new);

    // -- P = exp(S − m'), l = l + rowsum(P)
    FragmentA P[RowTiles][KeyTiles / 2];  // [BlockQ, KeysPerWarp]
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int c = 0; c < KeyTiles; c += 2) P[r][c / 2] = exponentiate<Element>(&S[r][c], m[r], l[r], scale_log2);
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
      const int row = 16 * r + Accumulator::row(h);
      const float sum = quad_sum(l[r][h]);
      if (thread % 4 == 0) {
        smem.row_sum.store(warp, row, sum);
        smem.row_max.store(warp, row, m[r][h]);
      }
    }
  }
  store_accumulators(smem.O_of_warps, warp * BlockQ, 0, O_of_warp);
  __syncthreads();

  // -- O = O / l, a warp 512 bytes of whole rows at a time
  const auto O = o.head(at.batch, at.head);  // [seq_q, HeadDim]
  constexpr int ThreadsPerRow = HeadDim / 8;
#pragma unroll 1
  for (int row = thread / ThreadsPerRow; row < BlockQ; row += Threads / ThreadsPerRow) {
    if (q_row + row >= shape.seq_q) break;
    const int col = thread % ThreadsPerRow * 8;
    float l_row = 0.0f, sum[8] = {};
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      l_row += smem.row_sum.load(w, row);
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
    float l_row = 0.0f;
#pragma unroll
    for (int w = 0; w < Warps; ++w) l_row += smem.row_sum.load(w, thread);
    const float m_row = smem.row_max.load(0, thread);  // the same of all warps
    lse.vector(at.batch, at.head).store(q_row + thread, log_sum_exp(m_row, l_row));
  }
}

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
void launch_tile(const AttentionCall& call, Machine& machine) {
  using BlockStorage = Storage<Element, HeadDim, BlockQ, BlockKV>;
  static_assert(2 * (sizeof(BlockStorage) + 1024) <= 228 * 1024, "two blocks fit the shared memory of an SM");
  const AttentionShape shape(call.problem);
  const BlockOrder order(shape, BlockQ);
  machine.launch({"fa2", {order.blocks()}, Threads, sizeof(BlockStorage)},
                 fa2_kernel<Element, HeadDim, BlockQ, BlockKV>, GlobalTensor<const Element>(call.q),
                 GlobalTensor<const Element>(call.k), GlobalTensor<const Element>(call.v),
                 GlobalTensor<Element>(call.o), GlobalTensor<float>(call.lse), shape, order);
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions&, Machine& machine) {
  if (call.problem.head_dim == 64) return launch_tile<Element, 64, 32, 128>(call, machine);
  if (call.problem.head_dim == 128) return launch_tile<Element, 128, 32, 128>(call, machine);
  launch_tile<Element, 256, 16, 64>(call, machine);  // traffic.hpp refuses other tiles
}

}  // namespace flash::MACHINE::fa2_loop_swap
