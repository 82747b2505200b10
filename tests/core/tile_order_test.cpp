// Division by multiplication, and the order of tiles that is computed with it.
#include "common/kernel/tile_order.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/kernel/divisor.hpp"
#include "tests/catch.hpp"
#include "tests/conformance/primitives.hpp"

namespace flash {
namespace {

constexpr int Most = std::numeric_limits<int>::max();

static_assert(std::is_trivially_copyable_v<Divisor> && std::is_default_constructible_v<Divisor>);

/// Quotients at 0, at the largest number, around multiples of the divisor and at random; how many are wrong.
int wrong_quotients(int by) {
  const Divisor divisor(by);
  int wrong = 0;
  const auto check = [&](std::int64_t n) {
    if (n >= 0 && n <= Most) wrong += divisor.quotient(int(n)) != int(n) / by;
  };
  const std::int64_t multiples = Most / by;
  for (std::int64_t i = 0; i < 100; ++i) {
    for (const std::int64_t multiple : {i, multiples - i, multiples / 2 + i, multiples / 3 - i}) {
      for (int beside = -2; beside <= 2; ++beside) check(multiple * by + beside);
    }
    check(i);
    check(Most - i);
    check(std::int64_t(test::hash(40, std::uint64_t(i)) >> 33));
  }
  return wrong;
}

TEST_CASE("a divisor divides every number below 2^31 exactly, at the edges too") {
  std::vector<int> divisors = {1, 2, 3, 5, 7, 10, 100, 641, 65535, 65537, Most, Most - 1, Most - 2, Most / 2, Most / 3};
  for (int power = 2; power <= 30; ++power) {
    for (int beside = -1; beside <= 1; ++beside) divisors.push_back((1 << power) + beside);
  }
  for (std::uint64_t i = 0; i < 2000; ++i) {
    divisors.push_back(1 + int((test::hash(41, i) >> 33) % (std::uint64_t(1) << (1 + i % 30))));
  }
  for (const int by : divisors) {
    INFO("divisor " << by);
    CHECK(wrong_quotients(by) == 0);
  }
  CHECK(Divisor().quotient(Most) == Most);
}

/// Where the tile of a block in a wave lies, by the formula with / and %; no value where it has none.
struct PlainTile {
  bool exists;
  Place place;
};
PlainTile plain_tile(const TileOrder& order, int wave, int block, int blocks) {
  const int group = wave / order.group_waves, in_group = wave % order.group_waves;
  const int heads_left = order.batch_heads - group * order.group_heads;
  const int heads_of_group = heads_left < order.group_heads ? heads_left : order.group_heads;
  const bool from_right = order.causal && in_group % 2 == 1;
  const int place = (block + group * order.group_idle) % blocks;
  const int tile = in_group * blocks + (from_right ? blocks - 1 - place : place);
  if (tile >= heads_of_group * order.q_blocks) return {false, {}};
  const int in_order = order.causal ? tile % heads_of_group : tile / order.q_blocks;
  const int batch_head = group * order.group_heads + in_order;
  const int q_block = order.causal ? order.q_blocks - 1 - tile / heads_of_group : tile % order.q_blocks;
  return {true, {batch_head / order.heads, batch_head % order.heads, q_block}};
}

TEST_CASE("a persistent grid goes through the tiles in the order of the plain formula, and meets each of them once") {
  bool several_groups = false, short_last_group = false;
  for (const bool causal : {false, true}) {
    for (const auto& [batch, heads, seq_q, seq_kv, blocks] :
         {std::array{1, 1, 1, 1, 1}, std::array{2, 3, 500, 500, 7}, std::array{1, 40, 1024, 8192, 13},
          std::array{3, 7, 2048, 16384, 16}, std::array{1, 5, 130, 70, 132}, std::array{2, 16, 4096, 32768, 132}}) {
      Problem problem;
      problem.batch = batch;
      problem.heads = problem.kv_heads = heads;
      problem.seq_q = seq_q;
      problem.seq_kv = seq_kv;
      problem.head_dim = 128;
      problem.causal = causal;
      const TileOrder order(AttentionShape(problem), 128, blocks);
      INFO(problem.describe() << ", " << blocks << " blocks");
      several_groups |= order.last_group > 0;
      short_last_group |= order.last_heads < order.group_heads;
      std::vector<int> met(std::size_t(batch * heads * order.q_blocks), 0);
      int different = 0;
      for (int block = 0; block < blocks; ++block) {
        int wave = 0;
        Place at{};
        for (int plain_wave = 0; plain_wave < order.waves; ++plain_wave) {
          const PlainTile plain = plain_tile(order, plain_wave, block, blocks);
          if (!plain.exists) continue;
          REQUIRE(order.find(wave, block, blocks, at));
          different += wave != plain_wave || at.batch != plain.place.batch || at.head != plain.place.head ||
                       at.q_block != plain.place.q_block;
          met[std::size_t((plain.place.batch * heads + plain.place.head) * order.q_blocks + plain.place.q_block)] += 1;
          ++wave;
        }
        CHECK(!order.find(wave, block, blocks, at));
      }
      CHECK(different == 0);
      CHECK(met == std::vector<int>(met.size(), 1));
    }
  }
  CHECK(several_groups);
  CHECK(short_last_group);
}

TEST_CASE("causal tiles are dealt out evenly: no block of the grid has 1.5 % more keys than the mean") {
  for (const auto& [batch, heads, seq] : {std::array{8, 16, 2048}, std::array{4, 16, 4096}, std::array{1, 16, 16384}}) {
    Problem problem;
    problem.batch = batch;
    problem.heads = problem.kv_heads = heads;
    problem.seq_q = problem.seq_kv = seq;
    problem.head_dim = 128;
    problem.causal = true;
    const int blocks = 132;
    const TileOrder order(AttentionShape(problem), 128, blocks);
    std::int64_t most = 0, all = 0;
    for (int block = 0; block < blocks; ++block) {
      std::int64_t tiles_of_keys = 0;
      int wave = 0;
      for (Place at{}; order.find(wave, block, blocks, at); ++wave) tiles_of_keys += at.q_block + 1;
      most = std::max(most, tiles_of_keys);
      all += tiles_of_keys;
    }
    INFO(problem.describe());
    CHECK(double(most) * blocks <= 1.015 * double(all));
  }
}

}  // namespace
}  // namespace flash
