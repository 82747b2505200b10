// Hopper's primitives on the GPU against the simulation, bit for bit.
#include <fmt/format.h>

#include "tests/catch.hpp"
#include "tests/conformance/primitives.hpp"
#include "tests/support/skip.hpp"

namespace flash::test {
namespace {

TEST_CASE("Hopper's primitives leave the same bits on the GPU and in the simulation") {
  const std::unique_ptr<Device> device = make_gpu(), simulation = make_simulated_gpu(0);
  if (device->limits().capability != 90) {
    skip("a GPU of compute capability 9.0 is needed");
    return;
  }
  const std::vector<Output> gpu = run_hopper_gpu(*device), sim = run_hopper_sim(*simulation);
  REQUIRE(gpu.size() == sim.size());
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    INFO(gpu[i].name);
    REQUIRE(gpu[i].name == sim[i].name);
    REQUIRE(gpu[i].words.size() == sim[i].words.size());
    std::size_t different = 0, first = 0;
    for (std::size_t j = 0; j < gpu[i].words.size(); ++j) {
      if (gpu[i].words[j] != sim[i].words[j] && different++ == 0) first = j;
    }
    INFO(different << " of " << gpu[i].words.size() << " words differ, the first is " << first);
    CHECK(different == 0);
  }
}

}  // namespace
}  // namespace flash::test
