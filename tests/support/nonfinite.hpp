// NaN and infinity in the inputs reach exactly what the reference says they reach: shared by the tests on both
// machines.
#pragma once

#include <string>
#include <vector>

#include "tests/support/attention.hpp"

namespace flash::test {

/// A kernel that need not keep a NaN or an infinity in a masked key away from rows that do not see it.
struct NonfiniteException {
  const char* chapter;
  const char* variant;  // "" for all
  const char* reason;
};

/// Where causal masking may leak. A kernel that computes whole tiles on tensor cores multiplies masked weights of 0
/// with the values of keys that a row in the same diagonal tile does not see, and 0 times NaN is NaN; one that does so
/// by intent is named here with its reason, and is held to the rest: without causal masking nothing is masked.
inline constexpr NonfiniteException kNonfiniteExceptions[] = {
    {"01_naive", "cublas", "the library multiplies all of P with all of V, masked weights of 0 included"},
};

/// Runs the chapter on inputs with NaN and infinity in one key row or query row. Each failure is one line.
std::vector<std::string> nonfinite_failures(const Chapter& chapter, const LaunchOptions& variant, Device& device);

}  // namespace flash::test
