// The harness that all chapters are tested with fails what it must fail: launches that do something wrong on purpose.
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

namespace {

const Chapter& chapter_under_test() { return chapters().front(); }

void honest(const AttentionCall& call, const LaunchOptions& options, Device& device) {
  chapter_under_test().launch_sim(call, options, device);
}

std::uint16_t* elements(const TensorRef& t) { return static_cast<std::uint16_t*>(t.data); }

std::string failure_of(LaunchFunction launch, Placement placement = Placement::padded) {
  const Problem problem{2, 2, 1, 7, 9, 64, true, DType::fp16};
  sim::Machine machine;
  const LaunchOptions options = resolve(chapter_under_test(), problem, {});
  return run_case(chapter_under_test(), launch, options, machine, make_case_input({problem}), placement).failure;
}

}  // namespace

TEST_CASE("the harness passes an honest launch wherever the tensors lie", "[harness]") {
  for (const Placement placement : kPlacements) CHECK(failure_of(honest, placement) == "");
}

TEST_CASE("the harness sees a launch that does nothing", "[harness]") {
  CHECK(failure_of([](const AttentionCall&, const LaunchOptions&, Device&) {}).find("nan, expected") !=
        std::string::npos);
}

TEST_CASE("the harness sees writes between the rows, around the tensors and into the inputs", "[harness]") {
  const LaunchFunction between = [](const AttentionCall& call, const LaunchOptions& options, Device& device) {
    honest(call, options, device);
    elements(call.o)[call.o.cols] = 0;
  };
  const LaunchFunction before = [](const AttentionCall& call, const LaunchOptions& options, Device& device) {
    honest(call, options, device);
    elements(call.o)[-1] = 0;
  };
  const LaunchFunction behind = [](const AttentionCall& call, const LaunchOptions& options, Device& device) {
    honest(call, options, device);
    elements(call.lse)[call.lse.span_bytes() / 2] = 0;
  };
  const LaunchFunction input = [](const AttentionCall& call, const LaunchOptions& options, Device& device) {
    honest(call, options, device);
    elements(call.v)[3] ^= 1;
  };
  CHECK(failure_of(between).find("O: the 16 bits at element 64 were overwritten") == 0);
  CHECK(failure_of(before).find("O: the 16 bits at element -1 were overwritten") == 0);
  CHECK(failure_of(behind).find("LSE: the 16 bits at element 56 were overwritten") == 0);
  CHECK(failure_of(input).find("V: the 16 bits at element 3 were overwritten") == 0);
}

TEST_CASE("the harness sees one wrong element and one sector too many", "[harness]") {
  const LaunchFunction wrong = [](const AttentionCall& call, const LaunchOptions& options, Device& device) {
    honest(call, options, device);
    elements(call.o)[call.o.batch_stride + 6 * call.o.row_stride + call.o.head_stride + 63] ^= 0x2000;
  };
  const LaunchFunction twice = [](const AttentionCall& call, const LaunchOptions& options, Device& device) {
    honest(call, options, device);
    honest(call, options, device);
  };
  CHECK(failure_of(wrong).find("O[batch 1, row 6, head 1, dim 63]") == 0);
  CHECK(failure_of(twice).find(" read: counted") != std::string::npos);
}

TEST_CASE("the harness sees a result that changes from run to run", "[harness]") {
  Chapter chapter = chapter_under_test();
  chapter.launch_sim = [](const AttentionCall& call, const LaunchOptions& options, Device& device) {
    static int launches = 0;
    honest(call, options, device);
    elements(call.o)[0] ^= std::uint16_t(launches++ & 1);  // within the tolerance
  };
  const Case c{{1, 1, 1, 7, 9, 64, true, DType::fp16}};
  sim::Machine machine;
  const std::string failure = matrix_failure({&chapter, {chapter.info.variants[0].name}, &c}, machine, &machine);
  CHECK(failure.find("not the same bits the second time: element 0 of O") == 0);
}

TEST_CASE("the matrix has the shapes that matter", "[harness]") {
  const std::vector<Case> cases = matrix_cases();
  const auto count = [&](auto&& holds) {
    int n = 0;
    for (const Case& c : cases) n += holds(c);
    return n;
  };
  CHECK(cases.size() > 100);
  CHECK(count([](const Case& c) { return c.problem.causal && c.problem.seq_q > c.problem.seq_kv; }) > 10);
  CHECK(count([](const Case& c) { return c.problem.causal && c.problem.seq_q < c.problem.seq_kv; }) > 10);
  CHECK(count([](const Case& c) { return c.problem.heads != c.problem.kv_heads; }) > 20);
  CHECK(count([](const Case& c) { return c.problem.seq_q % 2 == 1 && c.problem.seq_kv % 2 == 1; }) > 20);
  CHECK(count([](const Case& c) { return c.problem.seq_q > 256 || c.problem.seq_kv > 256; }) > 5);
  CHECK(count([](const Case& c) { return c.problem.dtype == DType::bf16; }) > 30);
  for (const Placement placement : kPlacements) {
    CHECK(count([&](const Case& c) { return c.placement == placement && c.problem.head_dim % 64 == 0; }) > 10);
  }
  for (const std::int64_t head_dim : {8, 64, 128, 256}) {
    CHECK(count([&](const Case& c) { return c.problem.head_dim == head_dim; }) > 0);
  }
}
