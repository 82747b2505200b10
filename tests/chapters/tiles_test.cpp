// Which compiled tile a chapter takes when none is asked for.
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

TEST_CASE("the default tile is the first that the chapter does not refuse for the problem", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    const std::vector<TileShape>& tiles = chapter->info.tiles;
    for (const std::int64_t head_dim : {64, 128, 256}) {
      Problem problem;
      problem.head_dim = head_dim;
      const LaunchOptions chosen = resolve(*chapter, problem, {});
      INFO(describe(*chapter, chosen) << ", head-dim " << head_dim);
      if (tiles.empty()) {
        CHECK(chosen.block_q == 0);
        continue;
      }
      CHECK(chapter->info.refusal(problem, chosen).empty());
      for (const TileShape& tile : tiles) {
        if (tile.block_q == chosen.block_q && tile.block_kv == chosen.block_kv) break;
        LaunchOptions earlier = chosen;
        earlier.block_q = tile.block_q;
        earlier.block_kv = tile.block_kv;
        CHECK(!chapter->info.refusal(problem, earlier).empty());
      }
    }
  }
}
