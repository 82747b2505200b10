// K and V that are one for all heads or all batches, with a stride of 0 there, as torch.expand gives: shared by the
// tests on both machines.
#pragma once

#include <string>
#include <vector>

#include "tests/support/attention.hpp"

namespace flash::test {

/// Runs the chapter with K and V expanded over heads, over batches and over both, and with strides of 0 where there is
/// one batch, for each of `head_dims` that it takes. Each failure is one line.
std::vector<std::string> expanded_failures(const Chapter& chapter, const LaunchOptions& variant, Device& device,
                                           const std::vector<std::int64_t>& head_dims);

}  // namespace flash::test
