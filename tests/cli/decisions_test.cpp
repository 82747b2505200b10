// What the programs decide without a GPU to try it on: which machine runs a chapter, and whether a run passed.
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "common/program/report.hpp"
#include "common/program/run.hpp"
#include "tests/catch.hpp"
#include "tests/cli/program.hpp"

namespace flash::test {
namespace {

// -- GPUs

constexpr std::size_t kKilobyte = 1024;
const DeviceLimits kTesla{70, 96 * kKilobyte}, kT4{75, 64 * kKilobyte}, kGeForce{86, 99 * kKilobyte},
    kH200{90, 227 * kKilobyte}, kBlackwell{120, 99 * kKilobyte};

/// A chapter that needs this capability, with tiles of 64 and 32 KB.
Chapter chapter_that_needs(const std::string& name, Needs needs) {
  Chapter chapter;
  chapter.name = name;
  chapter.info.variants = {{"one", "", false}, {"two", "", false}};
  chapter.info.needs = std::move(needs);
  chapter.info.refusal = [](const Problem& problem, const LaunchOptions&) {
    return problem.head_dim > 128 ? std::string("head-dim") : "";
  };
  chapter.info.tiles = {{128, 128}, {64, 64}};
  chapter.info.shared_bytes = [](const Problem&, const LaunchOptions& options) {
    return std::size_t(options.block_q) * 512;
  };
  return chapter;
}

const Needs kTuring{75, false, ""}, kAmpere{80, false, "mma.sync"}, kHopper{90, true, "wgmma"};

std::string refusal(const Needs& needs, const DeviceLimits& limits) {
  return gpu_refusal(chapter_that_needs("03_tiles", needs), Problem{}, {}, limits);
}

TEST_CASE("a GPU runs a chapter if it has the compute capability that its kernels need") {
  for (const DeviceLimits& gpu : {kT4, kGeForce, kH200, kBlackwell}) CHECK(refusal(kTuring, gpu).empty());
  CHECK(refusal(kTuring, kTesla) == "03_tiles needs a GPU of compute capability 7.5 or higher; this one has 7.0");
  CHECK(refusal(kAmpere, kT4) ==
        "03_tiles needs a GPU of compute capability 8.0 or higher (mma.sync); this one has 7.5");
  for (const DeviceLimits& gpu : {kGeForce, kH200, kBlackwell}) CHECK(refusal(kAmpere, gpu).empty());
  CHECK(refusal(kHopper, kH200).empty());
  CHECK(refusal(kHopper, kGeForce) ==
        "03_tiles needs a GPU of compute capability 9.0 exactly (wgmma); this one has 8.6");
  CHECK(contains(refusal(kHopper, kBlackwell), "this one has 12.0"));
}

TEST_CASE("a tile that the GPU has no shared memory for is a reason too, and a bad problem is none") {
  const Chapter chapter = chapter_that_needs("03_tiles", kTuring);
  const DeviceLimits small{75, 48 * kKilobyte};
  CHECK(gpu_refusal(chapter, Problem{}, {}, small).empty());  // the smaller tile
  LaunchOptions large;
  large.block_q = 128;
  CHECK(contains(gpu_refusal(chapter, Problem{}, large, small), "shared memory"));
  CHECK(gpu_refusal(chapter, Problem{}, large, kT4).empty());
  Problem wide;
  wide.head_dim = 256;
  CHECK_THROWS_AS(gpu_refusal(chapter, wide, {}, kT4), UsageError);
}

TEST_CASE("several chapters have a GPU in common if it can run one of them") {
  const std::vector<Chapter> both = {chapter_that_needs("01_a", kAmpere), chapter_that_needs("02_b", kTuring)};
  const std::vector<Chapter> late = {chapter_that_needs("06_c", kHopper), chapter_that_needs("03_d", kAmpere)};
  CHECK(gpu_refusal(both, Problem{}, kT4).empty());
  CHECK(contains(gpu_refusal(late, Problem{}, kT4), "06_c needs"));
  CHECK(gpu_refusal(late, Problem{}, kGeForce).empty());
  Problem wide;
  wide.head_dim = 256;  // no device's fault
  CHECK(gpu_refusal(both, wide, kH200).empty());
}

TEST_CASE("auto takes the GPU for what it can run and the simulation for the rest, with the reason in one line") {
  const auto refuse_turing = [](const DeviceLimits& limits) { return limits.capability < 80 ? "needs 8.0" : ""; };
  const FoundGpu none{std::nullopt, "no GPU: none"}, t4{kT4, ""}, h200{kH200, ""};
  const auto take = [&](DeviceChoice choice, const FoundGpu& gpu) { return take_device(choice, gpu, refuse_turing); };

  CHECK(take(DeviceChoice::automatic, h200).kind == DeviceKind::gpu);
  CHECK(take(DeviceChoice::automatic, h200).why == "auto: took the GPU");
  CHECK(take(DeviceChoice::automatic, t4).kind == DeviceKind::sim);
  CHECK(take(DeviceChoice::automatic, t4).why == "auto: took the simulation, needs 8.0");
  CHECK(take(DeviceChoice::automatic, none).kind == DeviceKind::sim);
  CHECK(take(DeviceChoice::automatic, none).why == "auto: took the simulation, no GPU: none");

  CHECK(take(DeviceChoice::gpu, h200).kind == DeviceKind::gpu);
  CHECK_THROWS_AS(take(DeviceChoice::gpu, t4), DeviceError);
  CHECK_THROWS_AS(take(DeviceChoice::gpu, none), DeviceError);

  for (const FoundGpu& gpu : {none, t4, h200}) {
    CHECK(take(DeviceChoice::sim, gpu).kind == DeviceKind::sim);
    CHECK(take(DeviceChoice::sim, gpu).why.empty());
  }
}

TEST_CASE("this project's chapters say which GPUs take them, and --help says it") {
  for (const Chapter& chapter : chapters()) {
    INFO(chapter.name);
    const Problem problem;
    CHECK(gpu_refusal(chapter, problem, {}, kH200).empty());
    CHECK(contains(gpu_refusal(chapter, problem, {}, kTesla), chapter.name + " needs a GPU of compute capability "));
    CHECK(contains(run({program_of(chapter), "--help"}).out, "needs " + needs_text(chapter.info.needs)));
  }
  CHECK(gpu_refusal(chapters(), Problem{}, kT4).empty());
}

TEST_CASE("a build without code for the GPU says what it has code for and what to configure") {
  CHECK(no_code_text(86, "90a") ==
        "the GPU has compute capability 8.6 and this build code for 90a: configure with -DCMAKE_CUDA_ARCHITECTURES=86");
  CHECK(contains(no_code_text(90, "75, 86"), "capability 9.0 and this build code for 75, 86: "));
  CHECK(contains(no_code_text(90, "86"), "-DCMAKE_CUDA_ARCHITECTURES=90a"));
  CHECK(contains(no_code_text(120, "90a"), "capability 12.0"));
}

TEST_CASE("without a GPU there is no current one") {
  if (gpu_available()) {
    CHECK(current_gpu() >= 0);
  } else {
    CHECK_THROWS_AS(current_gpu(), DeviceError);
  }
}

/// What cmake/CudaArchitectures.cmake builds for.
std::string architectures(const std::string& capabilities, const std::string& known) {
  const Ended ended = run({FLASH_CMAKE, "-DCAPABILITIES=" + capabilities, "-DKNOWN=" + known, "-P",
                           std::string(FLASH_SOURCES) + "/cmake/CudaArchitectures.cmake"});
  CHECK(ended.code == 0);
  return ended.out;
}

TEST_CASE("the CUDA side is built for the GPUs that are there, and for Hopper where there is none") {
  const std::string known = "75;80;86;89;90;100;120";
  CHECK(architectures("", known) == "-- 90a\n");
  CHECK(architectures("9.0", known) == "-- 90a\n");
  CHECK(architectures("7.5", known) == "-- 75\n");
  CHECK(architectures("7.5;8.6;9.0", known) == "-- 75;86;90a\n");
  CHECK(architectures("12.0", known) == "-- 120\n");
  CHECK(architectures("6.1", known) == "-- 90a\n");  // no chapter runs there
  CHECK(architectures("6.1;8.9", known) == "-- 89\n");
  CHECK(architectures("12.1", known) == "-- 120\n");  // newer than this nvcc
  CHECK(architectures("12.0", "75;80;86;89;90") == "-- 90\n");
}

// -- Whether a run passed

/// A run of which the simulation counted 320 bytes of Q read and 64 of O written, as predicted.
ChapterRun counted_run() {
  ChapterRun run;
  run.counted.emplace();
  run.counted->tensors[std::size_t(sim::tensor_slot("Q"))].read_sectors = 10;
  run.counted->tensors[std::size_t(sim::tensor_slot("O"))].written_sectors = 2;
  run.requested.emplace();
  run.requested->add("Q", 320, 0);
  run.requested->add("O", 0, 64);
  return run;
}

TEST_CASE("a count that is not the predicted one is a failure, also when the check passed or is off") {
  for (const bool checked : {false, true}) {
    ChapterRun run = counted_run();
    if (checked) {
      run.check.emplace();
      run.check->passed = true;
    }
    CHECK(run.passed());
    CHECK(run.failure().empty());
    CHECK(to_json(run).at("passed") == true);
    CHECK(to_json(run).at("counted_as_predicted") == true);

    ChapterRun read = run;
    read.requested->add("Q", 32, 0);
    CHECK(!read.passed());
    CHECK(read.failure() == "counted and predicted DIFFER: Q read: counted 320 B, predicted 352 B");
    CHECK(to_json(read).at("passed") == false);
    CHECK(to_json(read).at("counted_as_predicted") == false);

    ChapterRun written = run;
    written.counted->tensors[std::size_t(sim::tensor_slot("O"))].written_sectors = 1;
    CHECK(contains(written.failure(), "O written: counted 32 B, predicted 64 B"));

    ChapterRun swapped = run;  // the same sum
    swapped.requested->tensors[0].read -= 32;
    swapped.requested->add("K", 32, 0);
    CHECK(!swapped.passed());

    ChapterRun unexpected = run;
    unexpected.counted->tensors[std::size_t(sim::tensor_slot("not predicted"))].read_sectors = 1;
    CHECK(contains(unexpected.failure(), "not predicted read: counted 32 B, predicted 0 B"));
  }
}

TEST_CASE("a failed check is a failure whatever was counted, and a run without either passes") {
  ChapterRun run = counted_run();
  run.check.emplace();
  run.check->passed = false;
  run.check->first_failure = "O is wrong";
  CHECK(!run.passed());
  CHECK(run.failure() == "O is wrong");
  CHECK(to_json(run).at("passed") == false);
  CHECK(ChapterRun{}.passed());
  ChapterRun library = counted_run();  // a library does the accesses: nothing is predicted
  library.requested.reset();
  CHECK(library.passed());
}

}  // namespace
}  // namespace flash::test
