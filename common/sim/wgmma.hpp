// Matrix products of a warpgroup (wgmma.mma_async) on the simulated GPU: four warps multiply operands in shared memory
// while the program goes on; the twin of common/ptx/wgmma.hpp.
#pragma once

#include <type_traits>

#include "common/base/dtype.hpp"
#include "common/base/tensor_map.hpp"
#include "common/sim/accumulator_register.hpp"
#include "common/sim/capability.hpp"
#include "common/sim/views.hpp"
#include "common/sim/warpgroup_unit.hpp"

namespace flash::sim {

/// Which index of an operand is contiguous in shared memory: that of the sum, or that of the result's row (of a) or
/// column (of b).
enum class Major { k, mn };

/// PTX manual, "Matrix descriptor": start address / 16 in bits 0 to 13, leading offset / 16 in 16 to 29, stride offset
/// / 16 in 32 to 45, base offset in 49 to 51, swizzle in 62 and 63 (0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes).
struct MatrixDescriptor {
  std::uint64_t bits;
};

/// What the two offsets are depends on the operand; in bytes, T = 8 elements of 16 bits:
///   K-major, no swizzle:  leading: from the first 8 of the depth to the next; stride: from 8 rows to the next 8
///   K-major, swizzled:    leading: not used; stride: from 8 rows to the next 8
///   MN-major, no swizzle: leading: from 8 of the depth to the next 8; stride: from T rows to the next T
///   MN-major, swizzled:   leading: from one swizzle's width of rows to the next; stride: from 8 of the depth to the
///   next
inline MatrixDescriptor matrix_descriptor(SharedAddress start, int leading_bytes, int stride_bytes, Swizzle swizzle,
                                          Site site = Site::here()) {
  const std::ptrdiff_t at = start.data - this_block().shared_memory();
  if (at % 16 != 0 || leading_bytes % 16 != 0 || stride_bytes % 16 != 0) {
    this_block().fault("misaligned",
                       fmt::format("a matrix descriptor of {} with offsets of {} and {} bytes: all are multiples of 16",
                                   this_block().describe(start.place), leading_bytes, stride_bytes),
                       site);
  }
  const auto field = [](std::int64_t bytes) { return std::uint64_t(bytes) >> 4 & 0x3fff; };
  constexpr std::uint64_t modes[] = {0, 3, 2, 1};  // by Swizzle
  return {field(at) | field(leading_bytes) << 16 | field(stride_bytes) << 32 | modes[int(swizzle)] << 62};
}

/// The operand that starts `bytes` bytes, a multiple of 16, further. Within the rows of a swizzle's pattern that leads
/// along the row, because the exclusive or works on the address.
inline MatrixDescriptor advance(MatrixDescriptor descriptor, int bytes) {
  return {(descriptor.bits & ~std::uint64_t(0x3fff)) | ((descriptor.bits + std::uint64_t(bytes / 16)) & 0x3fff)};
}

/// wgmma.fence: before the first wgmma, and between what touches registers of a product and the product.
inline void wgmma_fence(Site site = Site::here()) {
  require_exact_capability(90, "wgmma.fence", site);
  this_block().warpgroup_unit().fence(site);
}

/// wgmma.commit_group: closes the group of products since the last commit.
inline void wgmma_commit(Site site = Site::here()) {
  require_exact_capability(90, "wgmma.commit_group", site);
  this_block().warpgroup_unit().commit(site);
}

/// wgmma.wait_group: waits until all but the newest `Pending` groups are done: their accumulators can be read, and this
/// warp has read their operands. Says nothing about the other warps.
template <int Pending>
void wgmma_wait(Site site = Site::here()) {
  require_exact_capability(90, "wgmma.wait_group", site);
  this_block().warpgroup_unit().wait(Pending, site);
}

namespace detail {

template <typename Element, int N>
constexpr bool wgmma_takes =
    (std::is_same_v<Element, float16> || std::is_same_v<Element, bfloat16>)&&N % 8 == 0 && N >= 8 && N <= 256;

}  // namespace detail

/// d[64, N] (+)= a[64, 16]·b[16, N] in fp32, a and b in shared memory. All threads of four warps, the first of which
/// has a number divisible by 4, give the same descriptors. Warp w of them has rows 16w to 16w + 15, d[c] is columns 8c
/// to 8c + 7 as Accumulator has them. Nobody may touch d or write the operands before the wait.
template <typename Element, int N, Major MajorA, Major MajorB>
void wgmma(AccumulatorRegister (&d)[N / 8][4], MatrixDescriptor a, MatrixDescriptor b, bool accumulate,
           Site site = Site::here()) {
  static_assert(detail::wgmma_takes<Element, N>, "fp16 or bf16 operands, N a multiple of 8 up to 256");
  require_exact_capability(90, "wgmma.mma_async", site);
  this_block().warpgroup_unit().issue(
      {N, std::is_same_v<Element, bfloat16>, false, MajorA == Major::mn, MajorB == Major::mn},
      {d[0], nullptr, a.bits, b.bits, accumulate}, site);
}

/// The same with `a` in registers, as mma_m16n8k16 has it for each warp's 16 rows.
template <typename Element, int N, Major MajorB>
void wgmma(AccumulatorRegister (&d)[N / 8][4], const std::uint32_t (&a)[4], MatrixDescriptor b, bool accumulate,
           Site site = Site::here()) {
  static_assert(detail::wgmma_takes<Element, N>, "fp16 or bf16 operands, N a multiple of 8 up to 256");
  require_exact_capability(90, "wgmma.mma_async", site);
  this_block().warpgroup_unit().issue({N, std::is_same_v<Element, bfloat16>, true, false, MajorB == Major::mn},
                                      {d[0], a, 0, b.bits, accumulate}, site);
}

}  // namespace flash::sim
