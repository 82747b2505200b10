#include "tests/catch.hpp"
#include "tests/support/nonfinite.hpp"

using namespace flash;
using namespace flash::test;

TEST_CASE("NaN and infinity reach exactly the rows that see them on a GPU", "[chapters]") {
  const std::unique_ptr<Device> device = make_gpu();
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::gpu)) {
      const std::vector<std::string> failures = nonfinite_failures(*chapter, variant, *device);
      for (const std::string& failure : failures) FAIL_CHECK(failure);
      CHECK(failures.empty());
    }
  }
}
