// Tiles by the copy engine: one thread moves a whole tile of a head with one instruction.
//
// The engine's 128-byte swizzle works on rows of 128 bytes, so a tile is moved as panels of 64 16-bit columns: the
// tensor is [batch, heads, panels, rows, 64], a tile is a box [1, 1, all panels, Rows, 64] of it, and the engine leaves
// it in shared memory as SharedTile with Swizzle128 has it. Rows past the end of the tensor arrive as zeros and are not
// written.
#pragma once

#include "common/base/tensor_map.hpp"
#include "common/kernel/kernel.hpp"

namespace flash::MACHINE {

/// The map of `tensor` for tiles of `rows` rows (at most 256) and all columns.
inline TensorMapSpec tile_map(const TensorRef& tensor, int rows) {
  const int bytes = tensor.element_bytes, panel = 128 / bytes;
  TensorMapSpec spec;
  spec.tensor = tensor.name;
  spec.data = tensor.data;
  spec.element_bytes = bytes;
  spec.rank = 5;
  const std::int64_t extent[] = {panel, tensor.rows, tensor.cols / panel, tensor.heads, tensor.batch};
  const std::int64_t stride[] = {1, tensor.row_stride, panel, tensor.head_stride, tensor.batch_stride};
  const int box[] = {panel, rows, int(tensor.cols) / panel, 1, 1};
  for (int i = 0; i < 5; ++i) {
    spec.extent[i] = extent[i];
    // An extent of 1 is never stepped over, whatever its stride is.
    spec.stride[i] = extent[i] == 1 ? 16 : stride[i] * bytes;
    spec.box[i] = box[i];
  }
  spec.stride[0] = bytes;
  spec.swizzle = Swizzle::bytes128;
  return spec;
}

/// Rows first_row .. of a head into the tile; `full` hears of each byte that arrives. By one thread, which has told
/// `full` how many to expect. Returns at once.
template <typename Element, int Rows, int Cols>
__device__ __forceinline__ void load_tile_tma(SharedTile<Element, Rows, Cols, Swizzle128>& tile, const TensorMap& map,
                                              int batch, int head, int first_row, Mbarrier& full,
                                              Site site = Site::here()) {
  const CalledFrom from(site);
  tma_load(tile.address(0, 0), map, {0, first_row, 0, head, batch}, full);
}

/// The tile into rows first_row .. of a head, by one thread. Returns at once: see tma_store_commit.
template <typename Element, int Rows, int Cols>
__device__ __forceinline__ void store_tile_tma(const TensorMap& map, int batch, int head, int first_row,
                                               const SharedTile<Element, Rows, Cols, Swizzle128>& tile,
                                               Site site = Site::here()) {
  const CalledFrom from(site);
  tma_store(map, {0, first_row, 0, head, batch}, tile.address(0, 0));
}

}  // namespace flash::MACHINE
