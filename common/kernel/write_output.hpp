// The end of a warp that holds whole rows of the output: divide, round, and out through shared memory in whole rows or
// by the copy engine.
#pragma once

#include "common/kernel/load_tile.hpp"
#include "common/kernel/softmax.hpp"

namespace flash::MACHINE {

/// O = O / l and LSE = m + log(l) of the warp's rows, which begin at row first_row of the head and take the place of
/// the rows from tile_row on of a tile that no other warp uses any more. l are whole row sums.
template <int RowTiles, int ColTiles, typename Tile, typename Element>
__device__ __forceinline__ void write_output(Accumulator (&O)[RowTiles][ColTiles], const float (&l)[RowTiles][2],
                                             const float (&m)[RowTiles][2], Tile& tile, int tile_row,
                                             const GlobalMatrix<Element>& o, const GlobalVector<float>& lse,
                                             int first_row, Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 16 * r + Accumulator::row(h);
      const float inverse = inverse_sum(l[r][h]);
      if (Accumulator::column(0) == 0 && row < o.rows()) lse.store(row, log_sum_exp(m[r][h], l[r][h]));
#pragma unroll
      for (int c = 0; c < ColTiles; ++c) O[r][c].scale_row(h, inverse);
    }
  }
  store_accumulators(tile, tile_row, 0, O);
  __syncwarp();
  store_rows<16 * RowTiles>(o, first_row, tile, tile_row);
}

/// The rows of O / l, rounded, to the rows from tile_row on of a tile, from where the copy engine takes them, and LSE
/// as above. Two column tiles go with one stmatrix. O is only read: where another product is under way, ptxas would
/// wait for that before it changed accumulators.
template <int RowTiles, int ColTiles, typename Element, int Rows, int Cols, typename Layout>
__device__ __forceinline__ void store_output(SharedTile<Element, Rows, Cols, Layout>& tile, int tile_row,
                                             const Accumulator (&O)[RowTiles][ColTiles], const float (&l)[RowTiles][2],
                                             const float (&m)[RowTiles][2], const GlobalVector<float>& lse,
                                             int first_row, Site site = Site::here()) {
  static_assert(ColTiles % 2 == 0, "stmatrix takes two column tiles at a time");
  const CalledFrom from(site);
  const int lane = int(threadIdx.x % 32);
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 16 * r + Accumulator::row(h);
      inverse[h] = inverse_sum(l[r][h]);
      if (Accumulator::column(0) == 0 && row < lse.size()) lse.store(row, log_sum_exp(m[r][h], l[r][h]));
    }
#pragma unroll
    for (int c = 0; c < ColTiles; c += 2) {
      std::uint32_t matrices[4];  // [8, 8] each: above and below in column tile c, and in the next
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = i % 2;
        const AccumulatorRegister* pair = &O[r][c + i / 2].value[2 * h];
        matrices[i] = pack<Element>(pair[0] * inverse[h], pair[1] * inverse[h]);
      }
      stmatrix_x4(tile.lane_address(16 * r, 8 * c, tile_row + lane % 16, lane / 16 * 8), matrices);
    }
  }
}

}  // namespace flash::MACHINE
