// Chapter 06, FlashAttention-3's first step (arXiv 2407.08608, section 3.1): the arithmetic of chapter 05, to the
// instruction, with another way of bringing the tiles. One thread asks Hopper's copy engine for a whole tile; the
// engine computes the addresses, swizzles, fills in zeros behind the tensors' ends, and tells an mbarrier of each byte.
//
// The tiles of K and V go round a ring of stages, with two barriers for each: `full` when the copies have arrived, and
// `empty` when every warp has read them. No __syncthreads is left in the loop: a warp waits for data, and only the
// thread that asks for the next tile waits for the other warps.
//
// What a NaN in V reaches is as in chapter 05.
#pragma once

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/block_order.hpp"
#include "common/kernel/fragments.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/ring.hpp"
#include "common/kernel/softmax.hpp"
#include "common/kernel/tma_tile.hpp"
#include "common/kernel/write_output.hpp"

namespace flash::MACHINE::fa3_tma {

// -- Tiles ------------------------------------------------------------------------------------------------------------

// As in chapter 05: 8 warps of 255 registers a thread fill an SM, as two blocks of 4 or one of 8.
template <int HeadDim, int BlockQ>
constexpr int WarpsOfBlock = BlockQ / (HeadDim <= 128 ? 32 : 16);

// K/V tiles in shared memory: one in use, the others arriving.
template <int HeadDim>
constexpr int StagesOf = HeadDim == 64 ? 3 : 2;

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
struct Storage {
  static constexpr int Stages = StagesOf<HeadDim>;
  SharedTile<Element, BlockQ, HeadDim, Swizzle128> Q;  // O on the way out
  SharedTile<Element, BlockKV, HeadDim, Swizzle128> K[Stages], V[Stages];
  Mbarrier q_full, full[Stages], empty[Stages];
  SHARED_MEMBERS(Q, K, V, q_full, full, empty);
};

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
__global__ void __launch_bounds__(32 * WarpsOfBlock<HeadDim, BlockQ>, 8 / WarpsOfBlock<HeadDim, BlockQ>)
    fa3_kernel(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
               const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap o_map,
               GlobalTensor<float> lse, AttentionShape shape, BlockOrder order) {
  constexpr int Stages = StagesOf<HeadDim>;
  constexpr int Warps = WarpsOfBlock<HeadDim, BlockQ>, RowsPerWarp = BlockQ / Warps;
  constexpr int RowTiles = RowsPerWarp / 16, KeyTiles = BlockKV / 8, ColTiles = HeadDim / 8;
  constexpr bool QInRegisters = HeadDim == 64;  // beside O and S there is room for them
  static_assert(RowsPerWarp % 16 == 0 && BlockKV % 16 == 0, "products have 16 rows and sum over 16 keys");
  auto& smem = shared_storage<Storage<Element, HeadDim, BlockQ, BlockKV>>();

  const Place at = order.place(int(blockIdx.x));
  const int kv_head = at.head / shape.heads_per_kv_head;
  const int warp_row = int(threadIdx.x / 32) * RowsPerWarp;  // of the Q tile
  const int q_row = at.q_block * BlockQ;
  const bool copies = threadIdx.x == 0;  // the one thread that asks for tiles

  // The last tile comes first, so that the tiles which need a mask do: those that the first row does not see whole.
  const int kv_blocks = ceil_div(shape.visible_keys(q_row + BlockQ - 1), BlockKV);
  const int whole_kv_blocks = shape.visible_keys(q_row) / BlockKV;
  const int warp_sees = shape.visible_keys(q_row + warp_row + RowsPerWarp - 1);  // keys that some row of it does
  int kv_block = kv_blocks - 1;

  const auto load_kv = [&](int block, const RingPlace<Stages>& to) {
    smem.full[to.stage].arrive_expect_tx(2 * int(sizeof(smem.K[0])));
    load_tile_tma(smem.K[to.stage], k_map, at.batch, kv_head, block * BlockKV, smem.full[to.stage]);
    load_tile_tma(smem.V[to.stage], v_map, at.batch, kv_head, block * BlockKV, smem.full[to.stage]);
  };
  RingPlace<Stages> ring, ahead;  // of the tile in use and of the one that is asked for next
  if (copies) {
    smem.q_full.init(1);
    for (int s = 0; s < Stages; ++s) {
      smem.full[s].init(1);  // the thread that copies; the bytes count for themselves
      smem.empty[s].init(Warps);
    }
    mbarrier_init_fence();
    smem.q_full.arrive_expect_tx(int(sizeof(smem.Q)));
    load_tile_tma(smem.Q, q_map, at.batch, at.head, q_row, smem.q_full);
    for (int i = 0; i < Stages - 1 && i < kv_blocks; ++i) {
      load_kv(kv_block - i, ahead);
      ahead.next();
    }
  }
  __syncthreads();  // the barriers exist for all
  smem.q_full.wait(0);

  FragmentA Q_of_warp[RowTiles][QInRegisters ? HeadDim / 16 : 1];  // [RowsPerWarp, HeadDim]
  if constexpr (QInRegisters) load_a_tiles(Q_of_warp, smem.Q, warp_row);
  Accumulator O[RowTiles][ColTiles] = {};  // [RowsPerWarp, HeadDim]
  float m[RowTiles][2], l[RowTiles][2];    // rows Accumulator::row(h); l of this lane's columns of S
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) m[r][0] = m[r][1] = NothingSeen, l[r][0] = l[r][1] = 0.0f;

#pragma unroll
  for (int masked = 1; masked >= 0; --masked) {  // two loops in the program: tiles without a mask do not pay for it
    for (; kv_block >= (masked ? whole_kv_blocks : 0); --kv_block) {
      if (copies && kv_block >= Stages - 1) {
        smem.empty[ahead.stage].wait(ahead.parity ^ 1);  // all warps are done with what was there
        load_kv(kv_block - (Stages - 1), ahead);
        ahead.next();
      }
      smem.full[ring.stage].wait(ring.parity);
      auto &K = smem.K[ring.stage], &V = smem.V[ring.stage];  // [BlockKV, HeadDim]
      const int key = kv_block * BlockKV;
      if (!masked || key < warp_sees) {
        // -- S = Q·K^T for this warp's rows
        Accumulator S[RowTiles][KeyTiles] = {};  // [RowsPerWarp, BlockKV]
        if constexpr (QInRegisters) {
          multiply_transposed<Element>(S, Q_of_warp, K, 0);
        } else {
          multiply_transposed<Element>(S, smem.Q, warp_row, K, 0);
        }
        if (masked) mask_scores(S, shape, q_row + warp_row, key);

        // -- m' = max(m, rowmax(S)); O = O·exp(m − m'), l = l·exp(m − m'), where that is much less than 1
        const float factor = update_maximum(O, l, m, S, shape.scale_log2);

        // -- P = exp(S − m'), l = l + rowsum(P), O = O + P·V
#pragma unroll
        for (int k = 0; k < BlockKV; k += 16) {
          if (masked && k >= warp_sees - key) break;
          FragmentA P[RowTiles][1];  // [RowsPerWarp, 16]
#pragma unroll
          for (int r = 0; r < RowTiles; ++r) P[r][0] = exponentiate<Element>(&S[r][k / 8], m[r], l[r], factor);
          multiply<Element>(O, P, V, k, 0);
        }
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) smem.empty[ring.stage].arrive();
      ring.next();
    }
  }

  // -- O = O / l, where Q was: this warp's rows of it, which no other warp reads
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) l[r][0] = quad_sum(l[r][0]), l[r][1] = quad_sum(l[r][1]);
  __syncwarp();  // all lanes have read their warp's Q
  store_output(smem.Q, warp_row, O, l, m, lse.vector(at.batch, at.head), q_row + warp_row);
  async_proxy_fence();  // the copy engine reads what was stored
  __syncthreads();
  if (copies) {
    store_tile_tma(o_map, at.batch, at.head, q_row, smem.Q);
    tma_store_commit();
    tma_store_wait_read<0>();  // shared memory ends with the block
  }
}

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
void launch_tile(const AttentionCall& call, Machine& machine) {
  const AttentionShape shape(call.problem);
  const BlockOrder order(shape, BlockQ);
  machine.launch({"fa3_tma",
                  {order.blocks()},
                  32 * WarpsOfBlock<HeadDim, BlockQ>,
                  sizeof(Storage<Element, HeadDim, BlockQ, BlockKV>)},
                 fa3_kernel<Element, HeadDim, BlockQ, BlockKV>, machine.tensor_map(tile_map(call.q, BlockQ)),
                 machine.tensor_map(tile_map(call.k, BlockKV)), machine.tensor_map(tile_map(call.v, BlockKV)),
                 machine.tensor_map(tile_map(call.o, BlockQ)), GlobalTensor<float>(call.lse), shape, order);
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions&, Machine& machine) {
  const std::int64_t d = call.problem.head_dim;
  if (d == 64) return launch_tile<Element, 64, 128, 64>(call, machine);
  if (d == 128) return launch_tile<Element, 128, 128, 64>(call, machine);
  launch_tile<Element, 256, 128, 64>(call, machine);
}

}  // namespace flash::MACHINE::fa3_tma
