// Chapter 08, FlashAttention-3's pipeline (arXiv 2407.08608, sections 3.1 and 3.2): three things at once, none of which
// waits for another longer than it must.
//
// Loads: a warpgroup of its own, the producer (producer.cuh), does nothing but ask the copy engine for tiles, into a
// ring of which the others release a place as soon as they have read it. It gives its registers to the consumers.
//
// Ping-pong: the consumers issue their products in turn, so that one computes exponentials while the tensor cores work
// for the other.
//
// Overlap within a warpgroup: the scores of the next keys are issued before P·V of the current ones, and their softmax
// runs while P·V does.
//
// The grid is persistent: a block goes from tile to tile, and the first scores of the next tile run under the output of
// the last.
//
// What a NaN in V reaches is as in chapter 07. Variants switch off one thing each.
#pragma once

#include "chapters/08_fa3_pipeline/producer.cuh"
#include "common/kernel/softmax.hpp"
#include "common/kernel/warpgroup_products.hpp"
#include "common/kernel/write_output.hpp"

namespace flash::MACHINE::fa3_pipeline {

/// One for each consumer, from these on.
enum NamedBarriers { OutputStored = 1, Turn = 8 };

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, typename C, bool Traced>
__global__ void __launch_bounds__(C::Threads, 1)
    fa3_kernel(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
               const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap o_map,
               GlobalTensor<float> lse, AttentionShape shape, TileOrder order,
               GlobalTensor<unsigned long long> timeline) {
  // Beside S, P and O there is room for Q at d = 128. A product of scores then reads 4096 bytes of shared memory in its
  // 64 clocks and not 6144, of the 8192 that there are.
  constexpr bool QInRegisters = C::HeadDim == 128;
  constexpr int KeyTiles = C::BlockKV / 8, KeySteps = C::BlockKV / 16, ColTiles = C::HeadDim / 8;
  auto& smem = shared_storage<Storage<Element, C>>();
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::QSlots; ++s) {
      smem.q_full[s].init(1);
      smem.q_empty[s].init(C::Consumers);  // the thread that stores the warpgroup's output
    }
    for (int s = 0; s < C::Slots; ++s) {
      smem.full[s].init(1);
      smem.empty[s].init(4 * C::Consumers);  // each warp for itself: wgmma_wait speaks for the warp that waits
    }
    mbarrier_init_fence();
  }
  __syncthreads();

  const int warpgroup = uniform(int(threadIdx.x / 128));
  Track<Traced> track(timeline, TracedBlocks, warpgroup, threadIdx.x % 128 == 0);
  Loader<Element, C, Traced> loader(smem, q_map, k_map, v_map, shape, order, track);
  if constexpr (C::Specialized) {
    if (warpgroup == C::Consumers) {
      decrease_registers<C::ProducerRegisters>();
      if (threadIdx.x % 128 == 0) {
        while (loader.step()) {
        }
        track.mark(Done);
      }
      return;
    }
    increase_registers<C::ConsumerRegisters>();
  }

  // -- A consumer
  const int warp_row = int(threadIdx.x % 128 / 32) * 16;  // of the warpgroup's 64
  const bool releases = threadIdx.x % 32 == 0;            // one thread of a warp speaks for it
  const bool stores = threadIdx.x % 128 == 0;  // one thread of the warpgroup asks for its output to be stored
  // Without a producer one thread asks for what the next two turns need, and after each turn for more. Q's only slot is
  // free when the output has left it.
  const bool loads = !C::Specialized && threadIdx.x == 0;
  int steps_ahead = 0;
  const auto load_ahead = [&](int used, bool q_slot_is_free) {
    if (!loads) return;
    steps_ahead -= used;
    while (steps_ahead < 2 && (C::QSlots == 2 || q_slot_is_free || !loader.begins_tile()) && loader.step())
      ++steps_ahead;
  };
  load_ahead(0, true);

  Accumulator S[1][KeyTiles];                                  // [64, BlockKV]
  Accumulator O[1][ColTiles];                                  // [64, HeadDim]
  FragmentA P[KeySteps];                                       // [64, BlockKV]
  FragmentA Q_of_warp[1][QInRegisters ? C::HeadDim / 16 : 1];  // [64, HeadDim], 16 rows in each warp
  RingPlace<C::Slots> ring;                                    // the next tile of K or V that is used
  RingPlace<C::QSlots> q_ring;

  const auto wait_for_q = [&] {
    track.mark(WaitsForTiles);
    smem.q_full[q_ring.stage].wait(q_ring.parity);
    if constexpr (QInRegisters) {
      load_a_tiles(Q_of_warp, smem.Q[q_ring.stage][warpgroup], warp_row);
      __syncwarp();  // all lanes have read, before O takes Q's place
    }
  };
  const auto wait_for_turn = [&] {
    track.mark(WaitsForTurn);
    if constexpr (C::PingPong) named_barrier_sync(Turn + warpgroup, 256);
    track.mark(Issues);
  };
  const auto pass_turn = [&] {
    if constexpr (C::PingPong) named_barrier_arrive(Turn + (warpgroup + 1) % C::Consumers, 256);
  };
  const auto issue_scores = [&] {  // S = Q·K^T; returns K's slot
    const int slot = ring.stage;
    track.mark(WaitsForTiles);
    smem.full[slot].wait(ring.parity);
    track.mark(Issues);
    ring.next();
    wgmma_fence();
    const MatrixDescriptor K = uniform(k_major(smem.KV[slot]));
    if constexpr (QInRegisters) {
      multiply_transposed_async<Element, C::BlockKV, C::HeadDim>(S[0], Q_of_warp[0], K);
    } else {
      multiply_transposed_async<Element, C::BlockKV, C::HeadDim>(S[0],
                                                                 uniform(k_major(smem.Q[q_ring.stage][warpgroup])), K);
    }
    wgmma_commit();
    return slot;
  };
  const auto issue_output = [&] {  // O = O + P·V; returns V's slot
    const int slot = ring.stage;
    track.mark(WaitsForTiles);
    smem.full[slot].wait(ring.parity);
    track.mark(Issues);
    ring.next();
    wgmma_fence();
    multiply_async<Element, C::BlockKV, C::HeadDim>(O[0], P, uniform(mn_major(smem.KV[slot])));
    wgmma_commit();
    return slot;
  };
  const auto release = [&](int slot) {
    if (releases) smem.empty[slot].arrive();
  };

  if (C::PingPong && warpgroup == C::Consumers - 1) pass_turn();  // the first turn is warpgroup 0's
  int wave = 0;
  Place next;
  order.find(wave, int(blockIdx.x), int(gridDim.x), next);  // the grid has no block without a tile
  wait_for_q();
  wait_for_turn();
  int k_slot = issue_scores();
  pass_turn();
  track.mark(WaitsForScores);
  wgmma_wait<0>();

  for (bool first = true;; first = false) {  // a tile of Q; S holds its first scores
    const Work<C> work(shape, next);
    const Place at = work.at;
    const int group_row = at.q_block * C::BlockQ + warpgroup * WarpgroupRows;  // of the head
    const int whole_kv_blocks = shape.visible_keys(group_row) / C::BlockKV;    // that the first row sees whole
    int kv_block = work.kv_blocks - 1;                                         // the last comes first: it needs a mask
    float m[1][2] = {{NothingSeen, NothingSeen}}, l[1][2] = {};  // rows Accumulator::row(h); l of this lane's columns
    float rescaling[1][2], factor;
#pragma unroll
    for (int c = 0; c < ColTiles; ++c) O[0][c] = {};

    // -- The first softmax
    track.mark(Softmax);
    release(k_slot);
    mask_scores(S, shape, group_row + warp_row, kv_block * C::BlockKV);
    raise_maximum(l, m, S, shape.scale_log2, rescaling, factor);
    exponentiate_in_place(S[0], m[0], l[0], factor);
#pragma unroll
    for (int k = 0; k < KeySteps; ++k) P[k] = round_to_a<Element>(&S[0][2 * k]);
    if (C::QSlots == 2 && stores && !first) {  // the last tile's output has left the other slot of Q
      tma_store_wait_read<0>();
      smem.q_empty[q_ring.stage ^ 1].arrive();
    }
    load_ahead(1, false);

    // -- The scores of the next keys, and P·V of these under the softmax of those
    --kv_block;
#pragma unroll
    for (int masked = 1; masked >= 0; --masked) {  // two loops in the program: tiles without a mask do not pay for it
      for (; kv_block >= (masked ? whole_kv_blocks : 0); --kv_block) {
        wait_for_turn();
        k_slot = issue_scores();
        const int v_slot = issue_output();
        pass_turn();
        track.mark(WaitsForScores);
        wgmma_wait<C::Overlap ? 1 : 0>();  // the scores
        track.mark(Softmax);
        release(k_slot);
        if (masked) mask_scores(S, shape, group_row + warp_row, kv_block * C::BlockKV);
        const bool raised = raise_maximum(l, m, S, shape.scale_log2, rescaling, factor);
        exponentiate_in_place(S[0], m[0], l[0], factor);
        track.mark(WaitsForOutput);
        // The output. In both branches, so that ptxas, which moves it up through a stretch of code, leaves it behind
        // the exponentials, which it is to overlap with.
        if (raised) {
          wgmma_wait<0>();
          rescale_output(O, rescaling);
        } else {
          wgmma_wait<0>();
        }
        track.mark(Rounds);
        release(v_slot);
#pragma unroll
        for (int k = 0; k < KeySteps; ++k) P[k] = round_to_a<Element>(&S[0][2 * k]);
        load_ahead(1, false);
      }
    }

    // -- The last P·V, and under the output of this tile the first scores of the next
    auto& Q = smem.Q[q_ring.stage][warpgroup];
    const auto write_output = [&] {
      track.mark(WritesOutput);
#pragma unroll
      for (int h = 0; h < 2; ++h) l[0][h] = quad_sum(l[0][h]);
      store_output(Q, warp_row, O, l, m, lse.vector(at.batch, at.head), group_row + warp_row);
      async_proxy_fence();  // the copy engine reads what was stored
      named_barrier_sync(OutputStored + warpgroup, 128);
      if (stores) {
        store_tile_tma(o_map, at.batch, at.head, group_row, Q);
        tma_store_commit();
      }
    };
    ++wave;
    const bool more = order.find(wave, int(blockIdx.x), int(gridDim.x), next);
    if (C::QSlots == 2 && more) {
      q_ring.next();
      wait_for_q();
      wait_for_turn();
      const int v_slot = issue_output();
      k_slot = issue_scores();
      pass_turn();
      track.mark(WaitsForOutput);
      wgmma_wait<1>();  // the output
      release(v_slot);
      write_output();
    } else {
      wait_for_turn();
      const int v_slot = issue_output();
      pass_turn();
      track.mark(WaitsForOutput);
      wgmma_wait<0>();
      release(v_slot);
      write_output();
      if (!more) break;
      if (stores) {
        tma_store_wait_read<0>();
        smem.q_empty[q_ring.stage].arrive();
      }
      load_ahead(1, true);
      q_ring.next();
      wait_for_q();
      wait_for_turn();
      k_slot = issue_scores();
      pass_turn();
    }
    track.mark(WaitsForScores);
    wgmma_wait<0>();
    if (C::QSlots == 2) load_ahead(1, false);
  }
  if (stores) tma_store_wait_read<0>();  // shared memory ends with the block
  track.mark(Done);
}

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename Element, typename C, bool Traced = false>
void launch_config(const AttentionCall& call, Machine& machine) {
  const AttentionShape shape(call.problem);
  const std::int64_t tiles = std::int64_t(shape.batch) * shape.heads * ceil_div(shape.seq_q, C::BlockQ);
  const int blocks = int(std::min<std::int64_t>(tiles, machine.processors()));
  TensorRef timeline;
  timeline.name = "timeline";
  if (Traced) timeline = call.workspace.back();
  machine.launch({"fa3_pipeline", {blocks}, C::Threads, sizeof(Storage<Element, C>)}, fa3_kernel<Element, C, Traced>,
                 machine.tensor_map(tile_map(call.q, WarpgroupRows)), machine.tensor_map(tile_map(call.k, C::BlockKV)),
                 machine.tensor_map(tile_map(call.v, C::BlockKV)), machine.tensor_map(tile_map(call.o, WarpgroupRows)),
                 GlobalTensor<float>(call.lse), shape, TileOrder(shape, C::BlockQ, blocks),
                 GlobalTensor<unsigned long long>(timeline));
}

/// The pipeline, and the variants that switch one thing off.
template <typename Element, int HeadDim, int Consumers, int BlockKV, int Slots, int QSlots>
void launch_tile(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  if (options.timeline) {  // of the pipeline: traffic.hpp refuses others
    launch_config<Element, Config<HeadDim, Consumers, BlockKV, Slots, QSlots>, true>(call, machine);
  } else if (options.variant == "pipeline") {
    launch_config<Element, Config<HeadDim, Consumers, BlockKV, Slots, QSlots>>(call, machine);
  } else if (options.variant == "no-specialization") {
    launch_config<Element, Config<HeadDim, Consumers, BlockKV, Slots, QSlots, false>>(call, machine);
  } else if (options.variant == "no-pingpong") {
    launch_config<Element, Config<HeadDim, Consumers, BlockKV, Slots, QSlots, true, false>>(call, machine);
  } else if (options.variant == "no-overlap") {
    launch_config<Element, Config<HeadDim, Consumers, BlockKV, Slots, QSlots, true, true, false>>(call, machine);
  } else {
    launch_config<Element, Config<HeadDim, Consumers, BlockKV, 4, QSlots>>(call, machine);
  }
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  const std::int64_t d = call.problem.head_dim;
  if (d == 64 && options.block_q == 256) return launch_tile<Element, 64, 4, 64, 8, 2>(call, options, machine);
  if (d == 64) {  // the tile for long sequences, without variants: traffic.hpp refuses them
    if (options.timeline) return launch_config<Element, Config<64, 3, 128, 6, 2>, true>(call, machine);
    return launch_config<Element, Config<64, 3, 128, 6, 2>>(call, machine);
  }
  if (d == 128) return launch_tile<Element, 128, 2, 128, 5, 2>(call, options, machine);
  launch_tile<Element, 256, 2, 64, 5, 1>(call, options, machine);
}

}  // namespace flash::MACHINE::fa3_pipeline
