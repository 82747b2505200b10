// The schedule of the simulated GPU is free where the hardware's is: no result and no count may depend on it.
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

TEST_CASE("schedule seeds 1 to 50 give the same bits and the same counts", "[chapters]") {
  constexpr std::int64_t kSeeds = 50;
  const std::vector<Case> cases{
      {{1, 2, 1, 21, 37, 64, true, DType::fp16}, Placement::contiguous, Scores::normal, 1},
      {{1, 1, 1, 10, 67, 128, false, DType::bf16}, Placement::padded, Scores::growing, 2},
      {{2, 1, 1, 3, 270, 64, false, DType::fp16}, Placement::heads_first, Scores::normal, 3},
  };
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      for (const Case& c : cases) {
        const LaunchOptions options = resolve(*chapter, c.problem, variant);
        const Input input = make_case_input(c);
        const auto run = [&](std::uint64_t seed, int host_threads) {
          sim::Machine machine(seed, host_threads);
          return run_case(*chapter, chapter->launch_sim, options, machine, input, c.placement, {seed == 0, seed == 0});
        };
        const Outcome in_order = run(0, 1);
        INFO(describe(*chapter, options) << ": " << c.describe());
        CHECK(in_order.failure == "");
        std::vector<std::string> failures(kSeeds + 1);
        const bool is_default = variant.variant == chapter->info.variants[0].name;
        parallel_for(kSeeds + 1, 0, [&](std::int64_t seed) {
          if (!is_default && seed % 2 == 1) return;  // variants for comparison: each second
          try {
            // Every fifth seed on several host threads, so that blocks interleave; seed 0 too.
            const Outcome outcome = run(std::uint64_t(seed), seed % 5 == 0 ? 3 : 1);
            std::string& failure = failures[std::size_t(seed)];
            failure = outcome.failure;
            if (failure.empty()) failure = difference(in_order, outcome);
            if (failure.empty()) failure = difference(*in_order.counted, *outcome.counted);
          } catch (const std::exception& error) {
            failures[std::size_t(seed)] = error.what();
          }
        });
        for (std::size_t seed = 0; seed < failures.size(); ++seed) {
          INFO("schedule seed " << seed);
          CHECK(failures[seed] == "");
        }
      }
    }
  }
}
