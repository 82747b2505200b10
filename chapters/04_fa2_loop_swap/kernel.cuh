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
// masked. The longest Q tiles start first, so that the last blocks to run are short ones. (In a masked tile P = 0
// times a NaN in V is still NaN, as in chapter 03.)
//
// Warps still split the keys of the tile as in chapter 03. They agree on the maximum through shared memory for each
// tile; each then sums up its own keys' share of O and l, and the shares meet once, after the last tile.
#pragma once

#include "chapters/04_fa2_loop_swap/traffic.hpp"
#include "common/attention_shape.hpp"
#include "common/fragments.hpp"
#include "common/kernel.hpp"
#include "common/load_tile.hpp"

namespace flash::MACHINE::fa2_loop_swap {

// -- Tiles ------------------------------------------------------------------------------------------------------------

constexpr int Warps = 4;
constexpr int Threads = 32 * Warps;

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

/// A maximum that can be subtracted: −inf (every score so far was −inf) would give NaN, 0 gives exponentials of 0.
__device__ __forceinline__ float finite_maximum(float m) { return m == -infinity() ? 0.0f : m; }

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
__global__ void __launch_bounds__(Threads, HeadDim == 64 ? 3 : 2)
    fa2_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
               GlobalTensor<Element> o, GlobalTensor<float> lse, AttentionShape shape) {
  constexpr int KeysPerWarp = BlockKV / Warps;
  constexpr int RowTiles = BlockQ / 16, KeyTiles = KeysPerWarp / 8, ColTiles = HeadDim / 8;
  static_assert(KeysPerWarp % 16 == 0, "P·V takes a warp's keys in sixteens");
  static_assert(BlockQ % 16 == 0 && BlockQ <= 32, "products have 16 rows; one warp writes the LSE of a tile");
  auto& smem = shared_storage<Storage<Element, HeadDim, BlockQ, BlockKV>>();

  const int q_blocks = ceil_div(shape.seq_q, BlockQ);
  const int q_block = q_blocks - 1 - int(blockIdx.x % q_blocks);  // the longest first
  const int batch = int(blockIdx.x / q_blocks) / shape.heads, head = int(blockIdx.x / q_blocks) % shape.heads;
  const auto Q = q.head(batch, head);                            // [seq_q, HeadDim]
  const auto K = k.head(batch, head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const auto V = v.head(batch, head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const int thread = int(threadIdx.x), warp = thread / 32;
  const int warp_key = warp * KeysPerWarp;  // of the K/V tile
  const int q_row = q_block * BlockQ;

  load_tile<Threads>(smem.Q, Q, q_row);
  Accumulator O_of_warp[RowTiles][ColTiles] = {};  // [BlockQ, HeadDim], this warp's keys
  float m[RowTiles][2], l[RowTiles][2];            // rows Accumulator::row(h); l of this thread's columns of S
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) m[r][0] = m[r][1] = -infinity(), l[r][0] = l[r][1] = 0.0f;

  const int kv_blocks = ceil_div(shape.visible_keys(min(q_row + BlockQ, shape.seq_q) - 1), BlockKV);
  for (int kv_block = 0; kv_block < kv_blocks; ++kv_block) {
    __syncthreads();  // all warps are done with the last tile
    load_tile<Threads>(smem.tile.K, K, kv_block * BlockKV);
    load_tile<Threads>(smem.tile.V, V, kv_block * BlockKV);
    __syncthreads();

    // -- S = Q·K^T for this warp's keys, and their row maxima
    Accumulator S[RowTiles][KeyTiles] = {};  // [BlockQ, KeysPerWarp]
    multiply_transposed<Element>(S, smem.Q, 0, smem.tile.K, warp_key);
    // The tile's first row sees the fewest keys: tiles that it sees whole need no mask.
    if ((kv_block + 1) * BlockKV > shape.visible_keys(q_row))
      mask_scores(S, shape, q_row, kv_block * BlockKV + warp_key);
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float maximum = shape.scale * row_maximum(S[r], h);
        if (thread % 4 == 0) smem.row_max.store(warp, 16 * r + Accumulator::row(h), maximum);
      }
    }
    __syncthreads();

    // -- m' = max(m, rowmax(S)) over all warps
    float m_old[RowTiles][2];
    bool grown = false;
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        m_old[r][h] = m[r][h];
#pragma unroll
        for (int w = 0; w < Warps; ++w) {
          m[r][h] = fmaxf(m[r][h], smem.row_max.load(w, 16 * r + Accumulator::row(h)));
        }
        grown |= m[r][h] > m_old[r][h];
      }
    }

    // -- O = O·exp(m − m'), l = l·exp(m − m'), where that is not 1
    if (__any_sync(0xffffffffu, grown)) {
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float factor = exp_approx(m_old[r][h] - finite_maximum(m[r][h]));
          l[r][h] *= factor;
#pragma unroll
          for (int c = 0; c < ColTiles; ++c) O_of_warp[r][c].scale_row(h, factor);
        }
      }
    }

    // -- P = exp(scale·S − m'), l = l + rowsum(P)
    FragmentA P[RowTiles][KeyTiles / 2];  // [BlockQ, KeysPerWarp]
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int c = 0; c < KeyTiles; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& score = S[r][c].value[i];
          score = exp_approx(shape.scale * score - finite_maximum(m[r][i / 2]));
          l[r][i / 2] += score;
        }
      }
#pragma unroll
      for (int c = 0; c < KeyTiles; c += 2) P[r][c / 2] = round_to_a<Element>(&S[r][c]);
    }

    // -- O = O + P·V
    multiply<Element>(O_of_warp, P, smem.tile.V, warp_key, 0);
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
#pragma unroll
      for (int c = 0; c < ColTiles; ++c) {
        smem.O_of_warps.store_vector(warp * BlockQ + row, 8 * c + Accumulator::column(0),
                                     Vector<float, 2>{O_of_warp[r][c].value[2 * h], O_of_warp[r][c].value[2 * h + 1]});
      }
    }
  }
  __syncthreads();

  // -- O = O / l, a warp 512 bytes of whole rows at a time
  const auto O = o.head(batch, head);  // [seq_q, HeadDim]
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
    const float normalise = l_row == 0.0f ? 0.0f : 1.0f / l_row;
    Vector<Element, 8> rounded;
#pragma unroll
    for (int i = 0; i < 8; ++i) rounded[i] = from_float<Element>(normalise * sum[i]);
    O.store_vector(q_row + row, col, rounded);
  }
  if (thread < BlockQ && q_row + thread < shape.seq_q) {
    float l_row = 0.0f;
#pragma unroll
    for (int w = 0; w < Warps; ++w) l_row += smem.row_sum.load(w, thread);
    const float m_row = smem.row_max.load(0, thread);  // the same of all warps
    lse.vector(batch, head).store(q_row + thread, l_row == 0.0f ? -infinity() : m_row + log_approx(l_row));
  }
}

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim>
void launch_head_dim(const AttentionCall& call, Machine& machine) {
  constexpr int BlockQ = flash::fa2_loop_swap::block_q(HeadDim), BlockKV = flash::fa2_loop_swap::block_kv(HeadDim);
  using BlockStorage = Storage<Element, HeadDim, BlockQ, BlockKV>;
  static_assert(2 * (sizeof(BlockStorage) + 1024) <= 228 * 1024, "two blocks fit the shared memory of an SM");
  const AttentionShape shape(call.problem);
  machine.launch(
      {"fa2", {call.problem.batch * call.problem.heads * ceil_div(shape.seq_q, BlockQ)}, Threads, sizeof(BlockStorage)},
      fa2_kernel<Element, HeadDim, BlockQ, BlockKV>, GlobalTensor<const Element>(call.q),
      GlobalTensor<const Element>(call.k), GlobalTensor<const Element>(call.v), GlobalTensor<Element>(call.o),
      GlobalTensor<float>(call.lse), shape);
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions&, Machine& machine) {
  if (call.problem.head_dim == 64) return launch_head_dim<Element, 64>(call, machine);
  if (call.problem.head_dim == 128) return launch_head_dim<Element, 128>(call, machine);
  launch_head_dim<Element, 256>(call, machine);
}

}  // namespace flash::MACHINE::fa2_loop_swap
