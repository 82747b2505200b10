#include "common/program/run.hpp"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <new>

#include "common/base/error.hpp"
#include "common/base/quote.hpp"
#include "common/device/prediction.hpp"

namespace flash {

std::optional<double> ChapterRun::flops_per_second() const {
  if (!timing) return std::nullopt;
  return problem.flops() / (timing->median_ms * 1e-3);
}

std::vector<std::string> prediction_differences(const ChapterRun& run) {
  if (!run.counted || !run.requested) return {};
  std::vector<std::string> list = differences(*run.counted, *run.requested);
  for (std::string& conflicts : differences(*run.counted, run.bank_conflicts)) list.push_back(std::move(conflicts));
  return list;
}

std::string ChapterRun::failure() const {
  if (check && !check->passed) return check->first_failure;
  const std::vector<std::string> differences = prediction_differences(*this);
  return differences.empty() ? "" : "counted and predicted DIFFER: " + differences.front();
}

std::optional<LaunchOptions> try_resolve(const Chapter& chapter, const Problem& problem, const LaunchOptions& options,
                                         const DeviceLimits& limits, std::string* why_not) {
  try {
    return resolve(chapter, problem, options, limits);
  } catch (const UsageError& error) {
    *why_not = error.what();
  } catch (const DeviceError& error) {
    *why_not = error.what();
  }
  return std::nullopt;
}

std::string gpu_refusal(const Chapter& chapter, const Problem& problem, const LaunchOptions& options,
                        const DeviceLimits& limits) {
  try {
    resolve(chapter, problem, options, limits);
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

std::string gpu_refusal(const std::vector<Chapter>& chapters, const Problem& problem, const DeviceLimits& limits) {
  std::string first;
  for (const Chapter& chapter : chapters) {
    for (const Variant& variant : chapter.info.variants) {
      try {
        LaunchOptions options;
        options.variant = variant.name;
        const std::string refusal = gpu_refusal(chapter, problem, options, limits);
        if (refusal.empty()) return "";
        if (first.empty()) first = refusal;
      } catch (const UsageError&) {  // on no device
      }
    }
  }
  return first;
}

TakenDevice take_device(DeviceChoice choice, const FoundGpu& gpu, const GpuRefusal& refusal) {
  if (choice == DeviceChoice::sim) return {DeviceKind::sim, ""};
  const std::string why_not = gpu.limits ? refusal(*gpu.limits) : gpu.why_not;
  if (choice == DeviceChoice::gpu) {
    if (!why_not.empty()) throw DeviceError(why_not);
    return {DeviceKind::gpu, ""};
  }
  if (why_not.empty()) return {DeviceKind::gpu, "auto: took the GPU"};
  return {DeviceKind::sim, "auto: took the simulation, " + why_not};
}

std::unique_ptr<Device> choose_device(const Options& options, const GpuRefusal& refusal, std::string* why) {
  FoundGpu found;
  std::unique_ptr<Device> gpu;
  if (options.device != DeviceChoice::sim && gpu_available(&found.why_not)) {
    gpu = make_gpu();
    found.limits = gpu->limits();
  }
  const TakenDevice taken = take_device(options.device, found, refusal);
  *why = taken.why;
  return taken.kind == DeviceKind::gpu ? std::move(gpu) : make_simulated_gpu(options.schedule_seed, *options.sim_gpu);
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
  result.bank_conflicts = predicted_bank_conflicts(chapter.info, input.problem, options);
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
  const auto complain = [&](const std::string& what, int code) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", program.c_str(), what.c_str());
    return code;
  };
  // Beyond a limit on the size of files a write is to fail, as on a full disk, and not to end the program.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = body();
    // A report that could not be written, to a full disk for instance, must not pass for one.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return complain("the report could not be written to the standard output", kExitUsage);
    }
    return code;
  } catch (const UsageError& error) {
    return complain(escaped(error.what()), kExitUsage);
  } catch (const DeviceError& error) {
    return complain(escaped(error.what()), kExitDevice);
  } catch (const Fault& fault) {
    return complain(fault.what(), kExitCheckFailed);
  } catch (const std::bad_alloc&) {
    return complain("out of memory: use a smaller problem", kExitUsage);
  } catch (const std::exception& error) {
    return complain(escaped(error.what()), kExitCheckFailed);
  }
}

}  // namespace flash
