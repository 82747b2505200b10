// Runs one chapter on one problem: launch, check, time, count.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/chapter.hpp"
#include "common/device/counters.hpp"
#include "common/device/device.hpp"
#include "common/program/input.hpp"
#include "common/program/options.hpp"
#include "reference/check.hpp"

namespace flash {

/// Everything that one run of a chapter showed.
struct ChapterRun {
  std::string chapter;
  LaunchOptions options;
  Problem problem;
  std::string device;
  DeviceKind device_kind = DeviceKind::sim;

  std::optional<CheckResult> check;
  std::optional<Timing> timing;            // GPU
  std::optional<TrafficReading> measured;  // GPU
  std::string not_measured;                // why there are no byte counters
  std::optional<sim::Counters> counted;    // simulation
  std::optional<Traffic> requested;        // predicted; none where a library does the accesses
  BankConflicts bank_conflicts;            // predicted
  Traffic compulsory;                      // predicted
  std::vector<KernelResources> kernels;    // GPU

  /// One line: what the check found, or else the first count that is not the predicted one. Empty if all is well.
  std::string failure() const;
  bool passed() const { return failure().empty(); }
  std::optional<double> flops_per_second() const;
};

/// Where the simulation's counts are not the predicted ones, a line each: bytes by tensor, bank conflicts by kind of
/// access. Sums could hide two errors.
std::vector<std::string> prediction_differences(const ChapterRun& run);

/// What a run does beside launching.
struct RunSettings {
  CheckMode check = CheckMode::sample;
  bool time = true;
  std::optional<int> repeat;
};

/// resolve() for a device with these limits; without a value `why_not` has the line that it threw.
std::optional<LaunchOptions> try_resolve(const Chapter& chapter, const Problem& problem, const LaunchOptions& options,
                                         const DeviceLimits& limits, std::string* why_not);

/// What is known of a GPU.
struct FoundGpu {
  std::optional<DeviceLimits> limits;
  std::string why_not;  // one line, where there are no limits
};

/// Why a GPU with these limits cannot run what is asked, in one line; empty if it can.
using GpuRefusal = std::function<std::string(const DeviceLimits&)>;

/// What GpuRefusal says for one chapter. Throws UsageError for what no device takes.
std::string gpu_refusal(const Chapter& chapter, const Problem& problem, const LaunchOptions& options,
                        const DeviceLimits& limits);

/// For several chapters: the first one's refusal if this GPU can run none of those that take the problem.
std::string gpu_refusal(const std::vector<Chapter>& chapters, const Problem& problem, const DeviceLimits& limits);

/// The machine that --device takes; `why` is a line about what `auto` took.
struct TakenDevice {
  DeviceKind kind;
  std::string why;
};

/// `auto` takes the GPU if it can run what is asked, else the simulation. Throws DeviceError for --device gpu where it
/// cannot.
TakenDevice take_device(DeviceChoice choice, const FoundGpu& gpu, const GpuRefusal& refusal);

/// The device that the options ask for, by take_device; `why` receives its line.
std::unique_ptr<Device> choose_device(const Options& options, const GpuRefusal& refusal, std::string* why);

/// Launches the chapter once on poisoned outputs and does what the settings say. `options` must be resolved. O and LSE
/// of that launch are left in `tensors`. Throws UsageError when memory is short, Fault and DeviceError from the launch.
ChapterRun run_chapter(const Chapter& chapter, const LaunchOptions& options, const RunSettings& settings,
                       Device& device, const Input& input, DeviceTensors& tensors);

/// Reads the byte counters of another launch into `run`, a result of run_chapter on the same device. Once it was
/// called, nothing more should be timed there (Device::read_traffic).
void count_traffic(ChapterRun& run, const Chapter& chapter, Device& device, DeviceTensors& tensors);

/// The rows that a check mode compares.
std::vector<RowId> rows_to_check(const Problem& problem, CheckMode mode);

/// Calls `body` and turns what it throws, or a standard output that takes nothing more, into one line on stderr and the
/// project's exit code.
int guarded_main(const std::string& program, const std::function<int()>& body);

}  // namespace flash
