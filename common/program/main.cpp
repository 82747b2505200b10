// The program of a chapter: checks itself, times itself and counts the bytes it moved. Linked with the chapter and the
// one before it, for the comparison.
#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/program/file.hpp"
#include "common/program/npy.hpp"
#include "common/program/report.hpp"
#include "common/program/run.hpp"
#include "common/program/timeline.hpp"

namespace flash {

namespace {

/// Writes O and LSE as .npy files, where the options ask for them.
void write_outputs(const Options& options, const Problem& problem, DeviceTensors& tensors) {
  if (!options.out_path.empty()) {
    const HostTensor o = tensors.download_o();
    const std::vector<std::int64_t> shape = {problem.batch, problem.seq_q, problem.heads, problem.head_dim};
    if (problem.dtype == DType::fp16) {
      write_npy(options.out_path, shape, "<f2", std::as_bytes(std::span(o.bits(), std::size_t(o.elements()))));
    } else {
      std::vector<float> values(std::size_t(o.elements()));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = o.decode(o.bits()[i]);
      write_npy(options.out_path, shape, "<f4", std::as_bytes(std::span(values)));
    }
  }
  if (!options.lse_path.empty()) {
    const std::vector<float> lse = tensors.download_lse();
    const std::vector<std::int64_t> shape = {problem.batch, problem.heads, problem.seq_q};
    write_npy(options.lse_path, shape, "<f4", std::as_bytes(std::span(lse)));
  }
}

/// The default variant of the chapter before on the same problem: timed on a GPU, its predictions in the simulation.
/// Nothing where there is none or it cannot run the problem.
std::optional<ChapterRun> run_before(const Options& options, Device& device, const Input& input,
                                     DeviceTensors& tensors) {
  if (chapters().size() < 2) return std::nullopt;
  const Chapter& before = chapters().front();
  std::string why_not;
  const std::optional<LaunchOptions> launch = try_resolve(before, input.problem, {}, device.limits(), &why_not);
  if (!launch) return std::nullopt;
  try {
    if (device.kind() == DeviceKind::gpu) {
      return run_chapter(before, *launch, {CheckMode::off, true, options.repeat}, device, input, tensors);
    }
    const AttentionCall call = contiguous_call(input.problem);
    ChapterRun predicted;
    predicted.chapter = before.name;
    predicted.options = *launch;
    predicted.requested = before.info.requested(call, *launch);
    predicted.compulsory = before.info.compulsory(call, *launch);
    return predicted;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

}  // namespace

int chapter_main(int argc, char** argv) {
  const Chapter& chapter = chapters().back();
  const std::optional<Options> parsed = parse_options(
      {chapter.name,
       fmt::format("{}: {}\nOn a GPU it needs {}.", chapter.name, chapter.info.title, needs_text(chapter.info.needs)),
       &chapter},
      argc, argv);
  if (!parsed) return kExitOk;
  const Options& options = *parsed;
  if (!options.launch.variant.empty()) chapter.variant(options.launch.variant);
  for (const std::string& path : {options.out_path, options.lse_path, options.json_path, options.timeline_path}) {
    if (!path.empty()) require_writable(path);
  }

  std::string took;
  const std::unique_ptr<Device> device = choose_device(
      options,
      [&](const DeviceLimits& limits) {
        return gpu_refusal(chapter, describe_problem(options, true), options.launch, limits);
      },
      &took);
  const bool on_gpu = device->kind() == DeviceKind::gpu;
  const Problem problem = describe_problem(options, on_gpu);
  const LaunchOptions launch = resolve(chapter, problem, options.launch, device->limits());
  require_memory(*device, problem, chapter.info.workspace(problem, launch));
  if (!options.timeline_path.empty()) {
    LaunchOptions traced = launch;
    traced.timeline = true;
    if (const std::string refusal = chapter.info.refusal(problem, traced); !refusal.empty()) throw UsageError(refusal);
  }
  if (!took.empty()) fmt::print("{}\n", took);

  const Input input = make_input(options, problem);
  DeviceTensors tensors(*device, input);
  ChapterRun run = run_chapter(chapter, launch, {options.check, true, options.repeat}, *device, input, tensors);
  write_outputs(options, problem, tensors);
  if (!options.timeline_path.empty()) {
    write_json(options.timeline_path, trace_timeline(chapter, launch, *device, input, tensors));
  }
  const std::optional<ChapterRun> before = run_before(options, *device, input, tensors);
  if (options.traffic) count_traffic(run, chapter, *device, tensors);  // after all times were taken
  const std::optional<Ceilings> ceilings = options.ceilings ? device->ceilings() : std::nullopt;
  fmt::print("{}", text_report(chapter, run, input.source, ceilings, before ? &*before : nullptr));

  if (!options.json_path.empty()) {
    nlohmann::json json = to_json(run);
    json["input"] = input.source;
    json["arguments"] = options.arguments;
    if (ceilings) json["ceilings"] = to_json(*ceilings);
    if (before && before->timing)
      json["speed_up_over"] = {{before->chapter, before->timing->median_ms / run.timing->median_ms}};
    write_json(options.json_path, json);
  }
  return run.passed() ? kExitOk : kExitCheckFailed;
}

}  // namespace flash

int main(int argc, char** argv) {
  return flash::guarded_main(flash::chapters().back().name, [&] { return flash::chapter_main(argc, argv); });
}
