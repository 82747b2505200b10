// The two products of attention on wgmma, for a warpgroup that owns 64 query rows. Both are issued and not waited for:
// wgmma_commit and wgmma_wait are the caller's, wgmma_fence before them too.
//
// Operands lie in shared memory as Swizzle128 leaves them, in panels of 128 bytes by Rows. Q and K are k-major: a panel
// holds 64 columns, the index that Q·Kᵀ sums over, and a product of 16 of them reads 32 bytes of each row. V is
// mn-major: in P·V the columns are not summed over, the rows (keys) are.
#pragma once

#include "common/kernel/fragments.hpp"

namespace flash::MACHINE {

constexpr int WarpgroupRows = 64;        // of one wgmma
constexpr int RowBytes = 128;            // of a panel
constexpr int AtomBytes = 8 * RowBytes;  // the swizzle repeats every 8 rows

/// A tile whose columns are summed over.
template <typename Element, int Rows, int Cols>
__device__ __forceinline__ MatrixDescriptor k_major(const SharedTile<Element, Rows, Cols, Swizzle128>& tile) {
  // The leading distance is not used: 16 columns never leave a panel.
  return matrix_descriptor(tile.address(0, 0), 16, AtomBytes, Swizzle::bytes128);
}

/// A tile whose rows are summed over. From one panel to the next it is Rows rows, from 8 rows to the next 8 an atom.
template <typename Element, int Rows, int Cols>
__device__ __forceinline__ MatrixDescriptor mn_major(const SharedTile<Element, Rows, Cols, Swizzle128>& tile) {
  return matrix_descriptor(tile.address(0, 0), Rows * RowBytes, AtomBytes, Swizzle::bytes128);
}

/// Bytes from column 0 to column `col`, a multiple of 16, of a k-major tile.
template <int Rows>
FLASH_HOST_DEVICE constexpr int column_bytes(int col) {
  return col / 64 * Rows * RowBytes + col % 64 * 2;
}

/// In uniform registers, where wgmma wants it: else each product of 16 moves its two descriptors there.
__device__ __forceinline__ MatrixDescriptor uniform(MatrixDescriptor d) {
  return {(d.bits & 0xffffffff00000000u) | unsigned(uniform(int(unsigned(d.bits))))};
}

template <int Tiles>
__device__ __forceinline__ auto sums_of(Accumulator (&tiles)[Tiles]) -> AccumulatorRegister (&)[Tiles][4] {
  static_assert(sizeof(Accumulator) == 4 * sizeof(AccumulatorRegister), "an accumulator is its registers");
  return reinterpret_cast<AccumulatorRegister(&)[Tiles][4]>(tiles);
}

/// S = Q·Kᵀ: [64, Keys] in all four warps, 16 rows in each.
template <typename Element, int Keys, int HeadDim>
__device__ __forceinline__ void multiply_transposed_async(Accumulator (&S)[Keys / 8], MatrixDescriptor q,
                                                          MatrixDescriptor k, Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int col = 0; col < HeadDim; col += 16) {
    wgmma<Element, Keys, Major::k, Major::k>(sums_of(S), advance(q, column_bytes<WarpgroupRows>(col)),
                                             advance(k, column_bytes<Keys>(col)), col > 0);
  }
}

/// The same with Q in registers, as load_a has it.
template <typename Element, int Keys, int HeadDim>
__device__ __forceinline__ void multiply_transposed_async(Accumulator (&S)[Keys / 8],
                                                          const FragmentA (&Q)[HeadDim / 16], MatrixDescriptor k,
                                                          Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int col = 0; col < HeadDim; col += 16) {
    wgmma<Element, Keys, Major::k>(sums_of(S), Q[col / 16].value, advance(k, column_bytes<Keys>(col)), col > 0);
  }
}

/// O += P·V: [64, HeadDim], P in registers.
template <typename Element, int Keys, int HeadDim>
__device__ __forceinline__ void multiply_async(Accumulator (&O)[HeadDim / 8], const FragmentA (&P)[Keys / 16],
                                               MatrixDescriptor v, Site site = Site::here()) {
  const CalledFrom from(site);
#pragma unroll
  for (int k = 0; k < Keys / 16; ++k) {
    wgmma<Element, HeadDim, Major::mn>(sums_of(O), P[k].value, advance(v, k * 16 * RowBytes), true);
  }
}

}  // namespace flash::MACHINE
