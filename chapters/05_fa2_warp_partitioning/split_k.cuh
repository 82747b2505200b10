// The partitioning of FlashAttention-1, for comparison (arXiv 2307.08691, section 3.3, figure 3 left): the warps of a
// block split the keys of each tile, not the query rows. Each warp has scores of all BlockQ rows against its own keys;
// the maximum, the sum and O of a row are in pieces, one in each warp, and meet in shared memory for every tile. Tiles,
// stages, copies and swizzle are those of split-q, so the difference in time is the exchange's.
//
// What each tile exchanges: Warps maxima and Warps sums of each row, and Warps shares of O, in fp32. The last is nearly
// all: Warps·BlockQ·HeadDim·4 bytes are written and read again (at d = 128: EXCHANGE).
// Chapter 04 splits keys as well and avoids this by keeping each warp's share of O in registers to the end, which takes
// BlockQ·HeadDim / 32 of a thread's registers: 512 for this tile, so it has to do with a quarter of the rows.
#pragma once

#include "common/attention_shape.hpp"
#include "common/block_order.hpp"
#include "common/fragments.hpp"
#include "common/kernel.hpp"
#include "common/load_tile.hpp"
#include "common/softmax.hpp"
#include "common/write_output.hpp"

namespace flash::MACHINE::fa2_warp_partitioning {

template <typename Element, int HeadDim, int BlockQ, int BlockKV, int Warps>
struct SplitKStorage {
  SharedTile<Element, BlockQ, HeadDim, Swizzle128> Q;  // O on the way out
  union KeysOrShares {
    SharedTile<Element, BlockKV, HeadDim, Swizzle128> K;  // until S is computed
    SharedTile<float, Warps * BlockQ, 8> O_of_warps;      // 8 columns of warp w's share of P·V from row w·BlockQ on
  } stage[2];
  SharedTile<Element, BlockKV, HeadDim, Swizzle128> V[2];
  SharedTile<float, Warps, BlockQ> row_max, row_sum;  // of each warp's keys
  SharedVector<float, BlockQ> m, factor;              // over all tiles so far; exp(m − m')
};

template <typename Element, int HeadDim, int BlockQ, int BlockKV, int Warps>
__global__ void __launch_bounds__(32 * Warps, 8 / Warps)
    split_k_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
                   GlobalTensor<Element> o, GlobalTensor<float> lse, AttentionShape shape, BlockOrder order) {
  constexpr int Threads = 32 * Warps, KeysPerWarp = BlockKV / Warps, RowsPerWarp = BlockQ / Warps;
  constexpr int AllRowTiles = BlockQ / 16, RowTiles = RowsPerWarp / 16, ColTiles = HeadDim / 8;
  static_assert(KeysPerWarp == 16, "a warp's keys are the 16 that one product with V sums over");
  static_assert(BlockQ <= Threads, "one thread for each row");
  auto& smem = shared_storage<SplitKStorage<Element, HeadDim, BlockQ, BlockKV, Warps>>();

  const Place at = order.place(int(blockIdx.x));
  const int thread = int(threadIdx.x), warp = int(threadIdx.x / 32);
  const int warp_key = warp * KeysPerWarp;  // of the K/V tile
  const int warp_row = warp * RowsPerWarp;  // the rows of the Q tile whose sum this warp collects
  const int q_row = at.q_block * BlockQ;
  const float scale_log2 = shape.scale * Log2E;
  const bool copies_k = warp < Warps / 2;
  const unsigned copy_thread = threadIdx.x % (Threads / 2);
  const int kv_head = at.head / shape.heads_per_kv_head;
  const auto KV = copies_k ? k.head(at.batch, kv_head) : v.head(at.batch, kv_head);  // [seq_kv, HeadDim]
  const auto KV_tile = [&](int s) -> auto& { return copies_k ? smem.stage[s].K : smem.V[s]; };

  const int kv_blocks = ceil_div(shape.visible_keys(q_row + BlockQ - 1), BlockKV);
  int stage = 0;

  load_tile_async<Threads>(threadIdx.x, smem.Q, q.head(at.batch, at.head), q_row);
  if (kv_blocks > 0) load_tile_async<Threads / 2>(copy_thread, KV_tile(stage), KV, (kv_blocks - 1) * BlockKV);
  cp_async_commit();
  Accumulator O[RowTiles][ColTiles] = {};  // [RowsPerWarp, HeadDim], all keys so far
  float l[RowTiles][2] = {};
  if (thread < BlockQ) smem.m.store(thread, NothingSeen);

  for (int kv_block = kv_blocks - 1; kv_block >= 0; --kv_block, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // this tile has arrived for all; all are done with the last one, whose stage is free
    if (kv_block > 0) {
      load_tile_async<Threads / 2, true>(copy_thread, KV_tile(stage ^ 1), KV, (kv_block - 1) * BlockKV);
      cp_async_commit();
    }

    // -- S = Q·K^T for this warp's keys, and their row maxima
    Accumulator S[AllRowTiles][2] = {};  // [BlockQ, KeysPerWarp]
    const auto& K_tile = smem.stage[stage].K;
#pragma unroll
    for (int d = 0; d < HeadDim; d += 16) {
      const FragmentB2 keys = load_b_transposed(K_tile, 0, d, warp_key);
#pragma unroll
      for (int r = 0; r < AllRowTiles; ++r) multiply_add<Element>(S[r], load_a(smem.Q, 16 * r, d), keys);
    }
    const bool masked = (kv_block + 1) * BlockKV > shape.visible_keys(q_row);
    if (masked) mask_scores(S, shape, q_row, kv_block * BlockKV + warp_key);
#pragma unroll
    for (int r = 0; r < AllRowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float maximum = scale_log2 * row_maximum(S[r], h);
        if (thread % 4 == 0) smem.row_max.store(warp, 16 * r + Accumulator::row(h), maximum);
      }
    }
    __syncthreads();  // and all are done with K: its place is O_of_warps's

    // -- m' = max(m, rowmax(S)) over all warps, and exp(m − m'): a thread for each row
    if (thread < BlockQ) {
      const float m_old = smem.m.load(thread);
      float m_new = m_old;
#pragma unroll
      for (int w = 0; w < Warps; ++w) m_new = fmaxf(m_new, smem.row_max.load(w, thread));
      smem.m.store(thread, m_new);
      smem.factor.store(thread, exp2_approx(m_old - m_new));
    }
    __syncthreads();

    // -- P = exp(S − m'), and the row sums of this warp's keys
    FragmentA P[AllRowTiles];  // [BlockQ, KeysPerWarp]
#pragma unroll
    for (int r = 0; r < AllRowTiles; ++r) {
      const float m[2] = {smem.m.load(16 * r + Accumulator::row(0)), smem.m.load(16 * r + Accumulator::row(1))};
      float sum[2] = {0.0f, 0.0f};
      P[r] = exponentiate<Element>(S[r], m, sum, scale_log2);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[h] = quad_sum(sum[h]);
        if (thread % 4 == 0) smem.row_sum.store(warp, 16 * r + Accumulator::row(h), sum[h]);
      }
    }

    // -- O = O·exp(m − m') + P·V, 8 columns at a time: each warp's keys for all rows, then all keys for this warp's rows
    auto& O_of_warps = smem.stage[stage].O_of_warps;
    FragmentB2 values;
#pragma unroll
    for (int c = 0; c < ColTiles; ++c) {
      if (c % 2 == 0) values = load_b(smem.V[stage], 0, 8 * c, warp_key);
#pragma unroll
      for (int r = 0; r < AllRowTiles; ++r) {
        Accumulator share[1][1] = {};
        mma_m16n8k16<Element>(share[0][0].value, P[r].value, values.value[c % 2]);
        store_accumulators(O_of_warps, warp * BlockQ + 16 * r, share);
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = warp_row + 16 * r + Accumulator::row(h);
          if (c == 0) {
            const float factor = smem.factor.load(row);
            l[r][h] *= factor;
#pragma unroll
            for (int w = 0; w < Warps; ++w) l[r][h] += smem.row_sum.load(w, row);
#pragma unroll
            for (int all = 0; all < ColTiles; ++all) O[r][all].scale_row(h, factor);
          }
#pragma unroll
          for (int w = 0; w < Warps; ++w) {
            const auto share = load_vector<2>(O_of_warps, w * BlockQ + row, Accumulator::column(0));
            O[r][c].value[2 * h] += share[0], O[r][c].value[2 * h + 1] += share[1];
          }
        }
      }
      __syncthreads();  // the shares have been read
    }
  }

  // -- O = O / l
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived, also where the block saw no key, and has been read: O takes its place
  float m[RowTiles][2];
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) m[r][h] = smem.m.load(warp_row + 16 * r + Accumulator::row(h));
  }
  const Place end = order.place(__shfl_sync(0xffffffffu, int(blockIdx.x), 0));  // as in kernel.cuh
  const int end_row = __shfl_sync(0xffffffffu, warp_row, 0);
  write_output(O, l, m, smem.Q, end_row, o.head(end.batch, end.head), lse.vector(end.batch, end.head),
               end.q_block * BlockQ + end_row);
}

}  // namespace flash::MACHINE::fa2_warp_partitioning
