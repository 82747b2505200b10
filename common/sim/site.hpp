// A place in a kernel's source: every observed operation takes one as its last, defaulted argument.
#pragma once

#include <cstdint>

namespace flash::sim {

struct Site {
  const char* file = "";
  int line = 0;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
  bool operator==(const Site&) const = default;
};

/// A place together with the places from which it was called (see CalledFrom), as SiteTable numbers them; 0: none.
using SiteId = std::uint16_t;

}  // namespace flash::sim
