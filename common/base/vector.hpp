// A short vector that moves as one access: Vector<half, 8> is 16 bytes.
#pragma once

#include "common/base/layout.hpp"

namespace flash {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  static_assert(sizeof(T) * N <= 16, "the widest access of a thread is 16 bytes");
  T data[N];
  FLASH_HOST_DEVICE constexpr T& operator[](int i) { return data[i]; }
  FLASH_HOST_DEVICE constexpr const T& operator[](int i) const { return data[i]; }
};

}  // namespace flash
