// Chapter 07: both products on wgmma, the instruction with which four warps together feed Hopper's tensor cores
// straight from shared memory. The tiles come as in chapter 06.
//
// A warpgroup owns 64 query rows. S = Q·Kᵀ takes both operands from shared memory as the copy engine left them there;
// no ldmatrix, no fragments of K in registers. Its sums lie in the registers as those of mma.m16n8k16 do, so
// softmax.hpp works on them as before, and P, rounded in place, is the register operand of O += P·V, which takes V from
// shared memory with its columns contiguous ("mn-major"): no transposed copy.
//
// wgmma is asynchronous. Here each product is waited for before anything else is done: a warpgroup's softmax overlaps
// only with what the other warpgroups do at that time. Chapter 08 changes that.
//
// A masked key's P is 0, but 0·NaN is NaN: a NaN in V reaches its column of all rows that see any key of the tile. What
// lies behind the tensors' ends reaches nothing: such rows are zeros in shared memory.
#pragma once

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/block_order.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/ring.hpp"
#include "common/kernel/softmax.hpp"
#include "common/kernel/tma_tile.hpp"
#include "common/kernel/warpgroup_products.hpp"
#include "common/kernel/write_output.hpp"

namespace flash::MACHINE::fa3_wgmma {

// -- Tiles ------------------------------------------------------------------------------------------------------------

// K/V tiles in shared memory: one in use, the others arriving.
template <int HeadDim>
constexpr int StagesOf = HeadDim == 64 ? 3 : 2;

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
struct Storage {
  static constexpr int Stages = StagesOf<HeadDim>;
  SharedTile<Element, WarpgroupRows, HeadDim, Swizzle128> Q[BlockQ / WarpgroupRows];  // O on the way out
  SharedTile<Element, BlockKV, HeadDim, Swizzle128> K[Stages], V[Stages];
  Mbarrier q_full, full[Stages], empty[Stages];
  SHARED_MEMBERS(Q, K, V, q_full, full, empty);
};

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
__global__ void __launch_bounds__(2 * BlockQ, 1)
    fa3_kernel(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
               const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap o_map,
               GlobalTensor<float> lse, AttentionShape shape, BlockOrder order) {
  constexpr int Stages = StagesOf<HeadDim>;
  constexpr int Warpgroups = BlockQ / WarpgroupRows, KeyTiles = BlockKV / 8, ColTiles = HeadDim / 8;
  auto& smem = shared_storage<Storage<Element, HeadDim, BlockQ, BlockKV>>();

  const Place at = order.place(int(blockIdx.x));
  const int kv_head = at.head / shape.heads_per_kv_head;
  const int warpgroup = uniform(int(threadIdx.x / 128));
  const int group_row = at.q_block * BlockQ + warpgroup * WarpgroupRows;  // of the head
  const int warp_row = int(threadIdx.x % 128 / 32) * 16;                  // of the warpgroup
  const bool copies = threadIdx.x == 0;                                   // the one thread that asks for tiles

  // The last tile comes first, so that the tiles which need a mask do: those that the warpgroup's first row does not
  // see whole.
  const int kv_blocks = ceil_div(shape.visible_keys(at.q_block * BlockQ + BlockQ - 1), BlockKV);
  const int whole_kv_blocks = shape.visible_keys(group_row) / BlockKV;
  const int group_sees = shape.visible_keys(group_row + WarpgroupRows - 1);  // keys that some row of it does
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
      smem.full[s].init(1);                // the thread that copies; the bytes count for themselves
      smem.empty[s].init(4 * Warpgroups);  // each warp for itself: wgmma_wait speaks for the warp that waits
    }
    mbarrier_init_fence();
    smem.q_full.arrive_expect_tx(int(sizeof(smem.Q)));
#pragma unroll
    for (int w = 0; w < Warpgroups; ++w) {
      load_tile_tma(smem.Q[w], q_map, at.batch, at.head, at.q_block * BlockQ + w * WarpgroupRows, smem.q_full);
    }
    for (int i = 0; i < Stages - 1 && i < kv_blocks; ++i) {
      load_kv(kv_block - i, ahead);
      ahead.next();
    }
  }
  __syncthreads();  // the barriers exist for all
  smem.q_full.wait(0);

  Accumulator O[1][ColTiles] = {};  // [64, HeadDim]
  float m[1][2] = {{NothingSeen, NothingSeen}},
        l[1][2] = {};  // rows Accumulator::row(h); l of this lane's columns of S

#pragma unroll
  for (int masked = 1; masked >= 0; --masked) {  // two loops in the program: tiles without a mask do not pay for it
    for (; kv_block >= (masked ? whole_kv_blocks : 0); --kv_block) {
      if (copies && kv_block >= Stages - 1) {
        smem.empty[ahead.stage].wait(ahead.parity ^ 1);  // all warps are done with what was there
        load_kv(kv_block - (Stages - 1), ahead);
        ahead.next();
      }
      smem.full[ring.stage].wait(ring.parity);
      const int key = kv_block * BlockKV;
      if (!masked || key < group_sees) {
        // -- S = Q·K^T
        Accumulator S[1][KeyTiles];  // [64, BlockKV]
        wgmma_fence();
        multiply_transposed_async<Element, BlockKV, HeadDim>(S[0], uniform(k_major(smem.Q[warpgroup])),
                                                             uniform(k_major(smem.K[ring.stage])));
        wgmma_commit();
        wgmma_wait<0>();
        if (masked) mask_scores(S, shape, group_row + warp_row, key);

        // -- m' = max(m, rowmax(S)); O = O·exp(m − m'), l = l·exp(m − m'), where that is much less than 1
        const float factor = update_maximum(O, l, m, S, shape.scale_log2);

        // -- P = exp(S − m'), l = l + rowsum(P), O = O + P·V
        FragmentA P[BlockKV / 16];  // [64, BlockKV]
#pragma unroll
        for (int k = 0; k < BlockKV / 16; ++k) P[k] = exponentiate<Element>(&S[0][2 * k], m[0], l[0], factor);
        wgmma_fence();
        multiply_async<Element, BlockKV, HeadDim>(O[0], P, uniform(mn_major(smem.V[ring.stage])));
        wgmma_commit();
        wgmma_wait<0>();
      }
      if (threadIdx.x % 32 == 0) smem.empty[ring.stage].arrive();
      ring.next();
    }
  }

  // -- O = O / l, where the warpgroup's Q was
#pragma unroll
  for (int h = 0; h < 2; ++h) l[0][h] = quad_sum(l[0][h]);
  store_output(smem.Q[warpgroup], warp_row, O, l, m, lse.vector(at.batch, at.head), group_row + warp_row);
  async_proxy_fence();  // the copy engine reads what was stored
  named_barrier_sync(1 + warpgroup, 128);
  if (threadIdx.x % 128 == 0) {
    store_tile_tma(o_map, at.batch, at.head, group_row, smem.Q[warpgroup]);
    tma_store_commit();
    tma_store_wait_read<0>();  // shared memory ends with the block
  }
}

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
void launch_tile(const AttentionCall& call, Machine& machine) {
  const AttentionShape shape(call.problem);
  const BlockOrder order(shape, BlockQ);
  machine.launch({"fa3_wgmma", {order.blocks()}, 2 * BlockQ, sizeof(Storage<Element, HeadDim, BlockQ, BlockKV>)},
                 fa3_kernel<Element, HeadDim, BlockQ, BlockKV>, machine.tensor_map(tile_map(call.q, WarpgroupRows)),
                 machine.tensor_map(tile_map(call.k, BlockKV)), machine.tensor_map(tile_map(call.v, BlockKV)),
                 machine.tensor_map(tile_map(call.o, WarpgroupRows)), GlobalTensor<float>(call.lse), shape, order);
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions&, Machine& machine) {
  const std::int64_t d = call.problem.head_dim;
  if (d == 64) return launch_tile<Element, 64, 192, 128>(call, machine);
  if (d == 128) return launch_tile<Element, 128, 128, 128>(call, machine);
  launch_tile<Element, 256, 128, 64>(call, machine);
}

}  // namespace flash::MACHINE::fa3_wgmma
