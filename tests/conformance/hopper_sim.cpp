#include "tests/conformance/hopper.cuh"

namespace flash::test {
std::vector<Output> run_hopper_sim(Device& device) {
  return sim::conformance::run_hopper(static_cast<sim::Machine&>(device));
}
}  // namespace flash::test
