// Chapter 08, FlashAttention-3's pipeline (arXiv 2407.08608, sections 3.1 and 3.2).
#pragma once

#include <cstdlib>

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/block_order.hpp"
#include "common/kernel/fragments.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/softmax.hpp"
#include "common/kernel/tma_tile.hpp"
#include "common/kernel/warpgroup_products.hpp"

namespace flash::MACHINE::fa3_pipeline {

template <int HeadDim_, int Consumers_, int BlockKV_, int Stages_, int QStages_, bool PingPong_ = true>
struct Config {
  static constexpr int HeadDim = HeadDim_, Consumers = Consumers_, BlockKV = BlockKV_, Stages = Stages_;
  static constexpr int QStages = QStages_;
  static constexpr bool PingPong = PingPong_;
  static constexpr int BlockQ = Consumers * WarpgroupRows, Threads = 128 * (Consumers + 1);
  static constexpr int ConsumerRegisters = Consumers == 2 ? 240 : Consumers == 3 ? 160 : 112, ProducerRegisters = Consumers == 3 ? 32 : 24;
};

template <typename Element, typename C>
struct Storage {
  SharedTile<Element, C::BlockKV, C::HeadDim, Swizzle128> K[C::Stages], V[C::Stages];
  SharedTile<Element, WarpgroupRows, C::HeadDim, Swizzle128> Q[C::QStages][C::Consumers];  // O on the way out
  Mbarrier q_full[C::QStages], q_empty[C::QStages];
  Mbarrier k_full[C::Stages], k_empty[C::Stages], v_full[C::Stages], v_empty[C::Stages];
  SHARED_MEMBERS(K, V, Q, q_full, q_empty, k_full, k_empty, v_full, v_empty);
};

/// Where in the ring of stages a warpgroup is.
template <int Stages>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

/// The tiles of a block of a persistent grid, one after another.
struct TileOrder {
  int batch_heads, heads, q_blocks;
  bool causal;
  int group_heads, group_waves, waves;

  TileOrder(const AttentionShape& shape, int block_q, int grid, std::int64_t l2_bytes)
      : batch_heads(shape.batch * shape.heads), heads(shape.heads), q_blocks(ceil_div(shape.seq_q, block_q)), causal(shape.causal) {
    group_heads = batch_heads;
    group_waves = int((std::int64_t(batch_heads) * q_blocks + grid - 1) / grid);
    waves = group_waves;
    if (!causal) return;
    const std::int64_t head_bytes = 4ll * shape.seq_kv * shape.head_dim;
    const std::int64_t fit = std::max<std::int64_t>(l2_bytes / head_bytes, 1);  // heads
    int w = int(fit * q_blocks / grid) / 2 * 2;
    if (w < 2) w = 2;
    const int h = w * grid / q_blocks;
    if (h >= batch_heads || h < 1) return;
    group_waves = w;
    group_heads = h;
    waves = ceil_div(batch_heads, group_heads) * group_waves;
  }
  /// Moves `wave` on to the next one in which this block has a tile.
  __device__ __forceinline__ bool find(int& wave, Place& at) const {
    for (; wave < waves; ++wave) {
      const int group = wave / group_waves, in_group = wave % group_waves;
      const int b = causal && (in_group & 1) ? int(gridDim.x) - 1 - int(blockIdx.x) : int(blockIdx.x);
      const int slot = in_group * int(gridDim.x) + b;
      const int heads_of_group = min(group_heads, batch_heads - group * group_heads);
      if (slot >= heads_of_group * q_blocks) continue;
      const int head = group * group_heads + (causal ? slot % heads_of_group : slot / q_blocks);
      at = {head / heads, head % heads, causal ? q_blocks - 1 - slot / heads_of_group : slot % q_blocks};
      return true;
    }
    return false;
  }
};

enum NamedBarrier { WarpgroupStored = 1, Turn = 8 };  // the first of one for each consumer

template <typename Element, typename C>
__device__ __forceinline__ void produce(Storage<Element, C>& smem, const TensorMap& q_map, const TensorMap& k_map,
                                        const TensorMap& v_map, const AttentionShape& shape, const TileOrder& order) {
  RingPlace<C::Stages> ring, v_ring;
  RingPlace<C::QStages> q_ring;
  // V of a block is asked for after K of the next one, which is needed earlier.
  int v_batch = 0, v_head = 0, v_row = -1;
  const auto load_v = [&] {
    if (v_row < 0) return;
    const int s = v_ring.stage;
    smem.v_empty[s].wait(v_ring.parity ^ 1);
    smem.v_full[s].arrive_expect_tx(int(sizeof(smem.V[s])));
    load_tile_tma(smem.V[s], v_map, v_batch, v_head, v_row, smem.v_full[s]);
    v_ring.next();
  };
  Place at;
  for (int wave = 0; order.find(wave, at); ++wave) {
    const int q_row = at.q_block * C::BlockQ, kv_head = at.head / shape.heads_per_kv_head;
    const int kv_blocks = max(ceil_div(shape.visible_keys(q_row + C::BlockQ - 1), C::BlockKV), 1);
    if (C::QStages == 1) {
      load_v();
      v_row = -1;
    }
    const int qs = q_ring.stage;
    smem.q_empty[qs].wait(q_ring.parity ^ 1);
    smem.q_full[qs].arrive_expect_tx(int(sizeof(smem.Q[qs])));
#pragma unroll
    for (int w = 0; w < C::Consumers; ++w) {
      load_tile_tma(smem.Q[qs][w], q_map, at.batch, at.head, q_row + w * WarpgroupRows, smem.q_full[qs]);
    }
    q_ring.next();
    for (int kv_block = kv_blocks - 1; kv_block >= 0; --kv_block) {
      const int s = ring.stage;
      smem.k_empty[s].wait(ring.parity ^ 1);
      smem.k_full[s].arrive_expect_tx(int(sizeof(smem.K[s])));
      load_tile_tma(smem.K[s], k_map, at.batch, kv_head, kv_block * C::BlockKV, smem.k_full[s]);
      ring.next();
      load_v();
      v_batch = at.batch, v_head = kv_head, v_row = kv_block * C::BlockKV;
    }
  }
  load_v();
}

template <typename Element, typename C>
__global__ void __launch_bounds__(C::Threads, 1)
    fa3_kernel(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
               const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap o_map,
               GlobalTensor<float> lse, AttentionShape shape, TileOrder order) {
  auto& smem = shared_storage<Storage<Element, C>>();
  const int warpgroup = uniform(int(threadIdx.x / 128));
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::QStages; ++s) {
      smem.q_full[s].init(1);
      smem.q_empty[s].init(C::Consumers);
    }
    for (int s = 0; s < C::Stages; ++s) {
      smem.k_full[s].init(1);
      smem.v_full[s].init(1);
      smem.k_empty[s].init(4 * C::Consumers);
      smem.v_empty[s].init(4 * C::Consumers);
    }
    mbarrier_init_fence();
  }
  __syncthreads();

  if (warpgroup == 0) {
    decrease_registers<C::ProducerRegisters>();
    if (threadIdx.x == 0) produce<Element, C>(smem, q_map, k_map, v_map, shape, order);
    return;
  }
  increase_registers<C::ConsumerRegisters>();
  const int consumer = warpgroup - 1;
  const bool signals = threadIdx.x % 32 == 0;
  const int next_turn = Turn + (consumer + 1) % C::Consumers;
  if (C::PingPong && consumer == C::Consumers - 1) named_barrier_arrive(Turn, 256);

  RingPlace<C::Stages> ring;
  RingPlace<C::QStages> q_ring;
  const bool writes = threadIdx.x % 128 == 0;  // one thread stores the warpgroup's output
  Accumulator S[1][C::BlockKV / 8];   // [64, BlockKV]
  Accumulator O[1][C::HeadDim / 8];   // [64, HeadDim]
  FragmentA P[C::BlockKV / 16];
#ifndef WAITK
#define WAITK 1
#define WAITV 0
#define EARLY 2
#define DESC 1
#endif
  const auto k_descriptor = [&] { return uniform(k_major(smem.K[ring.stage])); };
  const auto q_descriptor = [&] { return uniform(k_major(smem.Q[q_ring.stage][consumer])); };
  const auto v_descriptor = [&](int stage) { return uniform(mn_major(smem.V[stage])); };
  const auto issue_scores = [&](MatrixDescriptor q, MatrixDescriptor k) {
    wgmma_fence();
    multiply_transposed_async<Element, C::BlockKV, C::HeadDim>(S[0], q, k);
    wgmma_commit();
  };
  const auto wait_turn = [&] { if constexpr (C::PingPong) named_barrier_sync(Turn + consumer, 256); };
  const auto end_turn = [&] { if constexpr (C::PingPong) named_barrier_arrive(next_turn, 256); };

  int wave = 0;
  bool first = true;
  Place next;
  if (!order.find(wave, next)) return;
  smem.q_full[0].wait(0);
  smem.k_full[ring.stage].wait(ring.parity);
  {
    const auto q = q_descriptor(), k = k_descriptor();
    wait_turn();
    issue_scores(q, k);
    end_turn();
  }
  wgmma_wait<0>();
  while (true) {
    const Place at = next;
    const int q_row = at.q_block * C::BlockQ + consumer * WarpgroupRows;
    const int warp_row = q_row + int(threadIdx.x % 128 / 32) * 16;
    int kv_block = max(ceil_div(shape.visible_keys(at.q_block * C::BlockQ + C::BlockQ - 1), C::BlockKV), 1) - 1;
    const int whole_kv_blocks = shape.visible_keys(q_row) / C::BlockKV;
#pragma unroll
    for (int c = 0; c < C::HeadDim / 8; ++c) O[0][c] = {};
    const bool add = true;
    float m[1][2] = {{NothingSeen, NothingSeen}}, l[1][2] = {};
    float rescale[1][2], factor;

    if (signals) smem.k_empty[ring.stage].arrive();
    RingPlace<C::Stages> before = ring;
    ring.next();
    mask_scores(S, shape, warp_row, kv_block * C::BlockKV);
    raise_maximum(l, m, S, shape.scale_log2, rescale, factor);
#pragma unroll
    for (int k = 0; k < C::BlockKV / 16; ++k) P[k] = exponentiate<Element>(&S[0][2 * k], m[0], l[0], factor);
    --kv_block;
    if (C::QStages == 2 && writes && !first) {
      tma_store_wait_read<0>();
      smem.q_empty[q_ring.stage ^ 1].arrive();
    }
#pragma unroll
    for (int masked = 1; masked >= 0; --masked) {
      for (; kv_block >= (masked ? whole_kv_blocks : 0); --kv_block) {
        if (WAITK) smem.k_full[ring.stage].wait(ring.parity);
        if (WAITV) smem.v_full[before.stage].wait(before.parity);
        MatrixDescriptor q = q_descriptor(), k = k_descriptor(), v = v_descriptor(before.stage);
        wait_turn();
        if (!WAITK) smem.k_full[ring.stage].wait(ring.parity);
        if (!DESC) q = q_descriptor(), k = k_descriptor();
        issue_scores(q, k);
        if (!WAITV) smem.v_full[before.stage].wait(before.parity);
        if (!DESC) v = v_descriptor(before.stage);
        wgmma_fence();
        constexpr int Steps = C::BlockKV / 16, Early = Steps - EARLY;
        multiply_async<Element, C::BlockKV, C::HeadDim, 0, Early>(O[0], P, v, add);
        if (EARLY) end_turn();
        multiply_async<Element, C::BlockKV, C::HeadDim, Early, Steps>(O[0], P, v, add);
        wgmma_commit();
        if (!EARLY) end_turn();
        wgmma_wait<1>();
        if (signals) smem.k_empty[ring.stage].arrive();
        if (masked) mask_scores(S, shape, warp_row, kv_block * C::BlockKV);
        const bool raised = raise_maximum(l, m, S, shape.scale_log2, rescale, factor);
#pragma unroll
        for (int c = 0; c < C::BlockKV / 8; ++c) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            S[0][c].value[j] = exp2_approx(fmaf(S[0][c].value[j], factor, -m[0][j / 2]));
            l[0][j / 2] += S[0][c].value[j];
          }
        }
        wgmma_wait<0>();
        if (signals) smem.v_empty[before.stage].arrive();
        if (raised) {
#pragma unroll
          for (int c = 0; c < C::HeadDim / 8; ++c) {
            O[0][c].scale_row(0, rescale[0][0]);
            O[0][c].scale_row(1, rescale[0][1]);
          }
        }
#pragma unroll
        for (int k = 0; k < C::BlockKV / 16; ++k) P[k] = round_to_a<Element>(&S[0][2 * k]);
        before = ring;
        ring.next();
      }
    }

    auto& O_tile = smem.Q[q_ring.stage][consumer];
    const auto write_output = [&] {
      if (signals) smem.v_empty[before.stage].arrive();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        l[0][h] = quad_sum(l[0][h]);
        const int row = warp_row + Accumulator::row(h);
        const float inverse = inverse_sum(l[0][h]);
        if (Accumulator::column(0) == 0 && row < shape.seq_q) {
          lse.vector(at.batch, at.head).store(row, log_sum_exp(m[0][h], l[0][h]));
        }
#pragma unroll
        for (int c = 0; c < C::HeadDim / 8; ++c) {
          const float* pair = &O[0][c].value[2 * h];
          O_tile.store_vector(int(threadIdx.x % 128 / 32) * 16 + Accumulator::row(h), 8 * c + Accumulator::column(0),
                            Vector<Element, 2>{from_float<Element>(pair[0] * inverse), from_float<Element>(pair[1] * inverse)});
        }
      }
      async_proxy_fence();
      named_barrier_sync(WarpgroupStored + consumer, 128);
      if (writes) {
        store_tile_tma(o_map, at.batch, at.head, q_row, O_tile);
        tma_store_commit();
      }
    };

    // -- The last product, and under it and the output the next tile's first scores
    ++wave;
    first = false;
    const bool more = order.find(wave, next);
    if (C::QStages == 1 || !more) {
      smem.v_full[before.stage].wait(before.parity);
      const auto v = v_descriptor(before.stage);
      wait_turn();
      wgmma_fence();
      multiply_async<Element, C::BlockKV, C::HeadDim>(O[0], P, v, add);
      wgmma_commit();
      end_turn();
      wgmma_wait<0>();
      write_output();
      if (!more) break;
      if (writes) {
        tma_store_wait_read<0>();
        smem.q_empty[0].arrive();
      }
      q_ring.next();
      smem.q_full[q_ring.stage].wait(q_ring.parity);
      smem.k_full[ring.stage].wait(ring.parity);
      const auto q = q_descriptor(), k = k_descriptor();
      wait_turn();
      issue_scores(q, k);
      end_turn();
    } else {
      q_ring.next();
      smem.v_full[before.stage].wait(before.parity);
      smem.q_full[q_ring.stage].wait(q_ring.parity);
      smem.k_full[ring.stage].wait(ring.parity);
      const auto q = q_descriptor(), k = k_descriptor(), v = v_descriptor(before.stage);
      wait_turn();
      wgmma_fence();
      multiply_async<Element, C::BlockKV, C::HeadDim>(O[0], P, v, add);
      wgmma_commit();
      issue_scores(q, k);
      end_turn();
      wgmma_wait<1>();
      write_output();
    }
    wgmma_wait<0>();
  }
  if (writes) tma_store_wait_read<0>();
}

template <typename Element, typename C>
void launch_tile(const AttentionCall& call, Machine& machine) {
  const AttentionShape shape(call.problem);
  const std::int64_t tiles = std::int64_t(shape.batch) * shape.heads * ceil_div(shape.seq_q, C::BlockQ);
  const int blocks = int(std::min<std::int64_t>(tiles, machine.processors()));
  const auto env = [](const char* name) { const char* p = std::getenv(name); return p ? std::atoi(p) : 0; };
  const TileOrder order(shape, C::BlockQ, blocks, std::int64_t(env("FLASH_L2")) << 20);
  machine.launch({"fa3_pipeline", {blocks}, C::Threads, sizeof(Storage<Element, C>)}, fa3_kernel<Element, C>,
                 machine.tensor_map(tile_map(call.q, WarpgroupRows)), machine.tensor_map(tile_map(call.k, C::BlockKV)),
                 machine.tensor_map(tile_map(call.v, C::BlockKV)), machine.tensor_map(tile_map(call.o, WarpgroupRows)),
                 GlobalTensor<float>(call.lse), shape, order);
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  const std::int64_t d = call.problem.head_dim;
  const char* p = std::getenv("FLASH_CONFIG");
  const int config = p ? std::atoi(p) : 0;
#ifdef ONLY128
  return launch_tile<Element, Config<128, 2, 128, 2, 2>>(call, machine);
#else
  if (d == 64) {
    if (config == 0) return launch_tile<Element, Config<64, 3, 128, 2, 2>>(call, machine);
    return launch_tile<Element, Config<64, 4, 64, 4, 2>>(call, machine);
  }
  if (d == 128) {
    if (config == 0) return launch_tile<Element, Config<128, 2, 128, 2, 2>>(call, machine);
    return launch_tile<Element, Config<128, 2, 64, 4, 2>>(call, machine);
  }
  return launch_tile<Element, Config<256, 2, 64, 2, 1>>(call, machine);
#endif
}

}  // namespace flash::MACHINE::fa3_pipeline
