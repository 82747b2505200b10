// Every chapter, variant and tile on the simulated GPU over a matrix of shapes: right in full, nothing written outside
// the outputs, nothing used outside the inputs, the bytes as predicted, the same bits in another schedule.
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

namespace {

/// The default variant runs every case; the variants for comparison share the work of two.
std::size_t step_of(const Chapter& chapter, const LaunchOptions& variant) {
  return variant.variant == chapter.info.variants[0].name ? 1
                                                          : std::max<std::size_t>(chapter.info.variants.size() - 1, 2);
}

/// Each run once on a device of its own, several at once.
void run_each(const std::vector<MatrixRun>& runs) {
  std::vector<std::string> failures(runs.size());
  parallel_for(std::int64_t(runs.size()), 0, [&](std::int64_t i) {
    sim::Machine machine(std::uint64_t(i), 1);
    failures[std::size_t(i)] = run_failure(runs[std::size_t(i)], machine);
  });
  for (std::size_t i = 0; i < runs.size(); ++i) {
    INFO(describe(*runs[i].chapter, runs[i].options) << ": " << runs[i].c->describe());
    CHECK(failures[i] == "");
  }
}

/// Runs the cases for every chapter and variant, several at once.
void run_all(const std::vector<Case>& cases) {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      const std::vector<MatrixRun> runs = matrix_runs(*chapter, variant, cases);
      std::vector<std::string> failures(runs.size());
      const std::size_t step = step_of(*chapter, variant);
      parallel_for(std::int64_t(runs.size()), 0, [&](std::int64_t i) {
        if (std::size_t(i) % step != 0) return;
        // Each third in two schedules, the others in one; schedule_test.cpp runs a few problems in fifty.
        const MatrixRun& run = runs[std::size_t(i)];
        sim::Machine in_order(0, 1), shuffled(run.c->seed + 1, 1);
        failures[std::size_t(i)] =
            i % 3 == 0 ? matrix_failure(run, in_order, &shuffled) : matrix_failure(run, shuffled, nullptr);
      });
      for (std::size_t i = 0; i < runs.size(); ++i) {
        INFO(describe(*chapter, runs[i].options) << ": " << runs[i].c->describe());
        CHECK(failures[i] == "");
      }
    }
  }
}

}  // namespace

TEST_CASE("chapters are right on the matrix of shapes, to the byte and to the bit", "[chapters]") {
  run_all(matrix_cases());
}

TEST_CASE("chapters are right for scores that are hard on a softmax", "[chapters]") { run_all(score_cases()); }

TEST_CASE("chapters are right at the edges of each of their tiles", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      for (const LaunchOptions& tile : tiles_for(*chapter, variant)) {
        const std::vector<Case> cases = tile_cases(*chapter, tile);
        std::vector<MatrixRun> runs;
        for (std::size_t i = 0; i < cases.size(); i += step_of(*chapter, variant))
          runs.push_back({chapter, tile, &cases[i]});
        run_each(runs);
      }
    }
  }
}

TEST_CASE("chapters lose nothing over many tiles", "[chapters]") {
  const std::vector<Case> cases = long_cases();
  for (const Chapter* chapter : chapters_under_test()) {
    if (chapter->info.tiles.empty()) continue;
    std::vector<MatrixRun> runs;
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      for (const LaunchOptions& tile : tiles_for(*chapter, variant)) {
        for (const Case& c : cases) {
          if (chapter->info.refusal(c.problem, tile).empty()) runs.push_back({chapter, tile, &c});
        }
      }
    }
    CHECK(!runs.empty());
    run_each(runs);
  }
}

TEST_CASE("chapters with tiles compute every tile of a grid of several rounds", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    if (chapter->info.tiles.empty()) continue;
    const LaunchOptions options = resolve(*chapter, Problem{}, {});  // variants for comparison have the same order
    const std::vector<Case> cases = order_cases(options.block_q);
    std::vector<MatrixRun> runs;
    for (const Case& c : cases) runs.push_back({chapter, options, &c});
    run_each(runs);
  }
}

TEST_CASE("chapters take the usual head dimensions in both types", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      for (const std::int64_t head_dim : {64, 128, 256}) {
        for (const DType dtype : {DType::fp16, DType::bf16}) {
          INFO(describe(*chapter, variant) << " d=" << head_dim);
          CHECK_NOTHROW(resolve(*chapter, {1, 1, 1, 100, 100, head_dim, true, dtype}, variant));
        }
      }
    }
  }
}
