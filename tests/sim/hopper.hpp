// What the tests of the simulated GPU's Hopper part share.
#pragma once

#include <algorithm>

#include "common/kernel/kernel.hpp"
#include "tests/sim/harness.hpp"

namespace flash::test {

/// A map of a contiguous matrix, of which one copy moves `box_rows` by `box_cols`.
template <typename T>
sim::TensorMap map_of(Tensor<T>& tensor, int box_rows, int box_cols, Swizzle swizzle = Swizzle::none) {
  const TensorRef ref = tensor.ref();
  TensorMapSpec spec;
  spec.tensor = ref.name;
  spec.data = ref.data;
  spec.element_bytes = ref.element_bytes;
  spec.rank = 2;
  spec.extent[0] = ref.cols;
  spec.extent[1] = ref.rows;
  spec.stride[0] = ref.element_bytes;
  spec.stride[1] = ref.row_stride * ref.element_bytes;
  spec.box[0] = box_cols;
  spec.box[1] = box_rows;
  spec.swizzle = swizzle;
  return sim::Machine(0, 1).tensor_map(spec);
}

/// The launch must end in a fault of one of these kinds whose report has all of the texts, whatever the schedule.
template <typename... Parameters, typename... Arguments>
void expect_one_of(const std::vector<std::string>& kinds, const std::vector<std::string>& texts,
                   const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    INFO("schedule seed " << seed);
    sim::Machine machine(seed, 1);
    const std::optional<Fault> fault = fault_of(machine, config, kernel, arguments...);
    REQUIRE(fault.has_value());
    INFO(fault->what());
    CHECK(std::find(kinds.begin(), kinds.end(), fault->kind) != kinds.end());
    for (const std::string& text : texts) {
      INFO("missing: " << text);
      CHECK(contains(fault->what(), text));
    }
  }
}

/// The same where the schedule makes no difference.
template <typename... Parameters, typename... Arguments>
void expect_fault(const std::string& kind, const std::vector<std::string>& texts, const LaunchConfig& config,
                  void (*kernel)(Parameters...), Arguments&&... arguments) {
  expect_one_of({kind}, texts, config, kernel, std::forward<Arguments>(arguments)...);
}

/// The launch must end without one, whatever the schedule.
template <typename... Parameters, typename... Arguments>
void expect_clean(const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("schedule seed " << seed);
    sim::Machine machine(seed, 1);
    const std::optional<Fault> fault = fault_of(machine, config, kernel, arguments...);
    if (fault) FAIL_CHECK(fault->what());
  }
}

}  // namespace flash::test
