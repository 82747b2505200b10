// What the simulated GPU's reports are made of (common/sim/site.hpp, block.hpp and members.hpp) is nothing on a GPU.
#pragma once

#define SHARED_MEMBERS(...) static_assert(true)

namespace flash::gpu {

/// A place in a kernel's source.
struct Site {
  __host__ __device__ static constexpr Site here() { return {}; }
};

/// Says from where a function was called.
struct [[maybe_unused]] CalledFrom {
  __device__ __forceinline__ explicit CalledFrom(Site) {}
};

}  // namespace flash::gpu
