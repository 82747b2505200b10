#include "tests/support/nonfinite.hpp"

#include "common/sim/machine.hpp"
#include "tests/catch.hpp"

using namespace flash;
using namespace flash::test;

TEST_CASE("NaN and infinity reach exactly the rows that see them, as in the reference", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      sim::Machine machine;
      const std::vector<std::string> failures = nonfinite_failures(*chapter, variant, machine);
      for (const std::string& failure : failures) FAIL_CHECK(failure);
      CHECK(failures.empty());
    }
  }
}
