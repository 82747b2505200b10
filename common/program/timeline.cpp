#include "common/program/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace flash {

nlohmann::json trace_timeline(const Chapter& chapter, LaunchOptions options, Device& device, const Input& input,
                              DeviceTensors& tensors) {
  options.timeline = true;
  const bool on_gpu = device.kind() == DeviceKind::gpu;
  const AttentionCall call = tensors.call(chapter.info.workspace(input.problem, options));
  tensors.poison();  // a word of ones is one that no note was written to
  (on_gpu ? chapter.launch_gpu : chapter.launch_sim)(call, options, device);
  device.synchronize();

  const TensorRef& notes = call.workspace.back();
  std::vector<std::uint64_t> words(std::size_t(notes.span_bytes()) / sizeof(std::uint64_t));
  device.download(words.data(), notes.data, words.size() * sizeof(std::uint64_t));
  constexpr std::uint64_t kNone = ~std::uint64_t(0), kTime = (std::uint64_t(1) << 56) - 1;

  nlohmann::json events = nlohmann::json::array();
  const auto name = [&](const char* what, std::int64_t block, std::int64_t track, const std::string& text) {
    events.push_back({{"ph", "M"}, {"name", what}, {"pid", block}, {"tid", track}, {"args", {{"name", text}}}});
  };
  for (std::int64_t block = 0; block < notes.heads; ++block) {
    const auto row = [&](std::int64_t track) {
      return &words[std::size_t(block * notes.head_stride + track * notes.row_stride)];
    };
    std::uint64_t begin = kNone;
    for (std::int64_t track = 0; track < notes.rows; ++track) {
      if (row(track)[0] != kNone) begin = std::min(begin, row(track)[0] & kTime);
    }
    if (begin == kNone) continue;  // the grid has fewer blocks
    name("process_name", block, 0, fmt::format("block {}", block));
    for (std::int64_t track = 0; track < notes.rows; ++track) {
      name("thread_name", block, track, chapter.info.timeline.tracks(options)[std::size_t(track)]);
      for (std::int64_t i = 0; i + 1 < notes.cols && row(track)[i + 1] != kNone; ++i) {
        const std::uint64_t from = row(track)[i] & kTime, to = row(track)[i + 1] & kTime;
        const std::string& doing = chapter.info.timeline.doing[std::size_t(row(track)[i] >> 56)];
        events.push_back({{"ph", "X"},
                          {"name", doing},
                          {"pid", block},
                          {"tid", track},
                          {"ts", double(from - begin) * 1e-3},
                          {"dur", double(to - from) * 1e-3}});
      }
    }
  }
  return {{"displayTimeUnit", "ns"},
          {"otherData",
           {{"chapter", chapter.name},
            {"variant", options.variant},
            {"problem", input.problem.describe()},
            {"device", device.describe()},
            {"nanosecond", on_gpu ? "one clock of the SM" : "one event of the simulated block"}}},
          {"traceEvents", events}};
}

}  // namespace flash
