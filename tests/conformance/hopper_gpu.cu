#include "tests/conformance/hopper.cuh"

namespace flash::test {
std::vector<Output> run_hopper_gpu(Device& device) {
  return gpu::conformance::run_hopper(static_cast<gpu::Machine&>(device));
}
}  // namespace flash::test
