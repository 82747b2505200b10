#include "tests/conformance/primitives.cuh"

namespace flash::test {
std::vector<Output> run_primitives_gpu(Device& device) {
  return gpu::conformance::run(static_cast<gpu::Machine&>(device));
}
}  // namespace flash::test
