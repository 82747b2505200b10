// What a chapter predicts about its bytes, beside the comparison with the counted ones (matrix_test.cpp).
#include <chrono>

#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

namespace {

/// The chapter's call for the problem, with no memory behind the tensors.
AttentionCall call_without_memory(const Chapter& chapter, const Problem& problem, const LaunchOptions& options) {
  AttentionCall call = contiguous_call(problem);
  call.workspace = chapter.info.workspace(problem, options);
  return call;
}

std::int64_t bytes_of(const TensorRef& t) { return t.batch * t.heads * t.rows * t.cols * t.element_bytes; }

const TensorTraffic* line_of(const Traffic& traffic, const std::string& tensor) {
  const TensorTraffic* found = nullptr;
  for (const TensorTraffic& line : traffic.tensors) {
    if (line.tensor == tensor) {
      CHECK(found == nullptr);  // each tensor once
      found = &line;
    }
  }
  return found;
}

}  // namespace

TEST_CASE("the requested bytes can be predicted before there is memory", "[chapters]") {
  const Problem problem{2, 4, 2, 45, 70, 64, true, DType::fp16};
  const Input input = make_case_input({problem});
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      INFO(describe(*chapter, variant));
      const LaunchOptions options = resolve(*chapter, problem, variant);
      sim::Machine machine;
      const Outcome outcome =
          run_case(*chapter, chapter->launch_sim, options, machine, input, Placement::contiguous, {false, true});
      CHECK(outcome.failure == "");
      const auto predicted = chapter->info.requested(call_without_memory(*chapter, problem, options), options);
      REQUIRE(predicted);
      CHECK(difference(*outcome.counted, *predicted) == "");
    }
  }
}

TEST_CASE("compulsory bytes are each tensor once, whatever tensor a chapter keeps", "[chapters]") {
  const Problem problem{2, 4, 2, 48, 304, 64, false, DType::fp16};  // several tiles of keys for every chapter
  for (const Chapter* chapter : chapters_under_test()) {
    for (const Variant& variant : chapter->info.variants) {
      INFO(chapter->name << " " << variant.name);
      const LaunchOptions options = resolve(*chapter, problem, {variant.name});
      const AttentionCall call = call_without_memory(*chapter, problem, options);
      const Traffic compulsory = chapter->info.compulsory(call, options);
      for (const TensorRef* t : {&call.q, &call.k, &call.v}) {
        const TensorTraffic* line = line_of(compulsory, t->name);
        REQUIRE(line != nullptr);
        CHECK(line->read >= bytes_of(*t));  // more where a chapter reads it in several passes too long for a cache
        CHECK(line->written == 0);
      }
      for (const TensorRef* t : {&call.o, &call.lse}) {
        const TensorTraffic* line = line_of(compulsory, t->name);
        REQUIRE(line != nullptr);
        CHECK(line->written >= bytes_of(*t));
      }
      for (const TensorRef& t : call.workspace) CHECK(line_of(compulsory, t.name) != nullptr);
      if (const auto requested = chapter->info.requested(call, options)) {
        CHECK(requested->total() >= compulsory.total());
      }
    }
  }
}

TEST_CASE("a prediction for a long sequence takes a moment", "[chapters]") {
  const Problem problem{1, 16, 16, 16384, 16384, 128, true, DType::fp16};
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      INFO(describe(*chapter, variant));
      const LaunchOptions options = resolve(*chapter, problem, variant);
      const AttentionCall call = call_without_memory(*chapter, problem, options);
      const auto begin = std::chrono::steady_clock::now();
      CHECK(chapter->info.requested(call, options)->total() > 0);
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
    }
  }
}
