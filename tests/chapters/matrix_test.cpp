// Every chapter, variant and tile on the simulated GPU over a matrix of shapes: right in full, nothing written outside
// the outputs, nothing used outside the inputs, the bytes as predicted, the same bits in another schedule.
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

namespace {

/// Runs the cases for every chapter and variant, several at once.
void run_all(const std::vector<Case>& cases) {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      const std::vector<MatrixRun> runs = matrix_runs(*chapter, variant, cases);
      std::vector<std::string> failures(runs.size());
      parallel_for(std::int64_t(runs.size()), 0, [&](std::int64_t i) {
        const MatrixRun& run = runs[std::size_t(i)];
        sim::Machine in_order(0, 1), shuffled(run.c->seed + 1, 1);
        failures[std::size_t(i)] = matrix_failure(run, in_order, shuffled);
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
