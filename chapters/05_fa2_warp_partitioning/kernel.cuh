// Chapter 05, FlashAttention-2's work partitioning (arXiv 2307.08691, algorithm 1 and section 3.3): a block owns BlockQ
// query rows, and within the block each warp owns some of them outright. A warp then needs nothing from another warp:
// the scores that its first product leaves in registers are, rounded to 16 bits, the left operand of its second
// product.
//
// What keeps the tensor cores fed: K and V tiles arrive by cp.async one iteration ahead, in shared memory swizzled so
// that ldmatrix finds its eight rows in different banks; each fragment of K and V serves two tiles of 16 rows; one
// barrier an iteration; P is exponentiated 16 keys at a time, just before the products that need it.
//
// Variants: `split-q` as above; `no-swizzle` is the same with plain row-major tiles (eight-way bank conflicts);
// `split-k` is FlashAttention-1's partitioning (split_k.cuh).
#pragma once

#include <cfloat>

#include "common/attention_shape.hpp"
#include "common/fragments.hpp"
#include "common/kernel.hpp"

namespace flash::MACHINE::fa2_warp_partitioning {

constexpr float Log2E = 1.4426950408889634f;
constexpr float Ln2 = 0.6931471805599453f;

/// The maximum that is subtracted may lag behind the true one by a factor of 2^8: exponentials are then at most 256,
/// which fp16 holds as precisely as 1, and the final division takes the factor out. Most rescales of O never happen.
constexpr float RescaleThreshold = 8.0f;

/// Stands for the maximum of a row that has seen no key. Finite, so that −inf scores give exp2(−inf + FLT_MAX) = 0, not
/// NaN.
constexpr float NothingSeen = -FLT_MAX;

template <typename Element_, int HeadDim_, int BlockQ_, int BlockKV_, int Warps_, int BlocksPerSm_, typename Layout_>
struct Config {
  using Element = Element_;
  using Layout = Layout_;
  static constexpr int HeadDim = HeadDim_, BlockQ = BlockQ_, BlockKV = BlockKV_;
  static constexpr int Warps = Warps_, Threads = 32 * Warps, BlocksPerSm = BlocksPerSm_;
  static constexpr int WarpRows = BlockQ / Warps;  // query rows of one warp
  static constexpr int RowTiles = WarpRows / 16;   // of one mma each
  static constexpr int Stages = 2;                 // K/V tiles in shared memory: one in use, one arriving
  // Registers of a thread: O, S, and fragments of Q where there is room; where not, these are read again for each tile.
  static constexpr bool QInRegisters = RowTiles * (HeadDim / 2 + BlockKV / 2 + HeadDim / 4) <= 208;

  static_assert(BlockQ == Warps * RowTiles * 16, "a warp owns whole 16-row tiles of the first operand");
  static_assert(BlockKV % 16 == 0 && HeadDim % 16 == 0, "one mma sums over 16 elements");
  static_assert(HeadDim <= 256, "a warp copies whole rows of at most 32 pieces of 16 bytes");
  static_assert(BlockKV * HeadDim % (Threads / 2 * 8) == 0, "half of the threads copy a whole tile of K, the others V");
};

template <typename C>
struct Storage {
  SharedTile<typename C::Element, C::BlockQ, C::HeadDim, typename C::Layout> Q;  // O on the way out
  SharedTile<typename C::Element, C::BlockKV, C::HeadDim, typename C::Layout> K[C::Stages], V[C::Stages];
};

/// Which query rows a block works on. Blocks start in the order of their index: the longest causal rows first, over
/// as many heads at a time as have room for their K and V in L2.
struct Place {
  int batch, head, q_block;
  __device__ __forceinline__ Place(int block, const AttentionShape& shape, int q_blocks, int heads_at_once) {
    const int round = block / (heads_at_once * q_blocks), in_round = block % (heads_at_once * q_blocks);
    const int heads = min(heads_at_once, shape.batch * shape.heads - round * heads_at_once);  // of this round
    q_block = q_blocks - 1 - in_round / heads;
    const int batch_head = round * heads_at_once + in_round % heads;
    batch = batch_head / shape.heads;
    head = batch_head % shape.heads;
  }
};

/// Has `Warps` warps, of which this is number `warp`, ask for rows `first_row` ... of `matrix`. Rows past its end
/// become zero, so that whatever lies behind a tensor in memory never meets a P of 0 (0 · NaN = NaN). `Inside`: the
/// caller knows that there are none.
template <int Warps, bool Inside, typename Tile, typename Matrix>
__device__ __forceinline__ void copy_async(int warp, Tile& tile, const Matrix& matrix, int first_row) {
  constexpr int pieces = Tile::cols() / 8;  // of 16 bytes in a row
  const int thread = warp * 32 + int(threadIdx.x % 32), row = thread / pieces, col = thread % pieces * 8;
#pragma unroll
  for (int i = 0; i < Tile::rows(); i += Warps * 32 / pieces) {
    if (Inside || first_row + row + i < matrix.rows()) {
      cp_async_16(tile.lane_address(i, 0, row, col), matrix.address(first_row + row + i, col));
    } else {
      cp_async_zero_16(tile.lane_address(i, 0, row, col));
    }
  }
}

/// What one warp carries from tile to tile, all in registers.
template <typename C>
struct WarpState {
  FragmentA Q[C::QInRegisters ? C::RowTiles : 1][C::QInRegisters ? C::HeadDim / 16 : 1];
  Accumulator O[C::RowTiles][C::HeadDim / 8];  // [WarpRows, HeadDim], not yet divided by l
  float m[C::RowTiles][2];                     // [WarpRows] subtracted from the scores, in units of log2
  float l[C::RowTiles][2];                     // [WarpRows] this lane's columns of the row sum

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < C::RowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < C::HeadDim / 8; ++n) O[r][n].clear();
#pragma unroll
      for (int h = 0; h < 2; ++h) m[r][h] = NothingSeen, l[r][h] = 0.0f;
    }
  }
};

/// S = Q Kᵀ for the warp's rows and the keys of one tile.
template <typename C, typename TileQ, typename TileK>
__device__ __forceinline__ void multiply_scores(Accumulator (&S)[C::RowTiles][C::BlockKV / 8], const WarpState<C>& warp,
                                                const TileQ& Q, const TileK& K, int warp_row) {
#pragma unroll
  for (int r = 0; r < C::RowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < C::BlockKV / 8; ++n) S[r][n].clear();
  }
#pragma unroll
  for (int k = 0; k < C::HeadDim / 16; ++k) {
    FragmentA q[C::RowTiles];
#pragma unroll
    for (int r = 0; r < C::RowTiles; ++r) {
      if constexpr (C::QInRegisters) {
        q[r] = warp.Q[r][k];
      } else {
        q[r] = load_a(Q, r * 16, k * 16, warp_row);
      }
    }
#pragma unroll
    for (int n = 0; n < C::BlockKV / 16; ++n) {
      const FragmentB2 keys = load_b_transposed(K, n * 16, k * 16);
#pragma unroll
      for (int r = 0; r < C::RowTiles; ++r) multiply_add<typename C::Element>(&S[r][2 * n], q[r], keys);
    }
  }
}

/// Scores of keys that a row does not see become −inf. Both limits count from the first of these keys: the first row
/// sees `first_row_sees` of them, each row one more than the row before it, and none sees more than `keys`.
template <int RowTiles, int KeyTiles>
__device__ __forceinline__ void mask_scores(Accumulator (&S)[RowTiles][KeyTiles], int first_row_sees, int keys) {
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int visible = min(first_row_sees + r * 16 + Accumulator::row(h), keys) - Accumulator::column(0);
#pragma unroll
      for (int n = 0; n < KeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (n * 8 + i >= visible) S[r][n].value[2 * h + i] = -infinity();
        }
      }
    }
  }
}

/// Raises m where a score exceeds it by more than the threshold, for all rows of the warp at once, and scales l and O.
template <typename C>
__device__ __forceinline__ void update_maximum(WarpState<C>& warp, const Accumulator (&S)[C::RowTiles][C::BlockKV / 8],
                                               float scale_log2) {
  float largest[C::RowTiles][2];  // of this lane's columns
  bool grown = false;
#pragma unroll
  for (int r = 0; r < C::RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[r][h] = fmaxf(S[r][0].value[2 * h], S[r][0].value[2 * h + 1]);
#pragma unroll
      for (int n = 1; n < C::BlockKV / 8; ++n) {
        largest[r][h] = fmaxf(largest[r][h], fmaxf(S[r][n].value[2 * h], S[r][n].value[2 * h + 1]));
      }
      grown |= fmaf(largest[r][h], scale_log2, -warp.m[r][h]) > RescaleThreshold;
    }
  }
  if (!__any_sync(0xffffffffu, grown)) return;
#pragma unroll
  for (int r = 0; r < C::RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float m = fmaxf(warp.m[r][h], quad_max(largest[r][h]) * scale_log2);
      const float factor = exp2_approx(warp.m[r][h] - m);
      warp.m[r][h] = m;
      warp.l[r][h] *= factor;
#pragma unroll
      for (int n = 0; n < C::HeadDim / 8; ++n) warp.O[r][n].scale_row(h, factor);
    }
  }
}

/// P = exp2(S·c − m) for 16 keys, rounded to elements; its row sums are added to l.
template <typename C>
__device__ __forceinline__ FragmentA exponentiate(Accumulator* S, const float (&m)[2], float (&l)[2],
                                                  float scale_log2) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      S[n].value[i] = exp2_approx(fmaf(S[n].value[i], scale_log2, -m[i / 2]));
      l[i / 2] += S[n].value[i];
    }
  }
  return round_to_a<typename C::Element>(S);
}

/// O += P V
template <typename C, typename TileV>
__device__ __forceinline__ void multiply_values(WarpState<C>& warp, Accumulator (&S)[C::RowTiles][C::BlockKV / 8],
                                                const TileV& V, float scale_log2, int visible) {
#pragma unroll
  for (int k = 0; k < C::BlockKV / 16; ++k) {
    if (k * 16 >= visible) break;
    FragmentA P[C::RowTiles];
#pragma unroll
    for (int r = 0; r < C::RowTiles; ++r) P[r] = exponentiate<C>(&S[r][2 * k], warp.m[r], warp.l[r], scale_log2);
#pragma unroll
    for (int n = 0; n < C::HeadDim / 16; ++n) {
      const FragmentB2 values = load_b(V, k * 16, n * 16);
#pragma unroll
      for (int r = 0; r < C::RowTiles; ++r) multiply_add<typename C::Element>(&warp.O[r][2 * n], P[r], values);
    }
  }
}

/// Divides by l and writes the warp's rows of O and LSE. Rows that saw nothing have l = 0: O = 0, LSE = −inf.
template <typename C, typename Tile>
__device__ __forceinline__ void write_output(WarpState<C>& warp, Tile& staging, int warp_row,
                                             const GlobalMatrix<typename C::Element>& o, const GlobalVector<float>& lse,
                                             int first_row) {
  using Element = typename C::Element;
  __syncwarp();  // the warp's rows of Q, whose place O takes, have been read
#pragma unroll
  for (int r = 0; r < C::RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp_row + r * 16 + Accumulator::row(h);
      const float l = quad_sum(warp.l[r][h]), inverse = l == 0.0f ? 0.0f : 1.0f / l;
      if (Accumulator::column(0) == 0 && first_row + row < o.rows()) {
        lse.store(first_row + row, l == 0.0f ? -infinity() : warp.m[r][h] * Ln2 + log_approx(l));
      }
#pragma unroll
      for (int n = 0; n < C::HeadDim / 8; ++n) {
        const float* sums = &warp.O[r][n].value[2 * h];
        staging.store_vector(
            row, n * 8 + Accumulator::column(0),
            Vector<Element, 2>{from_float<Element>(sums[0] * inverse), from_float<Element>(sums[1] * inverse)});
      }
    }
  }
  __syncwarp();
  constexpr int pieces = C::HeadDim / 8;  // of 16 bytes in a row
  const int lane = int(threadIdx.x % 32), row = warp_row + lane / pieces, col = lane % pieces * 8;
#pragma unroll
  for (int i = 0; i < C::WarpRows; i += 32 / pieces) {
    if (first_row + row + i < o.rows()) o.store_vector(first_row + row + i, col, load_vector<8>(staging, row + i, col));
  }
}

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename C>
__global__ void __launch_bounds__(C::Threads, C::BlocksPerSm)
    split_q_kernel(GlobalTensor<const typename C::Element> q, GlobalTensor<const typename C::Element> k,
                   GlobalTensor<const typename C::Element> v, GlobalTensor<typename C::Element> o,
                   GlobalTensor<float> lse, AttentionShape shape, int q_blocks, int heads_at_once) {
  Storage<C>& tiles = shared_storage<Storage<C>>();
  const Place at(int(blockIdx.x), shape, q_blocks, heads_at_once);
  const int kv_head = at.head / shape.heads_per_kv_head;
  const int first_row = at.q_block * C::BlockQ;
  const int warp_index = int(threadIdx.x / 32), warp_row = warp_index * C::WarpRows;  // within the block
  const float scale_log2 = shape.scale * Log2E;

  // Keys are visited from the last to the first, so that the tiles which need a mask come first: those with a key
  // that the block's first row does not see.
  const int kv_blocks = ceil_div(shape.visible_keys(first_row + C::BlockQ - 1), C::BlockKV);
  const int full_kv_blocks = shape.visible_keys(first_row) / C::BlockKV;
  const int warp_visible = shape.visible_keys(first_row + warp_row + C::WarpRows - 1);  // of the warp's last row

  const int first_row_sees = shape.causal ? first_row + warp_row + 1 + shape.seq_kv - shape.seq_q : shape.seq_kv;

  // Half of the warps copy K, the others V: each thread then keeps one source pointer and one stride, not two.
  const bool copies_k = warp_index < C::Warps / 2;
  const int copy_warp = warp_index % (C::Warps / 2);
  const auto KV = copies_k ? k.head(at.batch, kv_head) : v.head(at.batch, kv_head);  // [seq_kv, HeadDim]
  auto* const copy_tile = copies_k ? tiles.K : tiles.V;

  WarpState<C> warp;
  warp.clear();
  copy_async<C::Warps, false>(warp_index, tiles.Q, q.head(at.batch, at.head), first_row);
  cp_async_commit();
  if (kv_blocks > 0) copy_async<C::Warps / 2, false>(copy_warp, copy_tile[0], KV, (kv_blocks - 1) * C::BlockKV);
  cp_async_commit();
  if constexpr (C::QInRegisters) {
    cp_async_wait<1>();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < C::RowTiles; ++r) {
#pragma unroll
      for (int d = 0; d < C::HeadDim / 16; ++d) warp.Q[r][d] = load_a(tiles.Q, r * 16, d * 16, warp_row);
    }
  }

  int stage = 0;
  Accumulator S[C::RowTiles][C::BlockKV / 8];  // [WarpRows, BlockKV]: scores, then P

  const auto receive_and_request = [&](int kv_block) {
    cp_async_wait<0>();
    __syncthreads();  // this tile has arrived for all; all are done with the tile before, whose stage is free
    if (kv_block > 0) {
      copy_async<C::Warps / 2, true>(copy_warp, copy_tile[stage ^ 1], KV, (kv_block - 1) * C::BlockKV);
      cp_async_commit();
    }
  };

  int kv_block = kv_blocks - 1;
  for (; kv_block >= full_kv_blocks; --kv_block) {  // the diagonal and the tail
    receive_and_request(kv_block);
    const int first_key = kv_block * C::BlockKV;
    if (first_key < warp_visible) {
      multiply_scores<C>(S, warp, tiles.Q, tiles.K[stage], warp_row);
      mask_scores(S, first_row_sees - first_key, shape.seq_kv - first_key);
      update_maximum<C>(warp, S, scale_log2);
      multiply_values<C>(warp, S, tiles.V[stage], scale_log2, warp_visible - first_key);
    }
    stage ^= 1;
  }
  for (; kv_block >= 0; --kv_block) {  // tiles that every row sees
    receive_and_request(kv_block);
    multiply_scores<C>(S, warp, tiles.Q, tiles.K[stage], warp_row);
    update_maximum<C>(warp, S, scale_log2);
    multiply_values<C>(warp, S, tiles.V[stage], scale_log2, C::BlockKV);
    stage ^= 1;
  }

  cp_async_wait<0>();  // Q, where the block sees no key
  __syncthreads();
  // The place again, computed from a block index that the compiler cannot know to be the same: kept through the loops,
  // it would take registers that the products need.
  const Place end(__shfl_sync(0xffffffffu, int(blockIdx.x), 0), shape, q_blocks, heads_at_once);
  write_output<C>(warp, tiles.Q, __shfl_sync(0xffffffffu, warp_row, 0), o.head(end.batch, end.head),
                  lse.vector(end.batch, end.head), end.q_block * C::BlockQ);
}

}  // namespace flash::MACHINE::fa2_warp_partitioning

#include "chapters/05_fa2_warp_partitioning/split_k.cuh"

namespace flash::MACHINE::fa2_warp_partitioning {

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename C, template <typename> typename StorageOf, typename Kernel>
void launch_kernel(const char* name, Kernel* kernel, const AttentionCall& call, Machine& machine) {
  using Element = typename C::Element;
  const AttentionShape shape(call.problem);
  const std::int64_t heads = call.problem.batch * call.problem.heads;
  const int q_blocks = ceil_div(shape.seq_q, C::BlockQ);
  // Room in L2 for these heads' K and V; at least 4 heads, so that short blocks are left to fill the end.
  constexpr std::int64_t l2_bytes = 20 << 20;
  const std::int64_t heads_at_once =
      std::min(heads, std::max<std::int64_t>(l2_bytes / (4 * call.problem.seq_kv * C::HeadDim), 4));
  machine.launch({name, {heads * q_blocks}, C::Threads, sizeof(StorageOf<C>)}, kernel,
                 GlobalTensor<const Element>(call.q), GlobalTensor<const Element>(call.k),
                 GlobalTensor<const Element>(call.v), GlobalTensor<Element>(call.o), GlobalTensor<float>(call.lse),
                 shape, q_blocks, int(heads_at_once));
}

template <typename Element, int HeadDim, int BlockQ, int BlockKV, int Warps, int BlocksPerSm>
void launch_tile(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  using Swizzled = Config<Element, HeadDim, BlockQ, BlockKV, Warps, BlocksPerSm, Swizzle128>;
  using Plain = Config<Element, HeadDim, BlockQ, BlockKV, Warps, BlocksPerSm, RowMajor>;
  if (options.variant == "split-q") {
    launch_kernel<Swizzled, Storage>("split_q", split_q_kernel<Swizzled>, call, machine);
  } else if constexpr (BlockQ == 128 && BlockKV == 64) {  // the tile for comparisons
    if (options.variant == "no-swizzle") {
      launch_kernel<Plain, Storage>("no_swizzle", split_q_kernel<Plain>, call, machine);
    } else if constexpr (HeadDim <= 128) {
      launch_kernel<Swizzled, SplitKStorage>("split_k", split_k_kernel<Swizzled>, call, machine);
    }
  }
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  const auto is = [&](int head_dim, int block_q, int block_kv) {
    return call.problem.head_dim == head_dim && options.block_q == block_q && options.block_kv == block_kv;
  };
  if (is(64, 128, 64)) return launch_tile<Element, 64, 128, 64, 4, 2>(call, options, machine);
  if (is(64, 128, 128)) return launch_tile<Element, 64, 128, 128, 4, 2>(call, options, machine);
  if (is(64, 256, 64)) return launch_tile<Element, 64, 256, 64, 8, 1>(call, options, machine);
  if (is(128, 128, 64)) return launch_tile<Element, 128, 128, 64, 4, 2>(call, options, machine);
  if (is(128, 256, 64)) return launch_tile<Element, 128, 256, 64, 8, 1>(call, options, machine);
  if (is(256, 128, 64)) return launch_tile<Element, 256, 128, 64, 8, 1>(call, options, machine);
  if (is(256, 128, 32)) return launch_tile<Element, 256, 128, 32, 8, 1>(call, options, machine);
}

}  // namespace flash::MACHINE::fa2_warp_partitioning
