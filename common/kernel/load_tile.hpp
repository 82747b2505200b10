// Tiles between global and shared memory, 16 bytes a thread and 512 bytes of whole rows a warp: in through registers,
// in by asynchronous copies, and out.
#pragma once

#include "common/kernel/kernel.hpp"

namespace flash::MACHINE {

/// Rows first_row .. of a head into a tile, through registers, by all `Threads` threads of the block. Rows past the end
/// of the tensor become 0, so that whatever lies behind it in memory never meets a P of 0 (0·NaN = NaN). The caller
/// needs a barrier before it (the tile's old content has been read) and after it (the new content is there).
template <int Threads, typename Element, int Rows, int Cols, typename Layout>
__device__ __forceinline__ void load_tile(SharedTile<Element, Rows, Cols, Layout>& tile,
                                          const GlobalMatrix<const Element>& matrix, int first_row,
                                          Site site = Site::here()) {
  const CalledFrom from(site);
  constexpr int ThreadsPerRow = Cols * int(sizeof(Element)) / 16, RowsAtOnce = Threads / ThreadsPerRow;
  constexpr int VectorSize = 16 / int(sizeof(Element));
  constexpr int Loads = (Rows + RowsAtOnce - 1) / RowsAtOnce, InFlight = Loads < 8 ? Loads : 8;
  constexpr bool Whole = Rows % (RowsAtOnce * InFlight) == 0;  // all threads move equally much
  static_assert(32 % ThreadsPerRow == 0, "a warp moves whole rows, so that it asks for whole sectors");
  const int thread_row = int(threadIdx.x / ThreadsPerRow), col = int(threadIdx.x % ThreadsPerRow) * VectorSize;
#pragma unroll 1
  for (int load = 0; load < Loads; load += InFlight) {
    Vector<Element, VectorSize> values[InFlight];
#pragma unroll
    for (int i = 0; i < InFlight; ++i) {
      const int row = (load + i) * RowsAtOnce + thread_row;
      values[i] = {};
      if ((Whole || row < Rows) && first_row + row < matrix.rows()) {
        values[i] = load_vector<VectorSize>(matrix, first_row + row, col);
      }
    }
#pragma unroll
    for (int i = 0; i < InFlight; ++i) {
      const int row = (load + i) * RowsAtOnce + thread_row;
      if (Whole || row < Rows) tile.store_vector(row, col, values[i]);
    }
  }
}

/// The same in two steps, by `Threads` threads, of which this is number `thread`: rows travel into registers while the
/// threads do something else, and from there into the tile.
template <int Threads, typename Element, int Rows, int Cols>
struct RowsInFlight {
  static constexpr int VectorSize = 16 / int(sizeof(Element)), ThreadsPerRow = Cols / VectorSize;
  static constexpr int RowsAtOnce = Threads / ThreadsPerRow;
  static_assert(32 % ThreadsPerRow == 0, "a warp moves whole rows, so that it asks for whole sectors");
  static_assert(Rows % RowsAtOnce == 0, "all threads move equally much");
  Vector<Element, VectorSize> values[Rows / RowsAtOnce];

  __device__ __forceinline__ void load(int thread, const GlobalMatrix<const Element>& matrix, int first_row,
                                       Site site = Site::here()) {
    const CalledFrom from(site);
    const int thread_row = thread / ThreadsPerRow, col = thread % ThreadsPerRow * VectorSize;
#pragma unroll
    for (int i = 0; i < Rows / RowsAtOnce; ++i) {
      const int row = first_row + i * RowsAtOnce + thread_row;
      values[i] = {};
      if (row < matrix.rows()) values[i] = load_vector<VectorSize>(matrix, row, col);
    }
  }
  template <typename Layout>
  __device__ __forceinline__ void store(int thread, SharedTile<Element, Rows, Cols, Layout>& tile,
                                        Site site = Site::here()) const {
    const CalledFrom from(site);
    const int thread_row = thread / ThreadsPerRow, col = thread % ThreadsPerRow * VectorSize;
#pragma unroll
    for (int i = 0; i < Rows / RowsAtOnce; ++i) tile.store_vector(i * RowsAtOnce + thread_row, col, values[i]);
  }
};

/// The same by asynchronous copies of `Threads` threads, of which this is number `thread`: returns at once. The content
/// is there after each thread has waited for its copies (cp_async_wait) and a barrier. `Inside`: the caller knows that
/// all rows exist.
template <int Threads, bool Inside = false, typename Element, int Rows, int Cols, typename Layout>
__device__ __forceinline__ void load_tile_async(unsigned thread, SharedTile<Element, Rows, Cols, Layout>& tile,
                                                const GlobalMatrix<const Element>& matrix, int first_row,
                                                Site site = Site::here()) {
  const CalledFrom from(site);
  constexpr int ThreadsPerRow = Cols * int(sizeof(Element)) / 16, RowsAtOnce = Threads / ThreadsPerRow;
  static_assert(32 % ThreadsPerRow == 0, "a warp moves whole rows, so that it asks for whole sectors");
  static_assert(Rows % RowsAtOnce == 0, "all threads move equally much");
  const int row = int(thread / ThreadsPerRow), col = int(thread % ThreadsPerRow) * (16 / int(sizeof(Element)));
#pragma unroll
  for (int i = 0; i < Rows; i += RowsAtOnce) {
    if (Inside || first_row + row + i < matrix.rows()) {
      cp_async_16(tile.lane_address(i, 0, row, col), matrix.address(first_row + row + i, col));
    } else {
      cp_async_zero_16(tile.lane_address(i, 0, row, col));
    }
  }
}

/// `Rows` rows of a tile, from tile_row on, to rows first_row .. of a head, by one warp. Rows past the end of the
/// tensor are left out.
template <int Rows, typename Tile, typename Element>
__device__ __forceinline__ void store_rows(const GlobalMatrix<Element>& matrix, int first_row, const Tile& tile,
                                           int tile_row, Site site = Site::here()) {
  const CalledFrom from(site);
  constexpr int VectorSize = 16 / int(sizeof(Element)), ThreadsPerRow = Tile::cols() / VectorSize;
  const int row = int(threadIdx.x % 32 / ThreadsPerRow), col = int(threadIdx.x % ThreadsPerRow) * VectorSize;
#pragma unroll
  for (int i = 0; i < Rows; i += 32 / ThreadsPerRow) {
    if (first_row + row + i < matrix.rows()) {
      matrix.store_vector(first_row + row + i, col, load_vector<VectorSize>(tile, tile_row + row + i, col));
    }
  }
}

}  // namespace flash::MACHINE
