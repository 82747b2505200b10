// The bytes that kernels moved, from the GPU's own counters, read in the process that launches them.
//
// Through CUPTI's range profiler (https://docs.nvidia.com/cupti/, "CUPTI Range Profiling API"), in user ranges with
// user replay: the GPU has fewer counter registers than there are metrics, so the launches run again for each pass.
// CUPTI is loaded at run time; a program runs without it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/device/traffic_reading.hpp"

struct CUstream_st;  // cudaStream_t is CUstream_st*

namespace flash {

/// Counters of the current device, for its current context. One at a time in a process. Profiling slows launches down,
/// so time the kernels before this is opened or after it is gone.
class TrafficCounters {
 public:
  /// Null where counters cannot be read: no CUPTI, a driver that reserves them for administrators, another profiler.
  /// `why_not` (may be null) then receives one line that says which, and what would enable them.
  static std::unique_ptr<TrafficCounters> open(std::string* why_not);

  ~TrafficCounters();
  TrafficCounters(const TrafficCounters&) = delete;
  TrafficCounters& operator=(const TrafficCounters&) = delete;

  /// `launch` queues the kernels on `stream`. It is called once unmeasured and then once for each pass, so the same
  /// work must come out each time. `prepare`, if given, runs before each call of it, uncounted: to flush a cache, say.
  /// Throws DeviceError when CUPTI or a launch fails.
  TrafficReading measure(const std::function<void()>& launch, CUstream_st* stream,
                         const std::function<void()>& prepare = {});

 private:
  struct State;
  explicit TrafficCounters(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flash
