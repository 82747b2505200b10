// Chapter 05, FlashAttention-2's work partitioning (arXiv 2307.08691, algorithm 1 and section 3.3): the loops are those
// of chapter 04, but within a block each warp owns query rows, not keys. It then needs nothing from another warp: the
// maximum and the sum of a row lie in four lanes of one warp, and the scores that its first product leaves in registers
// are, rounded to 16 bits, the left operand of its second product. And since nobody holds sums of another warp's rows,
// four warps hold O of 128 rows, and an SM has room for a second block.
//
// What keeps the tensor cores fed: K and V tiles arrive by cp.async one iteration ahead, in shared memory swizzled so
// that ldmatrix finds its eight rows in different banks; each fragment of K and V serves all row tiles of the warp; one
// barrier an iteration; P is exponentiated 16 keys at a time, just before the products that need it; and O is rescaled
// only when a maximum has grown by much (update_maximum).
//
// A masked key's P is 0, but 0·NaN is NaN: a NaN in V reaches its column of all rows of a warp, masked or not, if one
// of them sees any of the 16 keys that are multiplied together. What lies behind the tensors' ends reaches nothing:
// such rows are zeros in shared memory.
//
// Variants: `split-q` as above; `no-swizzle` is the same with the pieces of a row in order (eight-way bank conflicts);
// `split-k` is FlashAttention-1's partitioning (split_k.cuh).
#pragma once

#include "chapters/05_fa2_warp_partitioning/split_k.cuh"
#include "common/kernel/attention_shape.hpp"
#include "common/kernel/block_order.hpp"
#include "common/kernel/fragments.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/load_tile.hpp"
#include "common/kernel/softmax.hpp"
#include "common/kernel/write_output.hpp"

namespace flash::MACHINE::fa2_warp_partitioning {

// -- Tiles ------------------------------------------------------------------------------------------------------------

// A warp owns 32 rows, so that a fragment of K or V serves two products; their O takes 128 registers of a thread at
// d = 128. At d = 256 it would take all of them: there a warp owns 16 rows. All registers of an SM are in use with 8
// warps of 255 a thread: two blocks of 4 warps, so that one computes while the other waits, or one of 8.
template <int HeadDim, int BlockQ>
constexpr int WarpsOfBlock = BlockQ / (HeadDim <= 128 ? 32 : 16);

constexpr int Stages = 2;  // K/V tiles in shared memory: one in use, one arriving

template <typename Element, int HeadDim, int BlockQ, int BlockKV, typename Layout>
struct Storage {
  SharedTile<Element, BlockQ, HeadDim, Layout> Q;               // O on the way out
  SharedTile<Element, BlockKV, HeadDim, Layout> KV[2][Stages];  // K and V
  SHARED_MEMBERS(Q, KV);
};

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV, typename Layout>
__global__ void __launch_bounds__(32 * WarpsOfBlock<HeadDim, BlockQ>, 8 / WarpsOfBlock<HeadDim, BlockQ>)
    fa2_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
               GlobalTensor<Element> o, GlobalTensor<float> lse, AttentionShape shape, BlockOrder order) {
  constexpr int Warps = WarpsOfBlock<HeadDim, BlockQ>, Threads = 32 * Warps, RowsPerWarp = BlockQ / Warps;
  constexpr int RowTiles = RowsPerWarp / 16, KeyTiles = BlockKV / 8, ColTiles = HeadDim / 8;
  constexpr bool QInRegisters = HeadDim == 64;  // beside O and S there is room for them
  static_assert(RowsPerWarp % 16 == 0 && BlockKV % 16 == 0, "products have 16 rows and sum over 16 keys");
  auto& smem = shared_storage<Storage<Element, HeadDim, BlockQ, BlockKV, Layout>>();

  const Place at = order.place(int(blockIdx.x));
  const auto Q = q.head(at.batch, at.head);  // [seq_q, HeadDim]
  const int warp = int(threadIdx.x / 32);
  const int warp_row = warp * RowsPerWarp;  // of the Q tile
  const int q_row = at.q_block * BlockQ;

  // Half of the warps copy K, the others V: a thread then keeps one address and one stride, not two.
  const int copies = warp / (Warps / 2);  // 0: K, 1: V
  const unsigned copy_thread = threadIdx.x % (Threads / 2);
  const int kv_head = at.head / shape.heads_per_kv_head;
  const auto KV = copies == 0 ? k.head(at.batch, kv_head) : v.head(at.batch, kv_head);  // [seq_kv, HeadDim]

  // The last tile comes first, so that the tiles which need a mask do: those that the first row does not see whole.
  const int kv_blocks = ceil_div(shape.visible_keys(q_row + BlockQ - 1), BlockKV);
  const int whole_kv_blocks = shape.visible_keys(q_row) / BlockKV;
  const int warp_sees = shape.visible_keys(q_row + warp_row + RowsPerWarp - 1);  // keys that some row of it does
  int kv_block = kv_blocks - 1;

  load_tile_async<Threads>(threadIdx.x, smem.Q, Q, q_row);
  cp_async_commit();
  if (kv_blocks > 0)
    load_tile_async<Threads / 2>(copy_thread, smem.KV[copies][kv_block % Stages], KV, kv_block * BlockKV);
  cp_async_commit();

  FragmentA Q_of_warp[RowTiles][QInRegisters ? HeadDim / 16 : 1];  // [RowsPerWarp, HeadDim]
  if constexpr (QInRegisters) {
    cp_async_wait<1>();
    __syncthreads();
    load_a_tiles(Q_of_warp, smem.Q, warp_row);
  }
  Accumulator O[RowTiles][ColTiles] = {};  // [RowsPerWarp, HeadDim]
  float m[RowTiles][2], l[RowTiles][2];    // rows Accumulator::row(h); l of this lane's columns of S
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) m[r][0] = m[r][1] = NothingSeen, l[r][0] = l[r][1] = 0.0f;

#pragma unroll
  for (int masked = 1; masked >= 0; --masked) {  // two loops in the program: tiles without a mask do not pay for it
    for (; kv_block >= (masked ? whole_kv_blocks : 0); --kv_block) {
      const int stage = kv_block % Stages;
      auto &K = smem.KV[0][stage], &V = smem.KV[1][stage];  // [BlockKV, HeadDim]
      cp_async_wait<0>();
      __syncthreads();  // this tile has arrived for all; all are done with the last one, whose stage is free
      if (kv_block > 0) {
        load_tile_async<Threads / 2, true>(copy_thread, smem.KV[copies][stage ^ 1], KV, (kv_block - 1) * BlockKV);
        cp_async_commit();
      }
      const int key = kv_block * BlockKV;
      if (masked && key >= warp_sees) continue;

      // -- S = Q·K^T for this warp's rows
      Accumulator S[RowTiles][KeyTiles] = {};  // [RowsPerWarp, BlockKV]
      if constexpr (QInRegisters) {
        multiply_transposed<Element>(S, Q_of_warp, K, 0);
      } else {
        multiply_transposed<Element>(S, smem.Q, warp_row, K, 0);
      }
      if (masked) mask_scores(S, shape, q_row + warp_row, key);

      // -- m' = max(m, rowmax(S)); O = O·exp(m − m'), l = l·exp(m − m'), where that is much less than 1
      update_maximum(O, l, m, S, shape.scale_log2);

      // -- P = exp(S − m'), l = l + rowsum(P), O = O + P·V
#pragma unroll
      for (int k = 0; k < BlockKV; k += 16) {
        if (masked && k >= warp_sees - key) break;
        FragmentA P[RowTiles][1];  // [RowsPerWarp, 16]
#pragma unroll
        for (int r = 0; r < RowTiles; ++r) P[r][0] = exponentiate<Element>(&S[r][k / 8], m[r], l[r], shape.scale_log2);
        multiply<Element>(O, P, V, k, 0);
      }
    }
  }

  // -- O = O / l
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived, also where the block saw no key, and has been read: O takes its place
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) l[r][0] = quad_sum(l[r][0]), l[r][1] = quad_sum(l[r][1]);
  // The place again, computed from numbers that the compiler cannot know to be the same: kept through the loops, it
  // would take registers that the products need.
  const Place end = order.place(__shfl_sync(0xffffffffu, int(blockIdx.x), 0));
  const int end_row = __shfl_sync(0xffffffffu, int(threadIdx.x / 32), 0) * RowsPerWarp;
  write_output(O, l, m, smem.Q, end_row, o.head(end.batch, end.head), lse.vector(end.batch, end.head),
               end.q_block * BlockQ + end_row);
}

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
void launch_tile(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  constexpr int Threads = 32 * WarpsOfBlock<HeadDim, BlockQ>;
  const AttentionShape shape(call.problem);
  const BlockOrder order(shape, BlockQ);
  const auto launch_kernel = [&](const char* name, auto* kernel, int threads, std::size_t shared_bytes) {
    machine.launch({name, {order.blocks()}, threads, shared_bytes}, kernel, GlobalTensor<const Element>(call.q),
                   GlobalTensor<const Element>(call.k), GlobalTensor<const Element>(call.v),
                   GlobalTensor<Element>(call.o), GlobalTensor<float>(call.lse), shape, order);
  };
  if (options.variant == "split-q") {
    launch_kernel("split_q", fa2_kernel<Element, HeadDim, BlockQ, BlockKV, Swizzle128>, Threads,
                  sizeof(Storage<Element, HeadDim, BlockQ, BlockKV, Swizzle128>));
  } else if constexpr (BlockQ == 128 && BlockKV == 64) {  // the tile for comparison: traffic.hpp refuses others
    if (options.variant == "no-swizzle") {
      launch_kernel("no_swizzle", fa2_kernel<Element, HeadDim, BlockQ, BlockKV, Panels128>, Threads,
                    sizeof(Storage<Element, HeadDim, BlockQ, BlockKV, Panels128>));
    } else {
      launch_kernel("split_k", split_k::fa2_kernel<Element, HeadDim, BlockQ, BlockKV>, split_k::Threads,
                    sizeof(split_k::Storage<Element, HeadDim, BlockQ, BlockKV>));
    }
  }
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  const std::int64_t d = call.problem.head_dim;
  if (d == 64 && options.block_q == 128) return launch_tile<Element, 64, 128, 64>(call, options, machine);
  if (d == 64 && options.block_q == 256) return launch_tile<Element, 64, 256, 64>(call, options, machine);
  if (d == 128 && options.block_q == 128) return launch_tile<Element, 128, 128, 64>(call, options, machine);
  if (d == 128 && options.block_q == 256) return launch_tile<Element, 128, 256, 64>(call, options, machine);
  if (options.block_q == 64) return launch_tile<Element, 256, 64, 32>(call, options, machine);
  if (options.block_kv == 32) return launch_tile<Element, 256, 128, 32>(call, options, machine);
  launch_tile<Element, 256, 128, 64>(call, options, machine);
}

}  // namespace flash::MACHINE::fa2_warp_partitioning
