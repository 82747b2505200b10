// Chapter 08, FlashAttention-3's pipeline (arXiv 2407.08608, sections 3.1 and 3.2): three things at once, none of which
// waits for another longer than it must.
//
// Loads: a warpgroup of its own, the producer (producer.cuh), does nothing but ask the copy engine for tiles, into a
// ring of which the others release a place as soon as they have read it. It gives its registers to the consumers.
//
// Ping-pong: the consumers (consumer.cuh) issue their products in turn, so that one computes exponentials while the
// tensor cores work for the other.
//
// Overlap within a warpgroup: the scores of the next keys are issued before P·V of the current ones, and their softmax
// runs while P·V does.
//
// The grid is persistent: a block goes from tile to tile, and the first scores of the next tile run under the output of
// the last.
//
// What a NaN in V reaches is as in chapter 07. Variants switch off one thing each.
#pragma once

#include "chapters/08_fa3_pipeline/consumer.cuh"
#include "chapters/08_fa3_pipeline/producer.cuh"

namespace flash::MACHINE::fa3_pipeline {

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, typename C, bool Traced>
__global__ void __launch_bounds__(C::Threads, 1)
    fa3_kernel(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
               const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap o_map,
               GlobalTensor<float> lse, AttentionShape shape, TileOrder order, GlobalTensor<unsigned> timeline) {
  auto& smem = shared_storage<Storage<Element, C>>();
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::QSlots; ++s) {
      smem.q_full[s].init(1);
      smem.q_empty[s].init(4 * C::Consumers);
    }
    for (int s = 0; s < C::Slots; ++s) {
      smem.full[s].init(1);
      smem.empty[s].init(4 * C::Consumers);  // each warp for itself: wgmma_wait speaks for the warp that waits
    }
    mbarrier_init_fence();
  }
  __syncthreads();

  const int warpgroup = uniform(int(threadIdx.x / 128));
  Track<Traced> track(timeline, warpgroup);
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
  consume(smem, loader, o_map, lse, shape, order, warpgroup, track);
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
                 GlobalTensor<unsigned>(timeline));
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
  if (d == 64 && options.block_q == 256) return launch_tile<Element, 64, 4, 64, 12, 2>(call, options, machine);
  if (d == 64) {  // the tile for long sequences, without variants: traffic.hpp refuses them
    if (options.timeline) return launch_config<Element, Config<64, 3, 128, 8, 2>, true>(call, machine);
    return launch_config<Element, Config<64, 3, 128, 8, 2>>(call, machine);
  }
  if (d == 128) return launch_tile<Element, 128, 2, 128, 5, 1>(call, options, machine);
  launch_tile<Element, 256, 2, 64, 5, 1>(call, options, machine);
}

}  // namespace flash::MACHINE::fa3_pipeline
