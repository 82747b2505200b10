#include "tests/catch.hpp"
#include "tests/support/expanded.hpp"
#include "tests/support/skip.hpp"

using namespace flash;
using namespace flash::test;

TEST_CASE("K and V may be one for all heads or batches, with a stride of 0, on a GPU", "[chapters]") {
  const std::unique_ptr<Device> device = make_gpu();
  int tested = 0;
  for (const Chapter* chapter : chapters_under_test()) {
    if (!capability_refusal(*chapter, device->limits()).empty()) continue;
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::gpu)) {
      const std::vector<std::string> failures = expanded_failures(*chapter, variant, *device, {64, 128, 256});
      for (const std::string& failure : failures) FAIL_CHECK(failure);
      CHECK(failures.empty());
      ++tested;
    }
  }
  if (tested == 0) skip("this GPU runs none of the chapters");
}
