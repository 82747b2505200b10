// The command line that all chapters and `compare` share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/chapter.hpp"
#include "common/base/host_tensor.hpp"
#include "common/base/problem.hpp"
#include "common/device/gpu_profile.hpp"

namespace CLI {
class App;
}

namespace flash {

enum class DeviceChoice { automatic, gpu, sim };
enum class CheckMode { sample, full, off };

struct Options {
  // The problem; what is not given comes from the files, or from the device's default.
  std::optional<std::int64_t> batch, heads, kv_heads, seq, seq_kv, head_dim;
  bool causal = false;
  std::optional<DType> dtype;
  Distribution distribution = Distribution::normal;
  std::uint64_t seed = 0;
  std::string q_path, k_path, v_path;

  LaunchOptions launch;  // variant (empty: the default), tiles
  DeviceChoice device = DeviceChoice::automatic;
  std::uint64_t schedule_seed = 0;
  const GpuProfile* sim_gpu = &gpu_profiles()[0];  // what the simulation stands for

  CheckMode check = CheckMode::sample;
  std::optional<int> repeat;  // none: 30, fewer when a launch is slow
  bool traffic = true;
  bool ceilings = true;
  std::string out_path, lse_path, json_path, timeline_path;

  std::vector<std::string> arguments;  // as given, for the JSON report
};

/// Parses the command line of `program` into what `app` has been given. Prints the help and returns false when that is
/// what was asked for. Throws UsageError, one line.
bool parse_command_line(CLI::App& app, const std::string& program, int argc, const char* const* argv);

/// What the program is, for its help.
struct Program {
  std::string name;
  std::string summary;
  /// The chapter whose variants and tiles can be chosen; null for `compare`.
  const Chapter* chapter = nullptr;
};

/// Parses the command line. Throws UsageError, one line; prints the help and returns nothing when that is what was
/// asked for.
std::optional<Options> parse_options(const Program& program, int argc, const char* const* argv);

}  // namespace flash
