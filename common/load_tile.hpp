// The plain way to bring a tile into shared memory: through registers, 16 bytes a thread, and a barrier afterwards.
#pragma once

#include "common/kernel.hpp"

namespace flash::MACHINE {

/// Rows first_row .. of a head into a tile, by all `Threads` threads of the block. A warp moves 512 bytes of whole rows
/// at a time. Rows past the end of the tensor become 0, so that P = 0 times V stays 0. The caller needs a barrier
/// before it (the tile's old content has been read) and after it (the new content is there).
template <int Threads, typename Element, int Rows, int Cols, typename Layout>
__device__ __forceinline__ void load_tile(SharedTile<Element, Rows, Cols, Layout>& tile,
                                          const GlobalMatrix<const Element>& matrix, int first_row) {
  constexpr int ThreadsPerRow = Cols * int(sizeof(Element)) / 16, RowsAtOnce = Threads / ThreadsPerRow;
  constexpr int VectorSize = 16 / int(sizeof(Element));
  constexpr int Loads = Rows / RowsAtOnce, InFlight = Loads < 8 ? Loads : 8;
  static_assert(32 % ThreadsPerRow == 0, "a warp moves whole rows, so that it asks for whole sectors");
  static_assert(Rows % (RowsAtOnce * InFlight) == 0, "all threads move equally much");
  const int thread_row = int(threadIdx.x) / ThreadsPerRow, col = int(threadIdx.x) % ThreadsPerRow * VectorSize;
#pragma unroll 1
  for (int load = 0; load < Loads; load += InFlight) {
    Vector<Element, VectorSize> values[InFlight];
#pragma unroll
    for (int i = 0; i < InFlight; ++i) {
      const int row = first_row + (load + i) * RowsAtOnce + thread_row;
      values[i] = {};
      if (row < matrix.rows()) values[i] = load_vector<VectorSize>(matrix, row, col);
    }
#pragma unroll
    for (int i = 0; i < InFlight; ++i) tile.store_vector((load + i) * RowsAtOnce + thread_row, col, values[i]);
  }
}

}  // namespace flash::MACHINE
