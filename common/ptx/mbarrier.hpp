// Barriers in shared memory that count arrivals and bytes (PTX mbarrier); the twin of common/sim/mbarrier.hpp.
#pragma once

#include <cstdint>

#include "common/ptx/instruction.hpp"

namespace flash::gpu {

/// A member of a block's shared storage. Its phases are numbered from 0; the parity of a phase is its number modulo 2.
/// A phase completes when all arrivals are there and all bytes that were announced have come; the next begins at once.
class Mbarrier {
 public:
  /// By one thread, before mbarrier_init_fence and a barrier of the block. Each phase waits for `arrivals`.
  __device__ __forceinline__ void init(int arrivals) {
    FLASH_ASM_90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  /// One arrival. What the thread did before comes before what follows a wait for this phase.
  __device__ __forceinline__ void arrive() {
    FLASH_ASM_90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  /// One arrival, and the phase waits for `bytes` bytes more of asynchronous copies.
  __device__ __forceinline__ void arrive_expect_tx(int bytes) {
    FLASH_ASM_90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  /// Returns when the phase of this parity has completed: at once where the barrier is in a phase of the other parity,
  /// so wait(1) on a fresh barrier does.
  __device__ __forceinline__ void wait(unsigned parity) {
    FLASH_ASM_90(
        "{\n"
        ".reg .pred complete;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@complete bra done;\n"
        "bra again;\n"
        "done:\n"
        "}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  /// Whether it has; asks once.
  __device__ __forceinline__ bool try_wait(unsigned parity) {
    unsigned complete = 0;
    FLASH_ASM_90(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(complete)
        : "r"(address()), "r"(parity)
        : "memory");
    return complete != 0;
  }

  /// As PTX takes it.
  __device__ __forceinline__ unsigned address() const { return unsigned(__cvta_generic_to_shared(&state_)); }

 private:
  std::uint64_t state_;
};

/// After the inits: the copy engine sees them too.
__device__ __forceinline__ void mbarrier_init_fence() {
  FLASH_ASM_90("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace flash::gpu
