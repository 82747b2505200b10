// Chapter 08: what a block's shared memory holds, and who fills it. The ring holds the tiles of K and V in the order in
// which they are used: K, K, V, K, V, ..., K, V, V, across the tiles of Q. At d = 256, where there is no room for O,
// the consumers' outputs leave through places of the ring too: K, K, V, ..., K, V, V, O, O. In Q's place, which would
// do, they would keep the next Q from coming.
#pragma once

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/ring.hpp"
#include "common/kernel/tile_order.hpp"
#include "common/kernel/timeline.hpp"
#include "common/kernel/tma_tile.hpp"
#include "common/kernel/warpgroup_products.hpp"

namespace flash::MACHINE::fa3_pipeline {

// -- Tiles ------------------------------------------------------------------------------------------------------------

/// What a kernel is compiled for: `Consumers` warpgroups of 64 rows, a ring of `Slots` tiles of K or V, and `QSlots`
/// tiles of Q at a time. Four consumers keep the tensor cores busy without overlap within each of them.
template <int HeadDim_, int Consumers_, int BlockKV_, int Slots_, int QSlots_, bool Specialized_ = true,
          bool PingPong_ = true, bool Overlap_ = (Consumers_ < 4)>
struct Config {
  static constexpr int HeadDim = HeadDim_, Consumers = Consumers_, BlockKV = BlockKV_, Slots = Slots_, QSlots = QSlots_;
  static constexpr bool Specialized = Specialized_, PingPong = PingPong_, Overlap = Overlap_;

  static constexpr int BlockQ = Consumers * WarpgroupRows;
  static constexpr int OutputPlaces = HeadDim == 256 ? Consumers : 0;  // of the ring; 0: O has a place of its own
  static_assert(Slots >= OutputPlaces + 2, "the next K is waited for before the output has left");
  static constexpr int Threads = 128 * (Consumers + (Specialized ? 1 : 0));
  // Of a thread, a multiple of 8: all together at most the 65536 of an SM.
  static constexpr int ProducerRegisters = Consumers == 3 ? 32 : 24;
  static constexpr int ConsumerRegisters = Consumers == 2 ? 240 : Consumers == 3 ? 160 : 112;
};

template <typename Element, typename C>
struct Storage {
  using Rows = SharedTile<Element, WarpgroupRows, C::HeadDim, Swizzle128>;
  SharedTile<Element, C::BlockKV, C::HeadDim, Swizzle128> KV[C::Slots];
  Rows Q[C::QSlots + (C::OutputPlaces == 0 ? 1 : 0)][C::Consumers];  // the last is O's
  Mbarrier q_full[C::QSlots], q_empty[C::QSlots];
  Mbarrier full[C::Slots], empty[C::Slots];
  SHARED_MEMBERS(KV, Q, q_full, q_empty, full, empty);

  /// Where a warpgroup's output leaves.
  __device__ __forceinline__ Rows& output(int slot, int warpgroup) {
    if constexpr (C::OutputPlaces == 0) {
      return Q[C::QSlots][warpgroup];
    } else {
      static_assert(C::BlockKV == WarpgroupRows, "a place has room for one warpgroup's output");
      return KV[slot];
    }
  }
};

/// What a warpgroup does, for the timeline; traffic.hpp has the names.
enum Doing {
  WaitsForSlot,
  Asks,
  WaitsForTiles,
  WaitsForTurn,
  Issues,
  WaitsForScores,
  Softmax,
  WaitsForOutput,
  Rounds,
  WritesOutput,
  Done
};

/// Tiles of keys that some row of a tile of Q sees; 1 if none does, whose scores are then all masked.
template <typename C>
__device__ __forceinline__ int kv_blocks_of(const AttentionShape& shape, const Place& at) {
  return max(ceil_div(shape.visible_keys(at.q_block * C::BlockQ + C::BlockQ - 1), C::BlockKV), 1);
}

// -- The producer -----------------------------------------------------------------------------------------------------

/// Asks for the tiles of all of a block's work, in the order in which the consumers use them. One thread's.
template <typename Element, typename C, bool Traced>
class Loader {
 public:
  __device__ __forceinline__ Loader(Storage<Element, C>& smem, const TensorMap& q, const TensorMap& k,
                                    const TensorMap& v, const AttentionShape& shape, const TileOrder& order,
                                    Track<Traced>& track)
      : smem_(smem), q_(q), k_(k), v_(v), shape_(shape), order_(order), track_(track) {}

  /// What the consumers' next products need: Q and its first K; or K and V of the K before it; or the last V and the
  /// places for the output. False when there is nothing left.
  __device__ __forceinline__ bool step() {
    if (kv_block_ < 0) {
      Place next;
      if (!order_.find(wave_, int(blockIdx.x), int(gridDim.x), next)) return false;
      ++wave_;
      at_ = next;
      kv_head_ = at_.head / shape_.heads_per_kv_head;  // once a tile: a division takes as long as a load may wait
      kv_block_ = kv_blocks_of<C>(shape_, at_) - 1;
      load_q();
      load(k_, kv_block_);
    } else {
      if (kv_block_ > 0) load(k_, kv_block_ - 1);
      load(v_, kv_block_);
      if (--kv_block_ < 0) hand_over_output_places();
    }
    return true;
  }

  /// Whether the next step begins a tile of Q.
  __device__ __forceinline__ bool begins_tile() const { return kv_block_ < 0; }

 private:
  __device__ __forceinline__ void load_q() {
    const int s = q_ring_.stage;
    track_.mark(WaitsForSlot);
    smem_.q_empty[s].wait(q_ring_.parity ^ 1);
    track_.mark(Asks);
    smem_.q_full[s].arrive_expect_tx(int(sizeof(smem_.Q[s])));
#pragma unroll
    for (int w = 0; w < C::Consumers; ++w) {
      load_tile_tma(smem_.Q[s][w], q_, at_.batch, at_.head, at_.q_block * C::BlockQ + w * WarpgroupRows,
                    smem_.q_full[s]);
    }
    q_ring_.next();
  }
  __device__ __forceinline__ void load(const TensorMap& map, int kv_block) {
    const int s = ring_.stage;
    track_.mark(WaitsForSlot);
    smem_.empty[s].wait(ring_.parity ^ 1);
    track_.mark(Asks);
    smem_.full[s].arrive_expect_tx(int(sizeof(smem_.KV[s])));
    load_tile_tma(smem_.KV[s], map, at_.batch, kv_head_, kv_block * C::BlockKV, smem_.full[s]);
    ring_.next();
  }

  __device__ __forceinline__ void hand_over_output_places() {
    for (int i = 0; i < C::OutputPlaces; ++i) {
      const int s = ring_.stage;
      track_.mark(WaitsForSlot);
      smem_.empty[s].wait(ring_.parity ^ 1);
      smem_.full[s].arrive();
      ring_.next();
    }
  }

  Storage<Element, C>& smem_;
  const TensorMap &q_, &k_, &v_;
  const AttentionShape& shape_;
  const TileOrder& order_;
  Track<Traced>& track_;
  RingPlace<C::Slots> ring_;
  RingPlace<C::QSlots> q_ring_;
  int wave_ = 0, kv_block_ = -1;  // of the K that was asked for last; below 0 between tiles of Q
  Place at_ = {};
  int kv_head_ = 0;
};

}  // namespace flash::MACHINE::fa3_pipeline
