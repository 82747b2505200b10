// A ring of stages in shared memory: where in it a thread is, and in which turn.
#pragma once

#include "common/kernel/kernel.hpp"

namespace flash::MACHINE {

/// The n-th use of a ring of `Stages` stages: stage n mod Stages, whose barriers are in phase n / Stages. A consumer
/// waits for `full` of this parity; a producer for `empty` of the other one, which it finds complete in the first turn,
/// when nothing has been there yet.
template <int Stages>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace flash::MACHINE
