// What each chapter does on GPUs other than the one that it was written for, without having them: which tile it takes,
// and that it is right, or says what it needs.
#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.hpp"
#include "common/sim/machine.hpp"
#include "tests/catch.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

namespace {

constexpr std::int64_t kHeadDims[] = {64, 128, 256};

Problem problem_of(std::int64_t head_dim) { return {1, 1, 1, 37, 150, head_dim, true, DType::fp16}; }

/// Whether a block of the GPU has room for the chapter's storage.
bool fits(const Chapter& chapter, const Problem& problem, const LaunchOptions& options, const DeviceLimits& limits) {
  return !chapter.info.shared_bytes || chapter.info.shared_bytes(problem, options) <= limits.shared_bytes;
}

/// The tiles that the chapter takes for the problem, in its order; one without a shape where it has none to choose.
std::vector<LaunchOptions> tiles_taken(const Chapter& chapter, const Problem& problem, const LaunchOptions& variant) {
  if (chapter.info.tiles.empty()) return {variant};
  std::vector<LaunchOptions> list;
  for (const TileShape& tile : chapter.info.tiles) {
    const LaunchOptions options{variant.variant, tile.block_q, tile.block_kv};
    if (chapter.info.refusal(problem, options).empty()) list.push_back(options);
  }
  return list;
}

}  // namespace

TEST_CASE("on each GPU a chapter takes the first of its tiles that finds room there", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      for (const GpuProfile& gpu : gpu_profiles()) {
        if (!capability_refusal(*chapter, gpu.limits).empty()) continue;
        for (const std::int64_t head_dim : kHeadDims) {
          const Problem problem = problem_of(head_dim);
          INFO(describe(*chapter, variant) << " on the " << gpu.title << ", head-dim " << head_dim);
          const std::vector<LaunchOptions> tiles = tiles_taken(*chapter, problem, variant);
          const auto first = std::find_if(tiles.begin(), tiles.end(), [&](const LaunchOptions& options) {
            return fits(*chapter, problem, options, gpu.limits);
          });
          if (first == tiles.end()) {  // a variant for comparison may need more; the chapter itself runs everywhere
            CHECK(variant.variant != chapter->info.variants[0].name);
            CHECK_THROWS_AS(resolve(*chapter, problem, variant, gpu.limits), DeviceError);
            continue;
          }
          const LaunchOptions chosen = resolve(*chapter, problem, variant, gpu.limits);
          CHECK(chosen.block_q == first->block_q);
          CHECK(chosen.block_kv == first->block_kv);
          fmt::print("{} on the {}, head-dim {}{}\n", describe(*chapter, chosen), gpu.title, head_dim,
                     chapter->info.shared_bytes
                         ? fmt::format(": {} bytes of shared memory", chapter->info.shared_bytes(problem, chosen))
                         : "");
        }
      }
    }
  }
}

TEST_CASE("a chapter passes its check on each GPU that has its instructions, and names them on others", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    for (const LaunchOptions& variant : variants_for(*chapter, DeviceKind::sim)) {
      for (const GpuProfile& gpu : gpu_profiles()) {
        for (const std::int64_t head_dim : kHeadDims) {
          INFO(describe(*chapter, variant) << " on the " << gpu.title << ", head-dim " << head_dim);
          const Problem problem = problem_of(head_dim);
          const Input input = make_case_input({problem});
          sim::Machine machine(0, 0, gpu);
          if (capability_refusal(*chapter, gpu.limits).empty()) {
            const std::vector<LaunchOptions> tiles = tiles_taken(*chapter, problem, variant);
            if (std::none_of(tiles.begin(), tiles.end(),
                             [&](const LaunchOptions& o) { return fits(*chapter, problem, o, gpu.limits); })) {
              continue;  // the test above holds that only a variant for comparison may need more
            }
            const LaunchOptions options = resolve(*chapter, problem, variant, machine.limits());
            const Outcome outcome =
                run_case(*chapter, chapter->launch_sim, options, machine, input, Placement::contiguous);
            CHECK(outcome.failure == "");
            continue;
          }
          try {
            resolve(*chapter, problem, variant, machine.limits());
            FAIL_CHECK("not refused");
          } catch (const DeviceError& refusal) {
            CHECK(std::string(refusal.what()) == capability_refusal(*chapter, gpu.limits));
            CHECK(std::string(refusal.what()).find(chapter->info.needs.why) != std::string::npos);
          }
          // What the refusal is for: the kernel would come upon an instruction that there is not. Or its tile upon
          // shared memory that there is not, which the launch says.
          const LaunchOptions options = resolve(*chapter, problem, variant);
          try {
            run_case(*chapter, chapter->launch_sim, options, machine, input, Placement::contiguous);
            FAIL_CHECK("ran");
          } catch (const Fault& fault) {
            CHECK(fault.kind == "missing instruction");
          } catch (const DeviceError& error) {
            CHECK(std::string(error.what()).find("bytes of shared memory") != std::string::npos);
          }
        }
      }
    }
  }
}

TEST_CASE("chapters 01 and 02 run on every GPU, 03 to 05 need what Ampere brought, 06 to 09 Hopper", "[chapters]") {
  for (const Chapter* chapter : chapters_under_test()) {
    const std::string number = chapter->name.substr(0, 2);
    INFO(chapter->name);
    if (number == "01" || number == "02") CHECK(capability_refusal(*chapter, gpu_profile("t4").limits) == "");
    if (number >= "06" && number <= "09") {
      CHECK(capability_refusal(*chapter, gpu_profile("h200").limits) == "");
      for (const char* gpu : {"t4", "a100", "rtx4090"}) {
        CHECK(capability_refusal(*chapter, gpu_profile(gpu).limits).find("compute capability 9.0 exactly (") !=
              std::string::npos);
      }
      CHECK(capability_refusal(*chapter, {100, kMaxSharedBytes}) != "");
      continue;
    }
    if (number < "03" || number > "05") continue;
    for (const char* gpu : {"a100", "rtx4090", "h200"}) {
      CHECK(capability_refusal(*chapter, gpu_profile(gpu).limits) == "");
    }
    const std::string refusal = capability_refusal(*chapter, gpu_profile("t4").limits);
    CHECK(refusal.find("compute capability 8.0 or higher (mma.sync") != std::string::npos);
    CHECK(refusal.find("this one has 7.5") != std::string::npos);
  }
}
