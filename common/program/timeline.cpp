#include "common/program/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/base/timeline_notes.hpp"

namespace flash {

nlohmann::json trace_timeline(const Chapter& chapter, LaunchOptions options, Device& device, const Input& input,
                              DeviceTensors& tensors) {
  options.timeline = true;
  const bool on_gpu = device.kind() == DeviceKind::gpu;
  const AttentionCall call = tensors.call(chapter.info.workspace(input.problem, options));
  tensors.poison();  // a note of ones is one that was not written
  (on_gpu ? chapter.launch_gpu : chapter.launch_sim)(call, options, device);
  device.synchronize();

  const TensorRef& notes = call.workspace.back();
  // Times follow each other by less than half of what their bits hold, so differences say which of two is later.
  std::vector<std::uint32_t> words(std::size_t(notes.span_bytes()) / sizeof(std::uint32_t));
  device.download(words.data(), notes.data, words.size() * sizeof(std::uint32_t));
  constexpr std::uint32_t kNone = ~std::uint32_t(0);
  const auto between = [](std::uint32_t from, std::uint32_t to) {
    return std::int32_t((to - from) << (32 - TimelineTimeBits)) >> (32 - TimelineTimeBits);
  };

  nlohmann::json events = nlohmann::json::array();
  const auto name = [&](const char* what, std::int64_t block, std::int64_t track, const std::string& text) {
    events.push_back({{"ph", "M"}, {"name", what}, {"pid", block}, {"tid", track}, {"args", {{"name", text}}}});
  };
  for (std::int64_t block = 0; block < notes.heads; ++block) {
    const auto row = [&](std::int64_t track) {
      return &words[std::size_t(block * notes.head_stride + track * notes.row_stride)];
    };
    std::uint32_t begin = kNone;
    for (std::int64_t track = 0; track < notes.rows; ++track) {
      const std::uint32_t first = row(track)[0];
      if (first != kNone && (begin == kNone || between(begin, first) < 0)) begin = first;
    }
    if (begin == kNone) continue;  // the grid has fewer blocks
    name("process_name", block, 0, fmt::format("block {}", block));
    for (std::int64_t track = 0; track < notes.rows; ++track) {
      name("thread_name", block, track, chapter.info.timeline.tracks(options)[std::size_t(track)]);
      if (row(track)[0] == kNone) continue;
      std::int64_t from = between(begin, row(track)[0]);
      for (std::int64_t i = 0; i + 1 < notes.cols && row(track)[i + 1] != kNone; ++i) {
        const std::int64_t duration = between(row(track)[i], row(track)[i + 1]);
        const std::string& doing = chapter.info.timeline.doing[std::size_t(row(track)[i] >> TimelineTimeBits)];
        events.push_back({{"ph", "X"},
                          {"name", doing},
                          {"pid", block},
                          {"tid", track},
                          {"ts", double(from) * 1e-3},
                          {"dur", double(duration) * 1e-3}});
        from += duration;
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
