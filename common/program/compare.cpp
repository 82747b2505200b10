// Runs every chapter and variant on one problem in one process and prints the stages side by side.
#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.hpp"
#include "common/program/file.hpp"
#include "common/program/report.hpp"
#include "common/program/run.hpp"

namespace flash {

int compare_main(int argc, char** argv) {
  const std::optional<Options> parsed = parse_options(
      {"compare", "Runs every chapter and variant on one problem and prints the stages side by side."}, argc, argv);
  if (!parsed) return kExitOk;
  const Options& options = *parsed;
  if (!options.json_path.empty()) require_writable(options.json_path);

  std::string took;
  const std::unique_ptr<Device> device = choose_device(
      options,
      [&](const DeviceLimits& limits) { return gpu_refusal(chapters(), describe_problem(options, true), limits); },
      &took);
  const bool on_gpu = device->kind() == DeviceKind::gpu;
  const Problem problem = describe_problem(options, on_gpu);
  require_memory(*device, problem, {});
  if (!took.empty()) fmt::print("{}\n", took);

  const Input input = make_input(options, problem);
  DeviceTensors tensors(*device, input);
  const std::optional<Ceilings> ceilings = options.ceilings ? device->ceilings() : std::nullopt;
  std::vector<ChapterRun> runs;
  std::vector<std::string> left_out;
  for (const Chapter& chapter : chapters()) {
    for (const Variant& variant : chapter.info.variants) {
      if (variant.gpu_only && !on_gpu) {
        left_out.push_back(fmt::format("{} {}: runs on a GPU only", chapter.name, variant.name));
        continue;
      }
      const auto leave_out = [&](const std::string& why) {
        left_out.push_back(fmt::format("{} {}: {}", chapter.name, variant.name, why));
      };
      LaunchOptions asked;
      asked.variant = variant.name;
      std::string why_not;
      const std::optional<LaunchOptions> launch = try_resolve(chapter, problem, asked, device->limits(), &why_not);
      if (!launch) {
        leave_out(why_not);
        continue;
      }
      try {
        runs.push_back(run_chapter(chapter, *launch, {options.check, true, options.repeat}, *device, input, tensors));
      } catch (const UsageError& error) {  // its workspace does not fit
        leave_out(error.what());
      }
    }
  }
  if (runs.empty()) {
    if (const std::string why = gpu_refusal(chapters(), problem, device->limits()); !why.empty())
      throw DeviceError(why);
    throw UsageError(fmt::format("no chapter takes {}: {}", problem.describe(), left_out.empty() ? "" : left_out[0]));
  }
  if (options.traffic) {  // after all times were taken
    for (ChapterRun& run : runs) {
      const auto chapter =
          std::find_if(chapters().begin(), chapters().end(), [&](const Chapter& c) { return c.name == run.chapter; });
      count_traffic(run, *chapter, *device, tensors);
    }
  }
  fmt::print("{}", text_comparison(runs, ceilings));
  for (const std::string& line : left_out) fmt::print("  left out: {}\n", line);
  bool passed = true;
  for (const ChapterRun& run : runs) {
    passed = passed && run.passed();
    if (!run.passed()) fmt::print("  {} {}: {}\n", run.chapter, run.options.variant, run.failure());
  }
  if (!options.json_path.empty()) {
    nlohmann::json json = {{"device", device->describe()}, {"input", input.source}, {"arguments", options.arguments}};
    if (ceilings) json["ceilings"] = to_json(*ceilings);
    json["left_out"] = left_out;
    for (const ChapterRun& run : runs) json["runs"].push_back(to_json(run));
    write_json(options.json_path, json);
  }
  return passed ? kExitOk : kExitCheckFailed;
}

}  // namespace flash

int main(int argc, char** argv) {
  return flash::guarded_main("compare", [&] { return flash::compare_main(argc, argv); });
}
