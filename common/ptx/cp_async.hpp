// Asynchronous copies from global to shared memory (PTX cp.async); the twin of common/sim/cp_async.hpp.
#pragma once

#include "common/gpu/views.hpp"
#include "common/ptx/instruction.hpp"

namespace flash::gpu {

/// Copies 16 bytes, past L1.
__device__ __forceinline__ void cp_async_16(SharedAddress to, GlobalAddress from) {
  FLASH_ASM_80("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to.value), "l"(from.data) : "memory");
}

/// Zeroes 16 bytes of shared memory in the same stream of copies: a copy of 0 source bytes.
__device__ __forceinline__ void cp_async_zero_16(SharedAddress to) {
  FLASH_ASM_80("cp.async.cg.shared.global [%0], [%1], 16, 0;" ::"r"(to.value), "l"((const void*)nullptr) : "memory");
}

/// Closes the group of copies that this thread issued since the last commit.
__device__ __forceinline__ void cp_async_commit() { FLASH_ASM_80("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` of this thread's newest groups are incomplete. Says nothing about other threads'
/// copies: a barrier must follow before their data is read.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  FLASH_ASM_80("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace flash::gpu
