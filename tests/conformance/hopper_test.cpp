// Hopper's primitives in the simulation: the same bits whatever the schedule. What they are is held by tests/sim.
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/conformance/primitives.hpp"

namespace flash::test {
namespace {

TEST_CASE("what Hopper's primitives leave does not depend on the schedule") {
  sim::Machine in_order(0, 1), shuffled(7, 1);
  const std::vector<Output> first = run_hopper_sim(in_order), second = run_hopper_sim(shuffled);
  REQUIRE(first.size() == 30);  // 5 ranks with 4 swizzles, 3 layouts, votes, 6 pairs of operands
  for (std::size_t i = 0; i < first.size(); ++i) {
    INFO(first[i].name);
    CHECK(first[i].name == second[i].name);
    CHECK(first[i].words == second[i].words);
  }
}

}  // namespace
}  // namespace flash::test
