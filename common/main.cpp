// The program of a chapter: checks itself, times itself and counts the bytes it moved. Linked with the chapter and the
// one before it, for the comparison.
#include <fmt/format.h>

#include "common/error.hpp"
#include "common/file.hpp"
#include "common/npy.hpp"
#include "common/report.hpp"
#include "common/run.hpp"

namespace flash {

int chapter_main(int argc, char** argv) {
  const Chapter& chapter = chapters().back();
  const std::optional<Options> parsed =
      parse_options({chapter.name, fmt::format("{}: {}", chapter.name, chapter.info.title), &chapter}, argc, argv);
  if (!parsed) return kExitOk;
  const Options& options = *parsed;
  if (!options.launch.variant.empty()) chapter.variant(options.launch.variant);
  for (const std::string& path : {options.out_path, options.lse_path, options.json_path}) {
    if (!path.empty()) require_writable(path);
  }

  std::string took;
  const std::unique_ptr<Device> device = choose_device(options, &took);
  const bool on_gpu = device->kind() == DeviceKind::gpu;
  const Problem problem = describe_problem(options, on_gpu);
  const LaunchOptions launch = resolve(chapter, problem, options.launch);
  require_memory(*device, problem, chapter.info.workspace(problem, launch));
  if (!took.empty()) fmt::print("{}\n", took);

  const Input input = make_input(options, problem);
  DeviceTensors tensors(*device, input);
  const RunSettings settings{options.check, true, options.traffic, options.repeat};
  const ChapterRun run = run_chapter(chapter, launch, settings, *device, input, tensors);
  if (!options.out_path.empty() || !options.lse_path.empty()) {
    // Another launch wrote the same bits again if the run was timed.
    const HostTensor o = tensors.download_o();
    const std::vector<float> lse = tensors.download_lse();
    const std::vector<std::int64_t> o_shape = {problem.batch, problem.seq_q, problem.heads, problem.head_dim};
    const std::vector<std::int64_t> lse_shape = {problem.batch, problem.heads, problem.seq_q};
    if (!options.out_path.empty()) {
      if (problem.dtype == DType::fp16) {
        write_npy(options.out_path, o_shape, "<f2", std::as_bytes(std::span(o.bits(), std::size_t(o.elements()))));
      } else {
        std::vector<float> values(std::size_t(o.elements()));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = o.decode(o.bits()[i]);
        write_npy(options.out_path, o_shape, "<f4", std::as_bytes(std::span(values)));
      }
    }
    if (!options.lse_path.empty()) write_npy(options.lse_path, lse_shape, "<f4", std::as_bytes(std::span(lse)));
  }

  // The chapter before, its default variant, where it can run the problem.
  std::optional<ChapterRun> before;
  if (chapters().size() > 1) {
    const Chapter& previous = chapters().front();
    try {
      const LaunchOptions defaults = resolve(previous, problem, {});
      require_memory(*device, problem, previous.info.workspace(problem, defaults));
      if (on_gpu) {
        before =
            run_chapter(previous, defaults, {CheckMode::off, true, false, options.repeat}, *device, input, tensors);
      } else {  // its predictions are enough
        before.emplace();
        before->chapter = previous.name;
        before->options = defaults;
        AttentionCall call = contiguous_call(problem);
        before->requested = previous.info.requested(call, defaults);
        before->compulsory = previous.info.compulsory(call, defaults);
      }
    } catch (const UsageError&) {  // it cannot run this problem: no comparison
      before.reset();
    }
  }
  const std::optional<Ceilings> ceilings = device->ceilings();
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
