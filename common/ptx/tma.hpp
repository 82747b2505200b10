// Hopper's copy engine, the tensor memory accelerator (PTX cp.async.bulk.tensor); the twin of common/sim/tma.hpp. One
// thread asks for a whole box of a tensor; the engine computes the addresses.
//
// Where a box may begin, and what a store writes, as measured on an H200 (CUDA 13.0, driver 580.159.04, elements of 2
// bytes):
// - The innermost coordinate is a multiple of 16 bytes, negative or not. Any other ends the kernel with an illegal
//   instruction.
// - No coordinate of a store is negative, which ends the kernel likewise. Those of a load may be, and both may lie
// behind
//   the tensor's end.
// - Where a row of the tensor ends within 16 bytes, a store writes all 16 of them. A load brings zeros for those behind
//   the end.
#pragma once

#include "common/gpu/tensor_map.hpp"
#include "common/gpu/views.hpp"
#include "common/ptx/instruction.hpp"
#include "common/ptx/mbarrier.hpp"

namespace flash::gpu {

/// Copies the box at `at` (the innermost first; elements outside the tensor are zeros) to shared memory.
/// Returns at once: `barrier` is told of each byte that has come.
template <int Rank>
__device__ __forceinline__ void tma_load(SharedAddress to, const TensorMap& map, const int (&at)[Rank],
                                         Mbarrier& barrier) {
  static_assert(Rank >= 1 && Rank <= 5, "a tensor map has 1 to 5 dimensions");
  if constexpr (Rank == 1) {
    FLASH_ASM_90(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(
            to.value),
        "l"(&map.value), "r"(barrier.address()), "r"(at[0])
        : "memory");
  } else if constexpr (Rank == 2) {
    FLASH_ASM_90(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to.value),
        "l"(&map.value), "r"(barrier.address()), "r"(at[0]), "r"(at[1])
        : "memory");
  } else if constexpr (Rank == 3) {
    FLASH_ASM_90(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(to.value),
        "l"(&map.value), "r"(barrier.address()), "r"(at[0]), "r"(at[1]), "r"(at[2])
        : "memory");
  } else if constexpr (Rank == 4) {
    FLASH_ASM_90(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(to.value),
        "l"(&map.value), "r"(barrier.address()), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
        : "memory");
  } else {
    FLASH_ASM_90(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
        "[%2];" ::"r"(to.value),
        "l"(&map.value), "r"(barrier.address()), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
        : "memory");
  }
}

/// Copies from shared memory to the box at `at`; elements outside the tensor are left out, but for those that share 16
/// bytes with one inside. What was written by ordinary stores needs async_proxy_fence before. Returns at once: see
/// tma_store_commit and tma_store_wait_read.
template <int Rank>
__device__ __forceinline__ void tma_store(const TensorMap& map, const int (&at)[Rank], SharedAddress from) {
  static_assert(Rank >= 1 && Rank <= 5, "a tensor map has 1 to 5 dimensions");
  if constexpr (Rank == 1) {
    FLASH_ASM_90("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%2}], [%1];" ::"l"(&map.value),
                 "r"(from.value), "r"(at[0])
                 : "memory");
  } else if constexpr (Rank == 2) {
    FLASH_ASM_90("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map.value),
                 "r"(from.value), "r"(at[0]), "r"(at[1])
                 : "memory");
  } else if constexpr (Rank == 3) {
    FLASH_ASM_90("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map.value),
                 "r"(from.value), "r"(at[0]), "r"(at[1]), "r"(at[2])
                 : "memory");
  } else if constexpr (Rank == 4) {
    FLASH_ASM_90(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map.value),
        "r"(from.value), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
        : "memory");
  } else {
    FLASH_ASM_90(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map.value),
        "r"(from.value), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
        : "memory");
  }
}

/// Closes the group of stores that this thread issued since the last commit.
__device__ __forceinline__ void tma_store_commit() { FLASH_ASM_90("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` of this thread's newest groups have not been read from shared memory, which may then
/// be written again.
template <int Pending>
__device__ __forceinline__ void tma_store_wait_read() {
  FLASH_ASM_90("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

/// The same, until they are written.
template <int Pending>
__device__ __forceinline__ void tma_store_wait() {
  FLASH_ASM_90("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Brings the map into the cache that the copy engine reads it from.
__device__ __forceinline__ void tma_prefetch_map(const TensorMap& map) {
  FLASH_ASM_90("prefetch.tensormap [%0];" ::"l"(&map.value) : "memory");
}

/// What this thread stored to shared memory before is seen by the copy engine and by wgmma after a barrier.
__device__ __forceinline__ void async_proxy_fence() { FLASH_ASM_90("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace flash::gpu
