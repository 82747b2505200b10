// Division by a number that is fixed before the kernel starts. A GPU has no instruction that divides integers, and
// the routine that does it for a variable is a long chain in which each instruction waits for the one before.
#pragma once

#include <cstdint>

#include "common/base/layout.hpp"

namespace flash {

/// n / divisor as one multiplication and a shift, for 0 <= n < 2^31 and 1 <= divisor < 2^31.
///
/// With s = ceil(log2 divisor), shift = 31 + s and magic = floor(2^shift / divisor) + 1 we have magic·divisor =
/// 2^shift + e with 1 <= e <= divisor <= 2^s, so n·magic / 2^shift = n / divisor + n·e / (divisor·2^shift). The second
/// term is less than 2^31·2^s / (divisor·2^shift) = 1 / divisor, and n / divisor is at least that far below the next
/// integer: rounded down, the sum is the quotient. Of magic there are 32 bits at most: for a power of two it is
/// 2^31 + 1, and otherwise divisor > 2^(s-1) and so magic < 2^32.
struct Divisor {
  std::uint32_t divisor = 1, magic = (1u << 31) + 1;
  int shift = 31;

  Divisor() = default;
  explicit Divisor(int by) : divisor(std::uint32_t(by)) {
    while (std::uint64_t(1) << (shift - 31) < divisor) ++shift;
    magic = std::uint32_t((std::uint64_t(1) << shift) / divisor + 1);
  }

  FLASH_HOST_DEVICE int quotient(int n) const { return int(std::uint64_t(std::uint32_t(n)) * magic >> shift); }
};

}  // namespace flash
