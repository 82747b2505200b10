// Problems, tensor descriptions, and what a chapter makes of a launch's options.
#include "common/base/problem.hpp"

#include <limits>
#include <string>

#include "common/base/chapter.hpp"
#include "common/base/error.hpp"
#include "tests/catch.hpp"

using namespace flash;

namespace {

/// The UsageError's message of `call`, or "accepted".
template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal_of(const Problem& problem) {
  return refusal_of([&] { problem.validate(); });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Chapter tiled_chapter() {
  Chapter chapter;
  chapter.name = "03_example";
  chapter.info.variants = {{"first", "the default", false}, {"second", "another", false}, {"third", "more", true}};
  chapter.info.tiles = {{64, 64}, {128, 64}, {128, 32}};
  chapter.info.refusal = [](const Problem& problem, const LaunchOptions& options) -> std::string {
    if (options.block_q == 128 && problem.head_dim == 256) return "a tile of 128 rows takes a head-dim up to 128";
    return "";
  };
  return chapter;
}

}  // namespace

TEST_CASE("valid problems pass", "[problem]") {
  CHECK(refusal_of(Problem{}) == "accepted");
  CHECK(refusal_of(Problem{2, 12, 4, 197, 1, 8, true, DType::bf16}) == "accepted");
  CHECK(refusal_of(Problem{1, 1, 1, std::int64_t(1) << 40, std::int64_t(1) << 40, 64}) == "accepted");
}

TEST_CASE("an invalid problem is refused with what would be right", "[problem]") {
  CHECK(refusal_of(Problem{0}) == "batch is 0: it must be at least 1");
  CHECK(refusal_of(Problem{1, 0}) == "heads is 0: it must be at least 1");
  CHECK(refusal_of(Problem{1, 1, -1}) == "kv-heads is -1: it must be at least 1");
  CHECK(refusal_of(Problem{1, 1, 1, 0}) == "seq is 0: it must be at least 1");
  CHECK(refusal_of(Problem{1, 1, 1, 1, 0}) == "seq-kv is 0: it must be at least 1");
  CHECK(refusal_of(Problem{1, 1, 1, 1, 1, 0}) == "head-dim is 0: it must be at least 1");
  CHECK(refusal_of(Problem{1, 6, 4}) == "heads 6 is not a multiple of kv-heads 4: use --kv-heads 1, 2, 3 or 6");
  CHECK(refusal_of(Problem{1, 2, 4}) == "heads 2 is not a multiple of kv-heads 4: use --kv-heads 1 or 2");
  CHECK(refusal_of(Problem{1, 1, 2}) == "heads 1 is not a multiple of kv-heads 2: use --kv-heads 1");
  CHECK(refusal_of(Problem{1, 48, 7}) ==
        "heads 48 is not a multiple of kv-heads 7: use --kv-heads 6, 8 or another divisor of 48");
  CHECK(refusal_of(Problem{1, 48, 96}) ==
        "heads 48 is not a multiple of kv-heads 96: use --kv-heads 24, 48 or another divisor of 48");
  CHECK(refusal_of(Problem{1, 1, 1, 1, 1, 63}) == "head-dim 63 is not a multiple of 8: use --head-dim 56 or 64");
  CHECK(refusal_of(Problem{1, 1, 1, 1, 1, 5}) == "head-dim 5 is not a multiple of 8: use --head-dim 8");
}

TEST_CASE("sizes that overflow are refused, not wrapped", "[problem]") {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kHuge = std::int64_t(1) << 32;
  CHECK(contains(refusal_of(Problem{kHuge, 1, 1, kHuge, 1, 64}), "more than 2^62 elements"));
  CHECK(contains(refusal_of(Problem{1, 1, 1, 1, kMax, 64}), "K of batch 1"));
  CHECK(contains(refusal_of(Problem{1, 1, 1, 1, 1, kMax}), "more than 2^62 elements"));
  CHECK(contains(refusal_of(Problem{1, kMax, 2}), "or another divisor of it"));
  CHECK(contains(refusal_of([] { sequence_tensor("Q", kHuge, kHuge, 1, 1); }), "64-bit"));
  CHECK(contains(refusal_of([] { workspace_tensor("S", 1, kHuge, kHuge / 64, 1, 4); }), "64-bit"));
  CHECK(contains(refusal_of([] { workspace_tensor("S", 1, 1, 1, kMax, 4); }), "64-bit"));
  CHECK(contains(refusal_of([] { statistics_tensor("LSE", kHuge, kHuge, 1); }), "64-bit"));
}

TEST_CASE("a problem describes itself", "[problem]") {
  CHECK(Problem{1, 16, 16, 4096, 4096, 128, true, DType::fp16}.describe() ==
        "b=1 h=16 kv=16 nq=4096 nk=4096 d=128 fp16 causal");
  CHECK(Problem{2, 9, 3, 5, 7, 64, false, DType::bf16}.describe() == "b=2 h=9 kv=3 nq=5 nk=7 d=64 bf16");
}

TEST_CASE("causal rows see keys aligned bottom-right", "[problem]") {
  const Problem more_keys{1, 1, 1, 2, 5, 8, true};
  CHECK(more_keys.visible_keys(0) == 4);
  CHECK(more_keys.visible_keys(1) == 5);
  const Problem more_queries{1, 1, 1, 5, 2, 8, true};
  CHECK(more_queries.visible_keys(0) == 0);
  CHECK(more_queries.visible_keys(2) == 0);
  CHECK(more_queries.visible_keys(3) == 1);
  CHECK(more_queries.visible_keys(4) == 2);
  const Problem full{1, 1, 1, 5, 2, 8, false};
  CHECK(full.visible_keys(0) == 2);
}

TEST_CASE("tensors are laid out as described", "[problem]") {
  const TensorRef q = sequence_tensor("Q", 2, 3, 4, 8);
  CHECK(q.cols == 8);
  CHECK(q.head_stride == 8);
  CHECK(q.row_stride == 32);
  CHECK(q.batch_stride == 96);
  CHECK(q.span_bytes() == 2 * 3 * 4 * 8 * 2);

  const TensorRef s = workspace_tensor("S", 2, 3, 4, 17, 2);  // 17 halves are padded to 32: two sectors
  CHECK(s.cols == 17);
  CHECK(s.row_stride == 32);
  CHECK(s.head_stride == 4 * 32);
  CHECK(s.batch_stride == 3 * 4 * 32);
  CHECK(workspace_tensor("S", 1, 1, 1, 16, 2).row_stride == 16);
  CHECK(workspace_tensor("S", 1, 1, 1, 9, 4).row_stride == 16);
  CHECK(workspace_tensor("S", 1, 1, 1, 8, 4).row_stride == 8);

  const TensorRef lse = statistics_tensor("LSE", 2, 3, 5);
  CHECK(lse.rows == 1);
  CHECK(lse.cols == 5);
  CHECK(lse.head_stride == 5);
  CHECK(lse.batch_stride == 15);
  CHECK(lse.span_bytes() == 2 * 3 * 5 * 4);

  const AttentionCall call = contiguous_call(Problem{2, 12, 4, 197, 50, 64});
  CHECK(call.q.rows == 197);
  CHECK(call.q.heads == 12);
  CHECK(call.k.rows == 50);
  CHECK(call.v.heads == 4);
  CHECK(call.o.span_bytes() == call.q.span_bytes());
  CHECK(call.lse.span_bytes() == 2 * 12 * 197 * 4);
  CHECK(call.q.data == nullptr);
}

TEST_CASE("traffic adds up by tensor in the order of the argument", "[chapter]") {
  Traffic traffic;
  traffic.add("Q", 10, 0);
  traffic.add("O", 0, 5);
  traffic.add("Q", 1, 2);
  REQUIRE(traffic.tensors.size() == 2);
  CHECK(traffic.tensors[0].tensor == "Q");
  CHECK(traffic.tensors[0].read == 11);
  CHECK(traffic.tensors[0].written == 2);
  CHECK(traffic.read() == 11);
  CHECK(traffic.written() == 7);
  CHECK(traffic.total() == 18);
}

TEST_CASE("options resolve to the first variant and the first tile", "[chapter]") {
  const LaunchOptions options = resolve(tiled_chapter(), Problem{}, {});
  CHECK(options.variant == "first");
  CHECK(options.block_q == 64);
  CHECK(options.block_kv == 64);
}

TEST_CASE("one tile extent alone takes the first tile that has it", "[chapter]") {
  CHECK(resolve(tiled_chapter(), Problem{}, {"", 128, 0}).block_kv == 64);
  CHECK(resolve(tiled_chapter(), Problem{}, {"", 0, 32}).block_q == 128);
  CHECK(resolve(tiled_chapter(), Problem{}, {"", 128, 32}).block_kv == 32);
}

TEST_CASE("an option that the chapter has not is refused with those it has", "[chapter]") {
  const auto refusal = [](const Problem& problem, const LaunchOptions& options) {
    return refusal_of([&] { resolve(tiled_chapter(), problem, options); });
  };
  CHECK(refusal({}, {"fourth", 0, 0}) == "03_example has no variant 'fourth': use --variant first, second or third");
  CHECK(refusal({}, {"", 64, 32}) ==
        "03_example has no tile with --block-q 64 --block-kv 32: use 64x64, 128x64 or 128x32 (block-q x block-kv)");
  CHECK(refusal({}, {"", -1, 0}) ==
        "03_example has no tile with --block-q -1: use 64x64, 128x64 or 128x32 (block-q x block-kv)");
  CHECK(refusal(Problem{1, 1, 1, 1, 1, 256}, {"", 128, 0}) == "a tile of 128 rows takes a head-dim up to 128");
  CHECK(contains(refusal(Problem{0}, {}), "batch"));
  CHECK(tiled_chapter().variant("third").gpu_only);
}

TEST_CASE("a chapter without tiles refuses a tile", "[chapter]") {
  Chapter chapter;
  chapter.name = "01_example";
  chapter.info.variants = {{"only", "", false}};
  CHECK(resolve(chapter, Problem{}, {}).block_q == 0);
  CHECK(refusal_of([&] {
          resolve(chapter, Problem{}, {"", 64, 0});
        }) == "01_example has no tiles to choose: leave --block-q and --block-kv out");
}

TEST_CASE("sectors count the 32-byte pieces that an access touches", "[chapter]") {
  CHECK(sectors(0, 0) == 0);
  CHECK(sectors(0, 1) == 1);
  CHECK(sectors(0, 32) == 1);
  CHECK(sectors(31, 2) == 2);
  CHECK(sectors(16, 64) == 3);
}
