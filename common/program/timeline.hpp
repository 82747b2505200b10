// The timeline that a chapter's kernel wrote (common/kernel/timeline.hpp) as a file that Perfetto and chrome://tracing
// open.
#pragma once

#include <nlohmann/json.hpp>

#include "common/program/run.hpp"

namespace flash {

/// Launches the chapter's kernel that notes what its warpgroups do and returns their notes in Chrome's trace format: a
/// process for each block, a thread for each warpgroup, and a nanosecond for each clock of the SM (on the simulated GPU
/// for each event of the block). Times begin with the block's first note. The outputs in `tensors` are overwritten.
nlohmann::json trace_timeline(const Chapter& chapter, LaunchOptions options, Device& device, const Input& input,
                              DeviceTensors& tensors);

}  // namespace flash
