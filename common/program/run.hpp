// Runs one chapter on one problem: launch, check, time, count.
#pragma once

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
  Traffic compulsory;                      // predicted
  std::vector<KernelResources> kernels;    // GPU

  bool passed() const { return !check || check->passed; }
  std::optional<double> flops_per_second() const;
};

/// What a run does beside launching.
struct RunSettings {
  CheckMode check = CheckMode::sample;
  bool time = true;
  std::optional<int> repeat;
};

/// The device that the options ask for; `why` receives one line that says what `auto` took. Throws DeviceError for
/// --device gpu without one.
std::unique_ptr<Device> choose_device(const Options& options, std::string* why);

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
