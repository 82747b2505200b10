// The matrix of matrix_test.cpp on a GPU, and problems of a size that only a GPU computes in a moment.
#include "common/program/run.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"
#include "tests/support/skip.hpp"

using namespace flash;
using namespace flash::test;

namespace {

void run_all(const std::vector<Case>& cases) {
  const std::unique_ptr<Device> device = make_gpu();
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::gpu)) {
      for (const MatrixRun& run : matrix_runs(*chapter, variant, cases)) {
        INFO(describe(*chapter, run.options) << ": " << run.c->describe());
        CHECK(matrix_failure(run, *device, device.get()) == "");
      }
    }
  }
}

}  // namespace

TEST_CASE("chapters are right on the matrix of shapes on a GPU", "[chapters]") { run_all(matrix_cases()); }

TEST_CASE("chapters are right for scores that are hard on a softmax on a GPU", "[chapters]") { run_all(score_cases()); }

TEST_CASE("chapters are right at the edges of each of their tiles on a GPU", "[chapters]") {
  const std::unique_ptr<Device> device = make_gpu();
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::gpu)) {
      for (const LaunchOptions& tile : tiles_for(*chapter, variant)) {
        for (const Case& c : tile_cases(*chapter, tile)) {
          INFO(describe(*chapter, tile) << ": " << c.describe());
          CHECK(run_failure({chapter, tile, &c}, *device) == "");
        }
      }
    }
  }
}

TEST_CASE("chapters lose nothing over many tiles and compute every tile of several rounds on a GPU", "[chapters]") {
  std::vector<Case> cases = long_cases();
  for (const int block_q : {64, 128, 256}) {
    for (const Case& c : order_cases(block_q)) cases.push_back(c);
  }
  run_all(cases);
}

TEST_CASE("chapters are right for longer sequences on a GPU", "[chapters]") {
  std::vector<Case> cases;
  for (const std::int64_t head_dim : {64, 128, 256}) {
    const DType dtype = head_dim == 128 ? DType::bf16 : DType::fp16;
    cases.push_back({{2, 4, 2, 1000, 1000, head_dim, true, dtype}, Placement::padded, Scores::normal, 21});
    cases.push_back({{1, 3, 1, 777, 1025, head_dim, false, dtype}, Placement::packed, Scores::outliers, 22});
    cases.push_back({{1, 2, 2, 1500, 500, head_dim, true, dtype}, Placement::heads_first, Scores::growing, 23});
    cases.push_back({{1, 4, 4, 4096, 4096, head_dim, false, dtype}, Placement::contiguous, Scores::normal, 24});
    cases.push_back({{1, 4, 1, 4095, 4097, head_dim, true, dtype}, Placement::sequence_first, Scores::normal, 25});
  }
  run_all(cases);
}
