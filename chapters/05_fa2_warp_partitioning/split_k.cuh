// The partitioning of FlashAttention-1, for comparison (arXiv 2307.08691, section 3.3, figure 3 left): warps split the
// keys of each tile, not the query rows. The maximum, the sum and O of a row are in pieces, one in each warp, and meet
// in shared memory for every tile. Tiles, stages, copies, swizzle and the warps on an SM are those of split-q, so the
// difference in time is the exchange's.
//
// The 64 keys of a tile are 4 times the 16 that one product with V sums over: 4 warps share them, and two such groups
// of 4 share the 128 rows, so that a warp's scores and its part of O fit in registers. What a tile exchanges is, for
// each row, 4 maxima, 4 sums, and 4 shares of O in fp32. At d = 128 that is 550400 bytes of shared memory written and
// read for each tile (524288 of them for O), beside 196608 bytes that the products read; split-q exchanges nothing.
//
// Chapter 04 splits the keys too, and avoids this: there each warp keeps its share of O in registers to the end. With
// four warps for the keys, that would take 256 registers of each thread for this tile.
#pragma once

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/block_order.hpp"
#include "common/kernel/fragments.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/load_tile.hpp"
#include "common/kernel/softmax.hpp"
#include "common/kernel/write_output.hpp"

namespace flash::MACHINE::split_k {

constexpr int KeyWarps = 4, Groups = 2;  // warps that share a tile's keys, groups that share its rows
constexpr int Threads = 32 * KeyWarps * Groups;

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
struct Storage {
  SharedTile<Element, BlockQ, HeadDim, Swizzle128> Q;          // O on the way out
  SharedTile<Element, BlockKV, HeadDim, Swizzle128> KV[2][2];  // two stages of K and of V
  SharedTile<float, KeyWarps * BlockQ, 8> O_of_warps;  // 8 columns of key warp w's share of P·V from row w·BlockQ on
  SharedTile<float, KeyWarps, BlockQ> row_max, row_sum;  // of each warp's keys
  SharedVector<float, BlockQ> m, factor;                 // over all tiles so far; exp(m − m')
  SHARED_MEMBERS(Q, KV, O_of_warps, row_max, row_sum, m, factor);
};

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
__global__ void __launch_bounds__(Threads, HeadDim == 64 ? 2 : 1)
    fa2_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
               GlobalTensor<Element> o, GlobalTensor<float> lse, AttentionShape shape, BlockOrder order) {
  constexpr int GroupRows = BlockQ / Groups, GroupThreads = Threads / Groups;
  constexpr int RowTiles = GroupRows / 16, ColTiles = HeadDim / 8;
  static_assert(BlockKV == KeyWarps * 16, "a warp's keys are the 16 that one product with V sums over");
  static_assert(GroupRows == KeyWarps * 16, "a warp collects O of 16 rows");
  auto& smem = shared_storage<Storage<Element, HeadDim, BlockQ, BlockKV>>();

  const Place at = order.place(int(blockIdx.x));
  const int thread = int(threadIdx.x), warp = int(threadIdx.x / 32), group = warp / KeyWarps;
  const int key_warp = warp % KeyWarps, warp_key = 16 * key_warp;  // of the K/V tile
  const int group_row = group * GroupRows;                         // of the Q tile
  const int own_row = group_row + 16 * key_warp;                   // from here on this warp collects O
  const int q_row = at.q_block * BlockQ;
  const bool own_rows_exist = q_row + own_row < shape.seq_q;
  const auto group_barrier = [&] { named_barrier_sync(1 + group, GroupThreads); };

  const int copies = warp / (KeyWarps * Groups / 2);  // 0: K, 1: V
  const unsigned copy_thread = threadIdx.x % (Threads / 2);
  const int kv_head = at.head / shape.heads_per_kv_head;
  const auto KV = copies == 0 ? k.head(at.batch, kv_head) : v.head(at.batch, kv_head);  // [seq_kv, HeadDim]

  const int kv_blocks = ceil_div(shape.visible_keys(q_row + BlockQ - 1), BlockKV);
  load_tile_async<Threads>(threadIdx.x, smem.Q, q.head(at.batch, at.head), q_row);
  if (kv_blocks > 0)
    load_tile_async<Threads / 2>(copy_thread, smem.KV[copies][(kv_blocks - 1) % 2], KV, (kv_blocks - 1) * BlockKV);
  cp_async_commit();
  Accumulator O[1][ColTiles] = {};  // [16, HeadDim] from own_row on, all keys so far
  float l[1][2] = {};               // of the same rows
  if (thread < BlockQ) smem.m.store(thread, NothingSeen);

  for (int kv_block = kv_blocks - 1; kv_block >= 0; --kv_block) {
    const int stage = kv_block % 2;
    cp_async_wait<0>();
    __syncthreads();  // this tile has arrived for all; all are done with the last one, whose stage is free
    if (kv_block > 0) {
      load_tile_async<Threads / 2, true>(copy_thread, smem.KV[copies][stage ^ 1], KV, (kv_block - 1) * BlockKV);
      cp_async_commit();
    }

    // -- S = Q·K^T for this group's rows and this warp's keys, and their row maxima
    Accumulator S[RowTiles][2] = {};  // [GroupRows, 16]
    multiply_transposed<Element>(S, smem.Q, group_row, smem.KV[0][stage], warp_key);
    const bool masked = (kv_block + 1) * BlockKV > shape.visible_keys(q_row);
    if (masked) mask_scores(S, shape, q_row + group_row, kv_block * BlockKV + warp_key);
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float maximum = multiply_rounded(row_maximum(S[r], h), shape.scale_log2);
        if (thread % 4 == 0) smem.row_max.store(key_warp, group_row + 16 * r + Accumulator::row(h), maximum);
      }
    }
    group_barrier();

    // -- m' = max(m, rowmax(S)) over the group's warps, and exp(m − m'): a thread for each row
    if (thread % GroupThreads < GroupRows) {
      const int row = group_row + thread % GroupThreads;
      const float m_old = smem.m.load(row);
      float m_new = m_old;
#pragma unroll
      for (int w = 0; w < KeyWarps; ++w) m_new = fmaxf(m_new, smem.row_max.load(w, row));
      smem.m.store(row, m_new);
      smem.factor.store(row, exp2_approx(m_old - m_new));
    }
    group_barrier();

    // -- P = exp(S − m'), and the row sums of this warp's keys
    float m[RowTiles][2];
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) m[r][h] = smem.m.load(group_row + 16 * r + Accumulator::row(h));
    }
    round_large_scores(S, m, shape.scale_log2);
    FragmentA P[RowTiles];  // [GroupRows, 16]
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
      const int row = group_row + 16 * r;
      float sum[2] = {0.0f, 0.0f};
      P[r] = exponentiate<Element>(S[r], m[r], sum, shape.scale_log2);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[h] = quad_sum(sum[h]);
        if (thread % 4 == 0) smem.row_sum.store(key_warp, row + Accumulator::row(h), sum[h]);
      }
    }

    // -- O = O·exp(m − m') + P·V, 8 columns at a time: this warp's share of the group's rows, then all shares of its
    // own
    const float factor[2] = {smem.factor.load(own_row + Accumulator::row(0)),
                             smem.factor.load(own_row + Accumulator::row(1))};
    FragmentB2 values;
#pragma unroll
    for (int c = 0; c < ColTiles; ++c) {
      if (c % 2 == 0) values = load_b(smem.KV[1][stage], 0, 8 * c, warp_key);
      Accumulator share[RowTiles][1] = {};
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) mma_m16n8k16<Element>(share[r][0].value, P[r].value, values.value[c % 2]);
      store_accumulators(smem.O_of_warps, key_warp * BlockQ + group_row, 0, share);
      group_barrier();
      if (own_rows_exist) {  // the branch also keeps the compiler from postponing sums until registers run out
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          O[0][c].scale_row(h, factor[h]);
          if (c == 0) l[0][h] *= factor[h];
#pragma unroll
          for (int w = 0; w < KeyWarps; ++w) {
            const int row = own_row + Accumulator::row(h);
            const auto part = load_vector<2>(smem.O_of_warps, w * BlockQ + row, Accumulator::column(0));
            O[0][c].value[2 * h] += part[0], O[0][c].value[2 * h + 1] += part[1];
            if (c == 0) l[0][h] += smem.row_sum.load(w, row);
          }
        }
      }
      group_barrier();  // the shares have been read
    }
  }

  // -- O = O / l
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived, also where the block saw no key, and has been read: O takes its place
  const float m[1][2] = {{smem.m.load(own_row + Accumulator::row(0)), smem.m.load(own_row + Accumulator::row(1))}};
  write_output(O, l, m, smem.Q, own_row, o.head(at.batch, at.head), lse.vector(at.batch, at.head), q_row + own_row);
}

}  // namespace flash::MACHINE::split_k
