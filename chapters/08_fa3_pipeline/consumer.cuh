// Chapter 08: a consumer, which computes 64 rows of each tile of Q that its block is given.
#pragma once

#include "chapters/08_fa3_pipeline/producer.cuh"
#include "common/kernel/softmax.hpp"
#include "common/kernel/warpgroup_products.hpp"
#include "common/kernel/write_output.hpp"

namespace flash::MACHINE::fa3_pipeline {

/// One for each consumer, from these on.
enum NamedBarriers { OutputStored = 1, Exceeded = 5, Turn = 9 };

/// Rows 64·warpgroup and on of each tile of the block, from the first scores to the stored output. By the 128 threads
/// of a warpgroup. `loader` is used where there is no producer.
template <typename Element, typename C, bool Traced>
__device__ __forceinline__ void consume(Storage<Element, C>& smem, Loader<Element, C, Traced>& loader,
                                        const TensorMap& o_map, const GlobalTensor<float>& lse,
                                        const AttentionShape& shape, const TileOrder& order, int warpgroup,
                                        Track<Traced>& track) {
  // Beside S, P and O there is room for Q at d = 128. A product of scores then reads 4096 bytes of shared memory in its
  // 64 clocks and not 6144, of the 8192 that there are.
  constexpr bool QInRegisters = C::HeadDim == 128;
  // Whether the next Q can be there before this one's last scores have been read.
  constexpr bool ScoresAhead = QInRegisters || C::QSlots == 2;
  constexpr int KeyTiles = C::BlockKV / 8, KeySteps = C::BlockKV / 16, ColTiles = C::HeadDim / 8;
  const int warp_row = int(threadIdx.x % 128 / 32) * 16;  // of the warpgroup's 64
  const bool releases = threadIdx.x % 32 == 0;            // one thread of a warp speaks for it
  const bool stores = threadIdx.x % 128 == 0;  // one thread of the warpgroup asks for its output to be stored
  // Without a producer one thread asks for what the next two turns need, and after each turn for more.
  const bool loads = !C::Specialized && threadIdx.x == 0;
  int steps_ahead = 0;
  const auto load_ahead = [&](int used, bool q_slot_is_free) {
    if (!loads) return;
    steps_ahead -= used;
    while (steps_ahead < 2 && (ScoresAhead || q_slot_is_free || !loader.begins_tile()) && loader.step()) ++steps_ahead;
  };
  load_ahead(0, true);

  Accumulator S[1][KeyTiles];                                  // [64, BlockKV]
  Accumulator O[1][ColTiles];                                  // [64, HeadDim]
  FragmentA P[KeySteps];                                       // [64, BlockKV]
  FragmentA Q_of_warp[1][QInRegisters ? C::HeadDim / 16 : 1];  // [64, HeadDim], 16 rows in each warp
  RingPlace<C::Slots> ring;                                    // the next tile of K or V that is used
  RingPlace<C::QSlots> q_ring;
  int output_slot = 0;  // of the last output

  const auto release_q = [&] {
    if (releases) smem.q_empty[q_ring.stage].arrive();
    q_ring.next();
  };
  const auto wait_for_q = [&] {
    track.mark(WaitsForTiles);
    smem.q_full[q_ring.stage].wait(q_ring.parity);
    if constexpr (QInRegisters) {
      load_a_tiles(Q_of_warp, smem.Q[q_ring.stage][warpgroup], warp_row);
      // An arrival overtakes loads that are under way, and the next Q comes before this one has been read: the fence
      // waits for them.
      async_proxy_fence();
      __syncwarp();
      release_q();
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
  const auto next_place = [&] {
    const RingPlace<C::Slots> place = ring;
    ring.next();
    return place;
  };
  const auto wait_for = [&](const RingPlace<C::Slots>& place, Doing then = Issues) {
    track.mark(WaitsForTiles);
    smem.full[place.stage].wait(place.parity);
    track.mark(then);
  };
  const auto release = [&](const RingPlace<C::Slots>& place) {
    if (releases) smem.empty[place.stage].arrive();
  };
  const auto q_matrix = [&] {
    if constexpr (QInRegisters) return MatrixDescriptor{};
    return uniform(k_major(smem.Q[q_ring.stage][warpgroup]));
  };
  const auto k_matrix = [&](const RingPlace<C::Slots>& place) { return uniform(k_major(smem.KV[place.stage])); };
  const auto v_matrix = [&](const RingPlace<C::Slots>& place) { return uniform(mn_major(smem.KV[place.stage])); };
  const auto issue_scores = [&](MatrixDescriptor Q, MatrixDescriptor K) {  // S = Q·K^T
    wgmma_fence();
    if constexpr (QInRegisters) {
      multiply_transposed_async<Element, C::BlockKV, C::HeadDim>(S[0], Q_of_warp[0], K);
    } else {
      multiply_transposed_async<Element, C::BlockKV, C::HeadDim>(S[0], Q, K);
    }
    wgmma_commit();
  };
  const auto issue_output = [&](MatrixDescriptor V) {  // O = O + P·V
    wgmma_fence();
    multiply_async<Element, C::BlockKV, C::HeadDim>(O[0], P, V);
    wgmma_commit();
  };
  const auto wait_for_output_to_leave = [&] {
    if (C::OutputPlaces == 0 || !stores) return;
    tma_store_wait_read<0>();
    smem.empty[output_slot].arrive();
  };
  // The scores of these keys; q_ring is at the tile's Q, unless that is in registers.
  const auto start_scores = [&](const RingPlace<C::Slots>& k, Doing then = Issues) {
    wait_for(k, then);
    issue_scores(q_matrix(), k_matrix(k));
  };
  const auto start_output = [&](const RingPlace<C::Slots>& v) {
    wait_for(v);
    issue_output(v_matrix(v));
  };

  // How many of a tile's blocks of keys come after the last that one of this warpgroup's rows sees.
  const auto unseen_blocks = [&](const Place& place) {
    const int last_row = place.q_block * C::BlockQ + (warpgroup + 1) * WarpgroupRows - 1;
    if (C::BlockQ == C::BlockKV) return 0;  // none in square problems, so not worth the branches
    return kv_blocks_of<C>(shape, place) - max(ceil_div(shape.visible_keys(last_row), C::BlockKV), 1);
  };
  const auto pass_tile = [&] {
    const RingPlace<C::Slots> place = next_place();
    wait_for(place);
    release(place);
  };
  // The warpgroup lets so many K pass, each with the V of the K before it, and so many turns.
  const auto pass_over = [&](int blocks, int turns) {
    for (int i = 0; i < blocks; ++i) {
      pass_tile();
      if (i > 0) pass_tile();
      if (i < turns) {
        wait_for_turn();
        pass_turn();
      }
      load_ahead(1, false);
    }
  };

  if (C::PingPong && warpgroup == C::Consumers - 1) pass_turn();  // the first turn is warpgroup 0's
  int wave = 0;
  Place next;
  order.find(wave, int(blockIdx.x), int(gridDim.x), next);  // the grid has no block without a tile
  int unseen = unseen_blocks(next);
  wait_for_q();
  pass_over(unseen, unseen);
  wait_for_turn();
  RingPlace<C::Slots> k = next_place();
  start_scores(k);
  pass_turn();
  track.mark(WaitsForScores);
  wgmma_wait<0>();

  for (bool first = true;; first = false) {  // a tile of Q; S holds its first scores
    const Place at = next;
    const int group_row = at.q_block * C::BlockQ + warpgroup * WarpgroupRows;  // of the head
    const int whole_kv_blocks = shape.visible_keys(group_row) / C::BlockKV;    // that the first row sees whole
    int kv_block = kv_blocks_of<C>(shape, at) - 1 - unseen;                    // the last comes first: it needs a mask
    float m[1][2] = {{NothingSeen, NothingSeen}}, l[1][2] = {};  // rows Accumulator::row(h); l of this lane's columns
    float rescaling[1][2], factor;
#pragma unroll
    for (int c = 0; c < ColTiles; ++c) O[0][c] = {};

    // -- The first softmax
    track.mark(Softmax);
    release(k);
    if (unseen > 0) pass_tile();  // the V of the last K that was passed over
    if (kv_block >= whole_kv_blocks) mask_scores(S, shape, group_row + warp_row, kv_block * C::BlockKV);
    raise_maximum(l, m, S, shape.scale_log2, rescaling, factor);
    exponentiate_in_place(S[0], m[0], l[0], factor);
#pragma unroll
    for (int i = 0; i < KeySteps; ++i) P[i] = round_to_a<Element>(&S[0][2 * i]);
    if (C::Specialized && !first) wait_for_output_to_leave();
    load_ahead(1, false);

    // -- The scores of the next keys, and P·V of these under the softmax of those
    --kv_block;
#pragma unroll
    for (int masked = 1; masked >= 0; --masked) {  // two loops in the program: tiles without a mask do not pay for it
      for (; kv_block >= (masked ? whole_kv_blocks : 0); --kv_block) {
        k = next_place();
        const RingPlace<C::Slots> v = next_place();
        MatrixDescriptor K = k_major(smem.KV[k.stage]), V = mn_major(smem.KV[v.stage]);
        if constexpr (C::Consumers == 4) {  // short turns are what counts: all that can be is done before
          const MatrixDescriptor Q = q_matrix();
          K = uniform(K), V = uniform(V);
          wait_for_turn();
          wait_for(k);
          issue_scores(Q, K);
          wait_for(v);
          issue_output(V);
        } else {
          wait_for_turn();
          wait_for(k);
          issue_scores(q_matrix(), uniform(K));
          wait_for(v);
          issue_output(uniform(V));
        }
        pass_turn();
        track.mark(WaitsForScores);
        wgmma_wait<C::Overlap ? 1 : 0>();  // the scores
        track.mark(Softmax);
        // Relative to m as it is, in the hope that no score exceeds it. If one does, in any row of the warpgroup, the
        // scores are computed again (K is still there) and compared.
        float sums[2] = {};
        bool compare = masked;
        if (masked) {
          mask_scores(S, shape, group_row + warp_row, kv_block * C::BlockKV);
        } else {
          const bool done = try_exponentiate(S[0], m[0], sums, shape.scale_log2);
          compare = named_barrier_any(Exceeded + warpgroup, 128, !done);
          if (compare) {
            issue_scores(q_matrix(), k_matrix(k));
            wgmma_wait<0>();
          }
        }
        // The output is waited for in each branch: ptxas moves a wait up through a stretch of code, and this one is to
        // stay behind the exponentials.
        if (compare) {
          const bool raised = raise_maximum(l, m, S, shape.scale_log2, rescaling, factor);
          exponentiate_in_place(S[0], m[0], l[0], factor);
          track.mark(WaitsForOutput);
          if (raised) {
            wgmma_wait<0>();
            rescale_output(O, rescaling);
          } else {
            wgmma_wait<0>();
          }
        } else {
          track.mark(WaitsForOutput);
          wgmma_wait<0>();
#pragma unroll
          for (int h = 0; h < 2; ++h) l[0][h] += sums[h];
        }
        track.mark(Rounds);
        release(k);
        release(v);
#pragma unroll
        for (int i = 0; i < KeySteps; ++i) P[i] = round_to_a<Element>(&S[0][2 * i]);
        load_ahead(1, false);
      }
    }

    // -- The last P·V, and under the output of this tile the first scores of the next
    if (!QInRegisters) release_q();
    ++wave;
    const bool more = order.find(wave, int(blockIdx.x), int(gridDim.x), next);
    unseen = more ? unseen_blocks(next) : 0;
    const RingPlace<C::Slots> v = next_place();
    RingPlace<C::Slots> output_place = ring;
#pragma unroll
    for (int i = 0; i < C::OutputPlaces; ++i) ring.next();
    const auto write_output = [&] {
      if constexpr (C::OutputPlaces == 0) {
        if (stores) tma_store_wait_read<0>();  // the last output has left
        named_barrier_sync(OutputStored + warpgroup, 128);
      }
#pragma unroll
      for (int i = 0; i < C::OutputPlaces; ++i) {
        smem.full[output_place.stage].wait(output_place.parity);
        if (i == warpgroup) {
          output_slot = output_place.stage;
        } else {
          release(output_place);
        }
        output_place.next();
      }
      auto& rows = smem.output(output_slot, warpgroup);
#pragma unroll
      for (int h = 0; h < 2; ++h) l[0][h] = quad_sum(l[0][h]);
      store_output(rows, warp_row, O, l, m, lse.vector(at.batch, at.head), group_row + warp_row);
      async_proxy_fence();  // the copy engine reads what was stored
      named_barrier_sync(OutputStored + warpgroup, 128);
      if (stores) {
        store_tile_tma(o_map, at.batch, at.head, group_row, rows);
        tma_store_commit();
      } else if (C::OutputPlaces > 0 && releases) {
        smem.empty[output_slot].arrive();
      }
      if (!C::Specialized) wait_for_output_to_leave();
    };
    if (ScoresAhead && more && unseen == 0) {
      wait_for_q();
      wait_for_turn();
      start_output(v);
      k = next_place();
      start_scores(k, WritesOutput);
      pass_turn();
      wgmma_wait<1>();  // the output
      release(v);
      write_output();
      load_ahead(1, false);
    } else {
      wait_for_turn();
      start_output(v);
      pass_turn();
      track.mark(WritesOutput);
      wgmma_wait<0>();
      release(v);
      write_output();
      if (!more) break;
      load_ahead(1, true);
      wait_for_q();
      pass_over(unseen, ScoresAhead ? unseen - 1 : unseen);
      wait_for_turn();
      k = next_place();
      start_scores(k);
      pass_turn();
    }
    track.mark(WaitsForScores);
    wgmma_wait<0>();
  }
  if (stores) tma_store_wait_read<0>();  // shared memory ends with the block
  track.mark(Done);
}

}  // namespace flash::MACHINE::fa3_pipeline
