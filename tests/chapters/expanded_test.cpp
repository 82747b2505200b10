#include "tests/support/expanded.hpp"
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"

using namespace flash;
using namespace flash::test;

TEST_CASE("K and V may be one for all heads or batches, with a stride of 0", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      sim::Machine machine;
      const bool by_default = variant.variant == chapter->info.variants[0].name;
      const std::vector<std::string> failures =
          expanded_failures(*chapter, variant, machine,
                            by_default ? std::vector<std::int64_t>{64, 128, 256} : std::vector<std::int64_t>{64});
      for (const std::string& failure : failures) FAIL_CHECK(failure);
      CHECK(failures.empty());
    }
  }
}
