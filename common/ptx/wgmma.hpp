// Products of a warpgroup on the tensor cores (PTX wgmma); the twin of common/sim/wgmma.hpp. The right operand comes
// from shared memory, the left one from there or from registers; sums stay in registers. A product is issued and runs
// on its own: its registers and operands are free again after wgmma_wait.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/base/tensor_map.hpp"
#include "common/gpu/types.hpp"
#include "common/gpu/views.hpp"
#include "common/ptx/instruction.hpp"

namespace flash::gpu {

/// Which index of an operand has its neighbours side by side in shared memory: k, which is summed over, or the other.
enum class Major { k, mn };

/// Where an operand lies in shared memory (PTX manual, "Matrix descriptor"): bits 0 to 13 the address, 16 to 29 and 32
/// to 45 two distances, all in units of 16 bytes; bits 62 and 63 the swizzle.
struct MatrixDescriptor {
  std::uint64_t bits;
};

__device__ __forceinline__ MatrixDescriptor matrix_descriptor(SharedAddress start, int leading_bytes, int stride_bytes,
                                                              Swizzle swizzle) {
  const std::uint64_t mode = swizzle == Swizzle::none ? 0 : 4 - int(swizzle);  // 1: 128 bytes, 2: 64, 3: 32
  return {std::uint64_t(start.value >> 4 & 0x3fff) | std::uint64_t(leading_bytes >> 4) << 16 |
          std::uint64_t(stride_bytes >> 4) << 32 | mode << 62};
}

/// The same, `bytes` further on.
__device__ __forceinline__ MatrixDescriptor advance(MatrixDescriptor descriptor, int bytes) {
  // The address alone, in 32 bits: no carry goes beyond it.
  return {(descriptor.bits & 0xffffffff00000000u) | (unsigned(descriptor.bits) + unsigned(bytes >> 4))};
}

/// Before the first product, and where registers of a product were touched since the last fence.
__device__ __forceinline__ void wgmma_fence() { FLASH_ASM_90A("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes the group of products that were issued since the last commit.
__device__ __forceinline__ void wgmma_commit() { FLASH_ASM_90A("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `Pending` of the newest groups are incomplete.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  FLASH_ASM_90A("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// -- For the assembly: lists of registers. The sums of columns 8c .. 8c + 7 are four registers of a thread.

#define FLASH_SUM(c) "+f"(d[c][0]), "+f"(d[c][1]), "+f"(d[c][2]), "+f"(d[c][3])
#define FLASH_SUMS_2(c) FLASH_SUM(c), FLASH_SUM(c + 1)
#define FLASH_SUMS_4(c) FLASH_SUMS_2(c), FLASH_SUMS_2(c + 2)
#define FLASH_SUMS_8(c) FLASH_SUMS_4(c), FLASH_SUMS_4(c + 4)
#define FLASH_SUMS_16(c) FLASH_SUMS_8(c), FLASH_SUMS_8(c + 8)

#define FLASH_D_64                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASH_D_80 FLASH_D_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FLASH_D_96 FLASH_D_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FLASH_D_128 FLASH_D_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FLASH_D_160 FLASH_D_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define FLASH_D_176 FLASH_D_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FLASH_D_192 FLASH_D_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FLASH_D_256                                                                              \
  FLASH_D_192                                                                                    \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// O0, O1, ...: the operands behind the sums. Shared: A, B, whether to add to the sums, the majors of A and B (0 is k).
// Registers: the four of A, B, whether to add, the major of B.
#define FLASH_WGMMA_SHARED_OF(TYPE, N, D, O0, O1, O2, O3, O4, ...)                                               \
  FLASH_ASM_90A(                                                                                                 \
      "{\n"                                                                                                      \
      ".reg .pred add;\n"                                                                                        \
      "setp.ne.b32 add, " O2                                                                                     \
      ", 0;\n"                                                                                                   \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "}, " O0 ", " O1 ", add, 1, 1, " O3 \
      ", " O4                                                                                                    \
      ";\n"                                                                                                      \
      "}"                                                                                                        \
      : __VA_ARGS__                                                                                              \
      : "l"(a.bits), "l"(b.bits), "r"(int(add)), "n"(int(MajorA)), "n"(int(MajorB)))
#define FLASH_WGMMA_REGISTERS_OF(TYPE, N, D, O0, O1, O2, O3, O4, O5, O6, ...)                                  \
  FLASH_ASM_90A(                                                                                               \
      "{\n"                                                                                                    \
      ".reg .pred add;\n"                                                                                      \
      "setp.ne.b32 add, " O5                                                                                   \
      ", 0;\n"                                                                                                 \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "}, {" O0 ", " O1 ", " O2 ", " O3 \
      "}, " O4 ", add, 1, 1, " O6                                                                              \
      ";\n"                                                                                                    \
      "}"                                                                                                      \
      : __VA_ARGS__                                                                                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(int(add)), "n"(int(MajorB)))

#define FLASH_WGMMA_SHARED(N, D, O0, O1, O2, O3, O4, ...)                \
  if constexpr (N_ == N && std::is_same_v<Element, half>)                \
    FLASH_WGMMA_SHARED_OF("f16", N, D, O0, O1, O2, O3, O4, __VA_ARGS__); \
  if constexpr (N_ == N && std::is_same_v<Element, bfloat16>)            \
  FLASH_WGMMA_SHARED_OF("bf16", N, D, O0, O1, O2, O3, O4, __VA_ARGS__)
#define FLASH_WGMMA_REGISTERS(N, D, O0, O1, O2, O3, O4, O5, O6, ...)                \
  if constexpr (N_ == N && std::is_same_v<Element, half>)                           \
    FLASH_WGMMA_REGISTERS_OF("f16", N, D, O0, O1, O2, O3, O4, O5, O6, __VA_ARGS__); \
  if constexpr (N_ == N && std::is_same_v<Element, bfloat16>)                       \
  FLASH_WGMMA_REGISTERS_OF("bf16", N, D, O0, O1, O2, O3, O4, O5, O6, __VA_ARGS__)

/// Whether there is an instruction for N columns here; Hopper has one for each multiple of 8 up to 256.
template <int N>
constexpr bool HasWgmma = N == 64 || N == 80 || N == 96 || N == 128 || N == 160 || N == 176 || N == 192 || N == 256;

/// d (+)= a*b: [64, 16] times [16, N] elements, [64, N] sums, of which this warp has rows 16w .. 16w + 15; d[c] are
/// columns 8c .. 8c + 7 as in an accumulator of mma.m16n8k16. Without `add` d is overwritten. a and b from shared
/// memory.
template <typename Element, int N_, Major MajorA, Major MajorB>
__device__ __forceinline__ void wgmma(AccumulatorRegister (&d)[N_ / 8][4], MatrixDescriptor a, MatrixDescriptor b,
                                      bool add) {
  static_assert(HasWgmma<N_>);
  FLASH_WGMMA_SHARED(64, FLASH_D_64, "%32", "%33", "%34", "%35", "%36", FLASH_SUMS_8(0));
  FLASH_WGMMA_SHARED(80, FLASH_D_80, "%40", "%41", "%42", "%43", "%44", FLASH_SUMS_8(0), FLASH_SUMS_2(8));
  FLASH_WGMMA_SHARED(96, FLASH_D_96, "%48", "%49", "%50", "%51", "%52", FLASH_SUMS_8(0), FLASH_SUMS_4(8));
  FLASH_WGMMA_SHARED(128, FLASH_D_128, "%64", "%65", "%66", "%67", "%68", FLASH_SUMS_16(0));
  FLASH_WGMMA_SHARED(160, FLASH_D_160, "%80", "%81", "%82", "%83", "%84", FLASH_SUMS_16(0), FLASH_SUMS_4(16));
  FLASH_WGMMA_SHARED(176, FLASH_D_176, "%88", "%89", "%90", "%91", "%92", FLASH_SUMS_16(0), FLASH_SUMS_4(16),
                     FLASH_SUMS_2(20));
  FLASH_WGMMA_SHARED(192, FLASH_D_192, "%96", "%97", "%98", "%99", "%100", FLASH_SUMS_16(0), FLASH_SUMS_8(16));
  FLASH_WGMMA_SHARED(256, FLASH_D_256, "%128", "%129", "%130", "%131", "%132", FLASH_SUMS_16(0), FLASH_SUMS_16(16));
}

/// The same with a in registers, as round_to_a makes it: lane l of warp w has rows 16w + l/4 and 16w + l/4 + 8.
template <typename Element, int N_, Major MajorB>
__device__ __forceinline__ void wgmma(AccumulatorRegister (&d)[N_ / 8][4], const std::uint32_t (&a)[4],
                                      MatrixDescriptor b, bool add) {
  static_assert(HasWgmma<N_>);
  FLASH_WGMMA_REGISTERS(64, FLASH_D_64, "%32", "%33", "%34", "%35", "%36", "%37", "%38", FLASH_SUMS_8(0));
  FLASH_WGMMA_REGISTERS(80, FLASH_D_80, "%40", "%41", "%42", "%43", "%44", "%45", "%46", FLASH_SUMS_8(0),
                        FLASH_SUMS_2(8));
  FLASH_WGMMA_REGISTERS(96, FLASH_D_96, "%48", "%49", "%50", "%51", "%52", "%53", "%54", FLASH_SUMS_8(0),
                        FLASH_SUMS_4(8));
  FLASH_WGMMA_REGISTERS(128, FLASH_D_128, "%64", "%65", "%66", "%67", "%68", "%69", "%70", FLASH_SUMS_16(0));
  FLASH_WGMMA_REGISTERS(160, FLASH_D_160, "%80", "%81", "%82", "%83", "%84", "%85", "%86", FLASH_SUMS_16(0),
                        FLASH_SUMS_4(16));
  FLASH_WGMMA_REGISTERS(176, FLASH_D_176, "%88", "%89", "%90", "%91", "%92", "%93", "%94", FLASH_SUMS_16(0),
                        FLASH_SUMS_4(16), FLASH_SUMS_2(20));
  FLASH_WGMMA_REGISTERS(192, FLASH_D_192, "%96", "%97", "%98", "%99", "%100", "%101", "%102", FLASH_SUMS_16(0),
                        FLASH_SUMS_8(16));
  FLASH_WGMMA_REGISTERS(256, FLASH_D_256, "%128", "%129", "%130", "%131", "%132", "%133", "%134", FLASH_SUMS_16(0),
                        FLASH_SUMS_16(16));
}

}  // namespace flash::gpu
