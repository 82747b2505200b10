// NaN and infinity in the inputs reach exactly what the reference says they reach: shared by the tests on both
// machines.
#pragma once

#include <string>
#include <vector>

#include "tests/support/attention.hpp"

namespace flash::test {

/// A kernel that need not keep a NaN or an infinity in a masked key's V row away from rows that do not see that key.
struct NonfiniteException {
  const char* chapter;
  const char* variant;  // "" for all
  const char* reason;
};

/// Where causal masking may leak V. A kernel that computes whole tiles on tensor cores multiplies masked weights of 0
/// with the values of keys that a row in the same diagonal tile does not see, and 0 times NaN is NaN; one that does so
/// by intent is named here with its reason. It is held to everything else: NaN and infinity in K and Q, which masking
/// keeps away by selection, and V without causal masking.
inline constexpr NonfiniteException kNonfiniteExceptions[] = {
    {"01_naive", "cublas", "the library multiplies all of P with all of V, masked weights of 0 included"},
    {"03_fa1_tiling", "", "every tile is multiplied whole, as in FlashAttention-1"},
    {"04_fa2_loop_swap", "", "diagonal tiles are multiplied whole, as in FlashAttention-2"},
    {"05_fa2_warp_partitioning", "", "diagonal tiles are multiplied whole, as in FlashAttention-2"},
    {"06_fa3_tma", "", "diagonal tiles are multiplied whole, as in FlashAttention-2"},
    {"07_fa3_wgmma", "", "diagonal tiles are multiplied whole, as in FlashAttention-3"},
    {"08_fa3_pipeline", "", "diagonal tiles are multiplied whole, as in FlashAttention-3"},
};

/// Runs the chapter on inputs with NaN and infinity in one key row or query row. Each failure is one line.
std::vector<std::string> nonfinite_failures(const Chapter& chapter, const LaunchOptions& variant, Device& device);

}  // namespace flash::test
