// Ten thousand launches of each kernel with asynchronous copies and products leave the same bits: a race that the
// simulation does not know of would show sooner or later.
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"
#include "tests/support/skip.hpp"

using namespace flash;
using namespace flash::test;

TEST_CASE("Hopper's chapters leave the same bits in ten thousand launches", "[chapters]") {
  constexpr int kLaunches = 10000;
  const std::unique_ptr<Device> device = make_gpu();
  int launched = 0;
  for (const Chapter* chapter : chapters_under_test()) {
    if (!chapter->info.needs.exactly || !capability_refusal(*chapter, device->limits()).empty()) continue;
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::gpu)) {
      // Several tiles for some blocks of a persistent grid and none for others' last turn; a tail in each tensor.
      for (const Problem& problem :
           {Problem{1, 3, 1, 300, 777, 64, true, DType::fp16}, Problem{2, 40, 40, 520, 520, 128, true, DType::bf16}}) {
        const LaunchOptions options = resolve(*chapter, problem, variant, device->limits());
        INFO(describe(*chapter, options) << ": " << problem.describe());
        const int launches = problem.batch == 1 ? kLaunches : kLaunches / 10;
        CHECK(launches_that_differ(*chapter, options, make_case_input({problem}), *device, launches) == 0);
        ++launched;
      }
    }
  }
  if (launched == 0) skip("no chapter for Hopper alone, or no Hopper GPU");
}
