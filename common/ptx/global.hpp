// Wide stores to global memory.
#pragma once

#include <cstdint>

namespace flash::gpu {

/// st.global.v4: 16 bytes as one access. Left to itself the compiler splits some such stores into four of 4 bytes,
/// which ask for four times the sectors.
__device__ __forceinline__ void store_global_16(void* at, const uint4& bits) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
}

/// st.global.v2: 8 bytes as one access.
__device__ __forceinline__ void store_global_8(void* at, const uint2& bits) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(bits.x), "r"(bits.y) : "memory");
}

}  // namespace flash::gpu
