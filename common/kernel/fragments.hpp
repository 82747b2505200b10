// The operands of mma.m16n8k16 as a warp's lanes hold them, and the verbs on them: load from a shared tile, multiply.
// Element by element: lane l of an accumulator holds rows l/4 and l/4 + 8, columns 2(l mod 4) and the next (PTX manual,
// "Matrix fragments for mma.m16n8k16"). Shared by the chapters whose products run on mma.sync.
#pragma once

#include "common/kernel/kernel.hpp"

namespace flash::MACHINE {

/// [16, 16] elements: the left operand.
struct FragmentA {
  std::uint32_t value[4];
};

/// Two neighbouring right operands, [16, 8] elements each.
struct FragmentB2 {
  std::uint32_t value[2][2];
};

/// [16, 8] sums in fp32. value[2h + i] is row row(h), column column(i).
struct Accumulator {
  AccumulatorRegister value[4];

  __device__ __forceinline__ static int row(int half) { return int(threadIdx.x % 32 / 4) + 8 * half; }
  __device__ __forceinline__ static int column(int i) { return int(threadIdx.x % 4 * 2) + i; }

  /// row(half) *= factor
  __device__ __forceinline__ void scale_row(int half, float factor) {
    value[2 * half] *= factor;
    value[2 * half + 1] *= factor;
  }
};

/// The [16, 16] piece of `tile` at (warp_row + row, col), as the left operand. `warp_row`, a multiple of 8, is what
/// differs from warp to warp; row and col are what a loop unrolls.
template <typename Tile>
__device__ __forceinline__ FragmentA load_a(const Tile& tile, int row, int col, int warp_row = 0,
                                            Site site = Site::here()) {
  const CalledFrom from(site);
  const int lane = int(threadIdx.x % 32);
  FragmentA a;
  ldmatrix_x4(a.value, tile.lane_address(row, col, warp_row + lane % 16, lane / 16 * 8));
  return a;
}

/// [16·RowTiles, 16·Depth] of `tile` from (warp_row, 0) on.
template <int RowTiles, int Depth, typename Tile>
__device__ __forceinline__ void load_a_tiles(FragmentA (&a)[RowTiles][Depth], const Tile& tile, int warp_row,
                                             Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int d = 0; d < Depth; ++d) a[r][d] = load_a(tile, 16 * r, 16 * d, warp_row);
  }
}

/// The [16, 16] piece of `tile` as right operands: of a product that sums over the tile's rows (P·V). A swizzled tile
/// takes no `warp_col`.
template <typename Tile>
__device__ __forceinline__ FragmentB2 load_b(const Tile& tile, int row, int col, int warp_row = 0, int warp_col = 0,
                                             Site site = Site::here()) {
  const CalledFrom from(site);
  const int lane = int(threadIdx.x % 32);
  std::uint32_t matrices[4];
  ldmatrix_x4_trans(matrices, tile.lane_address(row, col, warp_row + lane % 16, warp_col + lane / 16 * 8));
  return {{{matrices[0], matrices[1]}, {matrices[2], matrices[3]}}};
}

/// The same piece transposed: for a product that sums over the tile's columns (Q·Kᵀ with K's keys as rows).
template <typename Tile>
__device__ __forceinline__ FragmentB2 load_b_transposed(const Tile& tile, int row, int col, int warp_row = 0,
                                                        Site site = Site::here()) {
  const CalledFrom from(site);
  const int lane = int(threadIdx.x % 32);
  std::uint32_t matrices[4];
  ldmatrix_x4(matrices, tile.lane_address(row, col, warp_row + lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8));
  return {{{matrices[0], matrices[1]}, {matrices[2], matrices[3]}}};
}

/// d[0] += a·b[0], d[1] += a·b[1]; d is the first of two neighbouring accumulators.
template <typename Element>
__device__ __forceinline__ void multiply_add(Accumulator* d, const FragmentA& a, const FragmentB2& b,
                                             Site site = Site::here()) {
  const CalledFrom from(site);
  mma_m16n8k16<Element>(d[0].value, a.value, b.value[0]);
  mma_m16n8k16<Element>(d[1].value, a.value, b.value[1]);
}

/// Two neighbouring accumulators [16, 16] rounded to elements: the registers of a left operand, in place.
template <typename Element>
__device__ __forceinline__ FragmentA round_to_a(const Accumulator* s) {
  return {{pack<Element>(s[0].value[0], s[0].value[1]), pack<Element>(s[0].value[2], s[0].value[3]),
           pack<Element>(s[1].value[0], s[1].value[1]), pack<Element>(s[1].value[2], s[1].value[3])}};
}

/// The largest value among the four lanes that share a row, in each of them.
__device__ __forceinline__ float quad_max(float value, Site site = Site::here()) {
  const CalledFrom from(site);
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

/// The sum over the four lanes that share a row, the same bits in each of them.
__device__ __forceinline__ float quad_sum(float value, Site site = Site::here()) {
  const CalledFrom from(site);
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/// S += Q·K^T: [16·RowTiles, 8·KeyTiles] sums over all columns of rows `warp_row` .. of Q and rows `warp_key` .. of K.
template <typename Element, int RowTiles, int KeyTiles, typename QTile, typename KTile>
__device__ __forceinline__ void multiply_transposed(Accumulator (&S)[RowTiles][KeyTiles], const QTile& Q, int warp_row,
                                                    const KTile& K, int warp_key, Site site = Site::here()) {
  const CalledFrom from(site);
  static_assert(KeyTiles % 2 == 0, "keys come in sixteens");
#pragma unroll
  for (int col = 0; col < QTile::cols(); col += 16) {
    FragmentA q[RowTiles];
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) q[r] = load_a(Q, 16 * r, col, warp_row);
#pragma unroll
    for (int c = 0; c < KeyTiles; c += 2) {
      const FragmentB2 k = load_b_transposed(K, 8 * c, col, warp_key);
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) multiply_add<Element>(&S[r][c], q[r], k);
    }
  }
}

/// The same with Q in registers, 16 columns in each fragment.
template <typename Element, int RowTiles, int KeyTiles, int Depth, typename KTile>
__device__ __forceinline__ void multiply_transposed(Accumulator (&S)[RowTiles][KeyTiles],
                                                    const FragmentA (&Q)[RowTiles][Depth], const KTile& K, int warp_key,
                                                    Site site = Site::here()) {
  const CalledFrom from(site);
  static_assert(KeyTiles % 2 == 0, "keys come in sixteens");
#pragma unroll
  for (int d = 0; d < Depth; ++d) {
#pragma unroll
    for (int c = 0; c < KeyTiles; c += 2) {
      const FragmentB2 k = load_b_transposed(K, 8 * c, 16 * d, warp_key);
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) multiply_add<Element>(&S[r][c], Q[r][d], k);
    }
  }
}

/// O += P·V: [16·RowTiles, 8·ColTiles] sums over 16·KeyTiles keys, rows warp_key + key .. of V; V's columns `col` ...
/// As above, warp_key and warp_col (in padded and row-major tiles only) are what differs from warp to warp, and key and
/// col are what a loop unrolls.
template <typename Element, int RowTiles, int KeyTiles, int ColTiles, typename VTile>
__device__ __forceinline__ void multiply(Accumulator (&O)[RowTiles][ColTiles], const FragmentA (&P)[RowTiles][KeyTiles],
                                         const VTile& V, int key, int col, int warp_key = 0, int warp_col = 0,
                                         Site site = Site::here()) {
  const CalledFrom from(site);
  static_assert(ColTiles % 2 == 0, "columns come in sixteens");
#pragma unroll
  for (int k = 0; k < KeyTiles; ++k) {
#pragma unroll
    for (int c = 0; c < ColTiles; c += 2) {
      const FragmentB2 v = load_b(V, key + 16 * k, col + 8 * c, warp_key, warp_col);
#pragma unroll
      for (int r = 0; r < RowTiles; ++r) multiply_add<Element>(&O[r][c], P[r][k], v);
    }
  }
}

/// Accumulators from an fp32 shared tile, from (row, col) on.
template <int RowTiles, int ColTiles, int Rows, int Cols, typename Layout>
__device__ __forceinline__ void load_accumulators(Accumulator (&O)[RowTiles][ColTiles],
                                                  const SharedTile<float, Rows, Cols, Layout>& tile, int row, int col,
                                                  Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < ColTiles; ++c) {
        const auto pair =
            load_vector<2>(tile, row + 16 * r + Accumulator::row(h), col + 8 * c + Accumulator::column(0));
        O[r][c].value[2 * h] = pair[0];
        O[r][c].value[2 * h + 1] = pair[1];
      }
    }
  }
}

/// Accumulators into a shared tile from (row, col) on, rounded where its elements have 16 bits.
template <int RowTiles, int ColTiles, typename Element, int Rows, int Cols, typename Layout>
__device__ __forceinline__ void store_accumulators(SharedTile<Element, Rows, Cols, Layout>& tile, int row, int col,
                                                   const Accumulator (&O)[RowTiles][ColTiles],
                                                   Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < ColTiles; ++c) {
        const AccumulatorRegister* pair = &O[r][c].value[2 * h];
        tile.store_vector(row + 16 * r + Accumulator::row(h), col + 8 * c + Accumulator::column(0),
                          Vector<Element, 2>{from_float<Element>(pair[0]), from_float<Element>(pair[1])});
      }
    }
  }
}

}  // namespace flash::MACHINE
