// The shared memory that a chapter says its blocks take, by which a device picks its tile, beside what its launches ask
// for.
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

TEST_CASE("blocks take the shared memory that the chapter says", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      for (const std::int64_t head_dim : {64, 128, 256}) {
        const Problem problem{1, 1, 1, 1, 1, head_dim, false, DType::fp16};
        const Input input = make_case_input({problem});
        std::vector<TileShape> tiles = chapter->info.tiles;
        if (tiles.empty()) tiles.push_back({0, 0});
        int runs = 0;
        for (const TileShape& tile : tiles) {
          LaunchOptions options = variant;
          options.block_q = tile.block_q;
          options.block_kv = tile.block_kv;
          if (chapter->info.refusal && !chapter->info.refusal(problem, options).empty()) continue;
          INFO(describe(*chapter, options) << ", head-dim " << head_dim);
          sim::Machine machine;
          CHECK(run_case(*chapter, chapter->launch_sim, options, machine, input, Placement::contiguous).failure == "");
          const std::int64_t taken = machine.counters().shared_bytes;
          // Without a prediction it is too little to matter on any GPU.
          if (!chapter->info.shared_bytes) CHECK(taken <= 16 * 1024);
          if (chapter->info.shared_bytes) {
            CHECK(taken == std::int64_t(chapter->info.shared_bytes(problem, options)));
          }
          ++runs;
        }
        CHECK(runs > 0);
      }
    }
  }
}
