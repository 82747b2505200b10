// What a tensor map says to Hopper's copy engine (TMA): a tensor in global memory and the box of it that one copy moves
// into shared memory, or out of it. Machine-independent; each machine makes its own map of it.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/layout.hpp"

namespace flash {

/// How 16-byte pieces are exchanged within shared memory, by the bits of their addresses; see swizzle_offset.
enum class Swizzle { none, bytes32, bytes64, bytes128 };

/// Bytes that a row of a swizzled box may have at most; 0 without a swizzle.
FLASH_HOST_DEVICE constexpr int swizzle_bytes(Swizzle swizzle) {
  return swizzle == Swizzle::none ? 0 : swizzle == Swizzle::bytes32 ? 32 : swizzle == Swizzle::bytes64 ? 64 : 128;
}

/// Where the copy engine and the tensor cores find the byte that would lie at this shared-memory address without a
/// swizzle: address bits 4 to 6 are exclusive-ored with bits 7 to 9 (128 bytes), 4 and 5 with 7 and 8 (64 bytes), 4
/// with 7 (32 bytes). Its own inverse.
FLASH_HOST_DEVICE constexpr unsigned swizzle_offset(Swizzle swizzle, unsigned byte_address) {
  const unsigned pieces = unsigned(swizzle_bytes(swizzle)) / 16;  // that are exchanged among themselves
  return pieces == 0 ? byte_address : byte_address ^ ((byte_address >> 7 & (pieces - 1)) << 4);
}

/// A tensor of 1 to 5 dimensions, the innermost first, and the box that one copy moves. Where a copy may begin stands
/// in common/ptx/tma.hpp.
struct TensorMapSpec {
  std::string tensor;           // for reports and counters: "Q"
  void* data = nullptr;         // a multiple of 16 bytes
  int element_bytes = 2;        // 1, 2 or 4
  int rank = 1;                 // 1 to 5
  std::int64_t extent[5] = {};  // elements
  std::int64_t stride[5] = {};  // bytes; stride[0] is element_bytes, the others are multiples of 16 below 2^40
  int box[5] = {};              // elements, 1 to 256 in each dimension; a row of it is a multiple of 16 bytes
  Swizzle swizzle = Swizzle::none;

  int box_bytes() const {
    int bytes = element_bytes;
    for (int i = 0; i < rank; ++i) bytes *= box[i];
    return bytes;
  }
};

/// "" where the copy engine can take the map, or one line that says what it cannot take. Source: CUDA driver API,
/// cuTensorMapEncodeTiled.
std::string refusal(const TensorMapSpec& spec);

}  // namespace flash
