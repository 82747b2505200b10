#include "common/program/run.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "common/base/error.hpp"

namespace flash {

std::optional<double> ChapterRun::flops_per_second() const {
  if (!timing) return std::nullopt;
  return problem.flops() / (timing->median_ms * 1e-3);
}

std::unique_ptr<Device> choose_device(const Options& options, std::string* why) {
  switch (options.device) {
    case DeviceChoice::gpu:
      return make_gpu();
    case DeviceChoice::sim:
      return make_simulated_gpu(options.schedule_seed, *options.sim_gpu);
    case DeviceChoice::automatic:
      break;
  }
  std::string reason;
  if (gpu_available(&reason)) {
    *why = "auto: took the GPU";
    return make_gpu();
  }
  *why = "auto: took the simulation, " + reason;
  return make_simulated_gpu(options.schedule_seed, *options.sim_gpu);
}

std::vector<RowId> rows_to_check(const Problem& problem, CheckMode mode) {
  return mode == CheckMode::full ? all_rows(problem) : sample_rows(problem);
}

ChapterRun run_chapter(const Chapter& chapter, const LaunchOptions& options, const RunSettings& settings,
                       Device& device, const Input& input, DeviceTensors& tensors) {
  const bool on_gpu = device.kind() == DeviceKind::gpu;
  const LaunchFunction launch = on_gpu ? chapter.launch_gpu : chapter.launch_sim;
  if (launch == nullptr) throw DeviceError(chapter.name + " was built without its GPU side");
  if (!on_gpu && chapter.variant(options.variant).gpu_only) {
    throw DeviceError(fmt::format("{} --variant {} runs on a GPU only", chapter.name, options.variant));
  }
  const AttentionCall call = tensors.call(chapter.info.workspace(input.problem, options));
  const auto run = [&] { launch(call, options, device); };

  ChapterRun result;
  result.chapter = chapter.name;
  result.options = options;
  result.problem = input.problem;
  result.device = device.describe();
  result.device_kind = device.kind();
  result.requested = chapter.info.requested(call, options);
  result.compulsory = chapter.info.compulsory(call, options);

  tensors.poison();
  device.reset_counted();
  run();
  device.synchronize();
  if (device.counted() != nullptr) result.counted = *device.counted();
  result.kernels = device.resources();

  if (settings.check != CheckMode::off) {
    result.check =
        check_attention(input.problem, input.q, input.k, input.v, tensors.download_o(), tensors.download_lse(),
                        rows_to_check(input.problem, settings.check), chapter.info.lse_from_rounded_scores);
  }
  if (settings.time) result.timing = device.time(run, settings.repeat);
  return result;
}

void count_traffic(ChapterRun& run, const Chapter& chapter, Device& device, DeviceTensors& tensors) {
  if (device.kind() != DeviceKind::gpu) return;  // the simulation counts at every launch
  const AttentionCall call = tensors.call(chapter.info.workspace(run.problem, run.options));
  run.measured = device.read_traffic([&] { chapter.launch_gpu(call, run.options, device); }, &run.not_measured);
}

int guarded_main(const std::string& program, const std::function<int()>& body) {
  const auto complain = [&](const char* what, int code) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", program.c_str(), what);
    return code;
  };
  try {
    const int code = body();
    // A report that could not be written, to a full disk for instance, must not pass for one.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return complain("the report could not be written to the standard output", kExitUsage);
    }
    return code;
  } catch (const UsageError& error) {
    return complain(error.what(), kExitUsage);
  } catch (const DeviceError& error) {
    return complain(error.what(), kExitDevice);
  } catch (const Fault& fault) {
    return complain(fault.what(), kExitCheckFailed);
  } catch (const std::bad_alloc&) {
    return complain("out of memory: use a smaller problem", kExitUsage);
  } catch (const std::exception& error) {
    return complain(error.what(), kExitCheckFailed);
  }
}

}  // namespace flash
