#include "tests/conformance/primitives.cuh"

namespace flash::test {
std::vector<Output> run_primitives_sim(Device& device) {
  return sim::conformance::run(static_cast<sim::Machine&>(device));
}
}  // namespace flash::test
