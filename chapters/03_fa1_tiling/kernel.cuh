// Chapter 03, FlashAttention-1 (arXiv 2205.14135, algorithm 1): a tile of K and V stays in shared memory while all of Q
// streams by; a tile of S lives only in registers, so nothing of size seq_q·seq_kv reaches HBM. What a Q tile knows
// after one K/V tile (its output so far O, row maximum m and row sum l) goes to HBM and comes back for the next:
//
//     for each K/V tile:                                                 the outer loop
//       for each Q tile:                                                 the inner loop
//         S = scale·Q·K^T;  m~ = rowmax(S);  P = exp(S − m~);  l~ = rowsum(P)
//         m' = max(m, m~);  l' = l·exp(m − m') + l~·exp(m~ − m')
//         O  = (l·exp(m − m')·O + exp(m~ − m')·P·V) / l'          normalised at each step, as in the paper
//
// One block works on one (batch, head), as FlashAttention-1's kernel did, and its warps split the keys of the tile:
// each computes S for its own keys, so row maxima, row sums and the warps' shares of P·V meet in shared memory. A step
// waits for that exchange again and again, and the largest K/V tile leaves an SM no room for a second block that could
// compute meanwhile. So a block has groups of warps that share K and V and take Q tiles in turn: each waits at its own
// barriers, and the other groups' products fill the time.
//
// P·V is summed up in shared memory, in four pieces of its columns (of 128 columns at a time): a warp adds its share to
// one piece, waits, and goes on to the next, until each has been at all four. It then completes the one it came to
// last.
//
// O waits in HBM as fp32: rounded to 16 bits after every K/V tile, its error would grow with the number of tiles past
// what standard attention makes. The last K/V tile writes the result in the output's type instead. Nothing reads what
// was not written: the first K/V tile starts from m = −inf, l = 0, O = 0.
//
// With causal masking all tiles are computed, those above the diagonal too: FlashAttention-1 only masks. A masked key's
// P is 0, but 0·NaN is NaN: a NaN in V reaches its column of every row of the head, masked or not. What lies behind the
// tensors' ends reaches nothing: such rows are zeros in shared memory.
#pragma once

#include "common/kernel/attention_shape.hpp"
#include "common/kernel/fragments.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/load_tile.hpp"
#include "common/kernel/softmax.hpp"

namespace flash::MACHINE::fa1_tiling {

// -- Tiles ------------------------------------------------------------------------------------------------------------

constexpr int Warps = 4;  // that share a tile's keys
constexpr int GroupThreads = 32 * Warps;

/// Groups of warps, which share the Q tiles: as many as find registers (d = 64 and 128) and shared memory beside K and
/// V (of the smallest tile at d = 256: the 99 KB that a GeForce has).
template <int HeadDim, int BlockQ>
constexpr int Groups = HeadDim <= 128 ? 3
                       : BlockQ == 32 ? 2
                                      : 1;
template <int HeadDim, int BlockQ>
constexpr int Threads = GroupThreads* Groups<HeadDim, BlockQ>;

/// Columns of P·V that are summed up at once.
template <int HeadDim>
constexpr int SumCols = HeadDim < 128 ? HeadDim : 128;

/// What a group needs for the Q tile that it works on.
template <typename Element, int HeadDim, int BlockQ>
struct GroupStorage {
  SharedTile<Element, BlockQ, HeadDim, Padded16> Q;
  SharedTile<float, BlockQ, SumCols<HeadDim>, Padded32> PV;  // the sum over the warps that have been there
  SharedTile<float, BlockQ, Warps> row_max;                  // of each warp's keys
  SharedTile<float, BlockQ, Warps> row_sum;
  SharedVector<float, BlockQ> weight_old;  // l·exp(m − m') / l'
  SharedVector<float, BlockQ> weight_new;  // exp(m~ − m') / l'
  SHARED_MEMBERS(Q, PV, row_max, row_sum, weight_old, weight_new);
};

// The paper fills M elements of on-chip memory with four tiles: K, V of BlockKV rows, Q, O of BlockQ rows, and takes
// BlockKV = ceil(M / 4d), BlockQ = min(BlockKV, d). A block may have 227 KB, so M is 116224 16-bit elements: at d = 128
// that makes BlockKV = 227, and 256 in whole instructions (16 keys for each of 4 warps, a power of two of them). BlockQ
// is not d but 32, so that each group has room for its own, and K and V may have more than their half.
template <typename Element, int HeadDim, int BlockQ, int BlockKV>
struct Storage {
  SharedTile<Element, BlockKV, HeadDim, Padded16> K;
  SharedTile<Element, BlockKV, HeadDim, Padded16> V;
  GroupStorage<Element, HeadDim, BlockQ> group[Groups<HeadDim, BlockQ>];
  SHARED_MEMBERS(K, V, group);
};

/// sum += P·V for a warp's keys, in `Cols` columns: of V from v_col on, of the sum from col on. `first`: sum = P·V.
template <typename Element, int Cols, typename SumTile, int RowTiles, int KeyTiles, typename VTile>
__device__ __forceinline__ void add_share(SumTile& sum, int col, bool first, const FragmentA (&P)[RowTiles][KeyTiles],
                                          const VTile& V, int warp_key, int v_col) {
  Accumulator PV[RowTiles][Cols / 8] = {};
  if (!first) load_accumulators(PV, sum, 0, col);
  multiply<Element>(PV, P, V, 0, 0, warp_key, v_col);
  store_accumulators(sum, 0, col, PV);
}

/// 0, 2, 1, 3, 4, 6, 5, 7
__device__ __forceinline__ int swap_low_bits(int i) { return (i & ~3) | (i & 1) << 1 | (i & 2) >> 1; }

// -- The kernel -------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
__global__ void __launch_bounds__(Threads<HeadDim, BlockQ>, 1)
    fa1_kernel(GlobalTensor<const Element> q, GlobalTensor<const Element> k, GlobalTensor<const Element> v,
               GlobalTensor<Element> o, GlobalTensor<float> o_partial, GlobalTensor<float> m_partial,
               GlobalTensor<float> l_partial, GlobalTensor<float> lse, AttentionShape shape) {
  constexpr int KeysPerWarp = BlockKV / Warps;
  constexpr int RowTiles = BlockQ / 16, KeyTiles = KeysPerWarp / 8;
  constexpr int PieceCols = SumCols<HeadDim> / Warps;
  constexpr int RowsAtOnce = 32 * 4 / PieceCols;  // of a piece, when a warp moves 4 columns a lane
  static_assert(KeysPerWarp % 16 == 0, "P·V takes a warp's keys in sixteens");
  static_assert(BlockQ % 16 == 0 && BlockQ <= 32, "products have 16 rows; one warp accesses the statistics of a tile");
  static_assert(PieceCols % 16 == 0, "products have 16 columns");
  auto& smem = shared_storage<Storage<Element, HeadDim, BlockQ, BlockKV>>();

  const int batch = int(blockIdx.x) / shape.heads, head = int(blockIdx.x) % shape.heads;
  const auto Q = q.head(batch, head);                            // [seq_q, HeadDim]
  const auto K = k.head(batch, head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const auto V = v.head(batch, head / shape.heads_per_kv_head);  // [seq_kv, HeadDim]
  const auto O = o.head(batch, head);                            // [seq_q, HeadDim]
  const auto O_partial = o_partial.head(batch, head);            // [seq_q, HeadDim]
  const auto m_old = m_partial.vector(batch, head);              // [seq_q]
  const auto l_old = l_partial.vector(batch, head);              // [seq_q]

  const int group = int(threadIdx.x / GroupThreads), thread = int(threadIdx.x % GroupThreads);
  const int warp = thread / 32, lane = thread % 32;
  auto& own = smem.group[group];
  const auto group_barrier = [&] { named_barrier_sync(1 + group, GroupThreads); };
  const int warp_key = warp * KeysPerWarp;  // of the K/V tile
  // The row of a piece that this lane moves a part of. Two rows of 16 columns that are read together are two apart,
  // since neighbouring ones share banks.
  const int lane_row = swap_low_bits(lane * 4 / PieceCols);

  const int kv_blocks = ceil_div(shape.seq_kv, BlockKV), q_blocks = ceil_div(shape.seq_q, BlockQ);
  RowsInFlight<GroupThreads, Element, BlockQ, HeadDim> next_Q;
  next_Q.load(thread, Q, group * BlockQ);
  next_Q.store(thread, own.Q);
  for (int kv_block = 0; kv_block < kv_blocks; ++kv_block) {
    const bool first = kv_block == 0, last = kv_block == kv_blocks - 1;
    __syncthreads();  // all groups are done with the last K/V tile
    load_tile<Threads<HeadDim, BlockQ>>(smem.K, K, kv_block * BlockKV);
    load_tile<Threads<HeadDim, BlockQ>>(smem.V, V, kv_block * BlockKV);
    __syncthreads();

    for (int q_block = group; q_block < q_blocks; q_block += Groups<HeadDim, BlockQ>) {
      const int q_row = q_block * BlockQ;

      // -- S = Q·K^T for this warp's keys, and their row maxima
      Accumulator S[RowTiles][KeyTiles] = {};  // [BlockQ, KeysPerWarp]
      multiply_transposed<Element>(S, own.Q, 0, smem.K, warp_key);
      // The first row sees the fewest keys: a tile that it sees whole needs no mask.
      const bool masked = (kv_block + 1) * BlockKV > shape.visible_keys(q_row);
      if (masked) mask_scores(S, shape, q_row, kv_block * BlockKV + warp_key);
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float maximum = multiply_rounded(row_maximum(S[r], h), shape.scale_log2);
          if (lane % 4 == 0) own.row_max.store(16 * r + Accumulator::row(h), warp, maximum);
        }
      }
      group_barrier();

      // -- m~ = rowmax(S) over all warps, P = exp(S − m~), l~ = rowsum(P)
      float m_tile[RowTiles][2];
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const auto maxima = load_vector<Warps>(own.row_max, 16 * r + Accumulator::row(h), 0);
          m_tile[r][h] = NothingSeen;
#pragma unroll
          for (int w = 0; w < Warps; ++w) m_tile[r][h] = fmaxf(m_tile[r][h], maxima[w]);
        }
      }
      round_large_scores(S, m_tile, shape.scale_log2);
      FragmentA P[RowTiles][KeyTiles / 2];  // [BlockQ, KeysPerWarp]
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) {
        float l_tile[2] = {0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < KeyTiles; c += 2)
          P[r][c / 2] = exponentiate<Element>(&S[r][c], m_tile[r], l_tile, shape.scale_log2);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float sum = quad_sum(l_tile[h]);
          if (lane % 4 == 0) own.row_sum.store(16 * r + Accumulator::row(h), warp, sum);
        }
      }

      // -- P·V summed over the warps, in pieces of its columns: at each step every warp is at another one
      const auto piece = [&](int step) { return (warp + step) % Warps * PieceCols; };
      // m, l and the next Q travel meanwhile; all warps are done with this Q, so the next one takes its place below.
      const bool has_row = thread < BlockQ && q_row + thread < shape.seq_q;
      const float m_before = has_row && !first ? m_old.load(q_row + thread) : NothingSeen;
      const float l_before = has_row && !first ? l_old.load(q_row + thread) : 0.0f;
      const int next = q_block + Groups<HeadDim, BlockQ>;
      next_Q.load(thread, Q, next < q_blocks ? next * BlockQ : last ? shape.seq_q : group * BlockQ);
#pragma unroll 1
      for (int col = 0; col < HeadDim; col += SumCols<HeadDim>) {
        add_share<Element, PieceCols>(own.PV, piece(0), true, P, smem.V, warp_key, col + piece(0));
        group_barrier();

        // -- m', l' and the weights of O and P·V: one thread for each row
        if (col == 0 && has_row) {
          const int row = q_row + thread;
          const auto maxima = load_vector<Warps>(own.row_max, thread, 0);
          const auto sums = load_vector<Warps>(own.row_sum, thread, 0);
          float m_tile = NothingSeen, l_tile = 0.0f;
#pragma unroll
          for (int w = 0; w < Warps; ++w) m_tile = fmaxf(m_tile, maxima[w]), l_tile += sums[w];
          const float m_new = fmaxf(m_before, m_tile);
          const float keep = l_before * exp2_approx(m_before - m_new), add = exp2_approx(m_tile - m_new);
          const float l_new = keep + add * l_tile;
          const float inverse = inverse_sum(l_new);
          own.weight_old.store(thread, keep * inverse);
          own.weight_new.store(thread, add * inverse);
          if (last) {
            lse.vector(batch, head).store(row, log_sum_exp(m_new, l_new));
          } else {
            m_old.store(row, m_new);
            l_old.store(row, l_new);
          }
        }

        add_share<Element, PieceCols>(own.PV, piece(1), false, P, smem.V, warp_key, col + piece(1));
        if (col == 0) next_Q.store(thread, own.Q);

        // -- O = weight_old·O + weight_new·P·V for the piece that this warp completes
        const int own_col = piece(Warps - 1) + lane * 4 % PieceCols;
        Vector<float, 4> before[BlockQ / RowsAtOnce];  // travels while the sum is completed
#pragma unroll
        for (int i = 0; i < BlockQ / RowsAtOnce; ++i) {
          const int row = q_row + i * RowsAtOnce + lane_row;
          before[i] = {};
          if (!first && row < shape.seq_q) before[i] = load_vector<4>(O_partial, row, col + own_col);
        }
#pragma unroll
        for (int step = 2; step < Warps; ++step) {
          group_barrier();
          add_share<Element, PieceCols>(own.PV, piece(step), false, P, smem.V, warp_key, col + piece(step));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < BlockQ / RowsAtOnce; ++i) {
          const int row = i * RowsAtOnce + lane_row;
          if (q_row + row >= shape.seq_q) continue;
          auto sum = load_vector<4>(own.PV, row, own_col);
          const float weight_old = own.weight_old.load(row), weight_new = own.weight_new.load(row);
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[j] = weight_old * before[i][j] + weight_new * sum[j];
          if (last) {
            Vector<Element, 4> rounded;
#pragma unroll
            for (int j = 0; j < 4; ++j) rounded[j] = from_float<Element>(sum[j]);
            O.store_vector(q_row + row, col + own_col, rounded);
          } else {
            O_partial.store_vector(q_row + row, col + own_col, sum);
          }
        }
        if (col + SumCols<HeadDim> < HeadDim) group_barrier();  // the next columns take the place of these
      }
    }
  }
}

// -- Launch -----------------------------------------------------------------------------------------------------------

template <typename Element, int HeadDim, int BlockQ, int BlockKV>
void launch_tile(const AttentionCall& call, Machine& machine) {
  using BlockStorage = Storage<Element, HeadDim, BlockQ, BlockKV>;
  static_assert(sizeof(BlockStorage) <= kMaxSharedBytes, "the storage of one block fits the shared memory of an SM");
  machine.launch({"fa1", {call.problem.batch * call.problem.heads}, Threads<HeadDim, BlockQ>, sizeof(BlockStorage)},
                 fa1_kernel<Element, HeadDim, BlockQ, BlockKV>, GlobalTensor<const Element>(call.q),
                 GlobalTensor<const Element>(call.k), GlobalTensor<const Element>(call.v),
                 GlobalTensor<Element>(call.o), GlobalTensor<float>(call.workspace.at(0)),
                 GlobalTensor<float>(call.workspace.at(1)), GlobalTensor<float>(call.workspace.at(2)),
                 GlobalTensor<float>(call.lse), AttentionShape(call.problem));
}

template <typename Element, int HeadDim>
void launch_head_dim(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  if (options.block_q == 16 && options.block_kv == 64) return launch_tile<Element, HeadDim, 16, 64>(call, machine);
  if (options.block_q == 16) return launch_tile<Element, HeadDim, 16, 128>(call, machine);
  if (options.block_kv == 64) return launch_tile<Element, HeadDim, 32, 64>(call, machine);
  if constexpr (HeadDim <= 128) {  // at 256 K and V alone would fill more than the SM: traffic.hpp refuses
    if (options.block_kv == 256) return launch_tile<Element, HeadDim, 32, 256>(call, machine);
  }
  launch_tile<Element, HeadDim, 32, 128>(call, machine);
}

template <typename Element>
void launch(const AttentionCall& call, const LaunchOptions& options, Machine& machine) {
  if (call.problem.head_dim == 64) return launch_head_dim<Element, 64>(call, options, machine);
  if (call.problem.head_dim == 128) return launch_head_dim<Element, 128>(call, options, machine);
  launch_head_dim<Element, 256>(call, options, machine);
}

}  // namespace flash::MACHINE::fa1_tiling
