// The bytes that kernels moved, from the GPU's own counters, read in the process that launches them.
//
// Through CUPTI's range profiler (https://docs.nvidia.com/cupti/, "CUPTI Range Profiling API"), in user ranges with
// user replay: the GPU has fewer counter registers than there are metrics, so the launches run again for each pass.
// CUPTI is loaded at run time; a program runs without it.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>

struct CUstream_st;  // cudaStream_t is CUstream_st*

namespace flash {

/// Totals over the kernels of one call of the measured function. A metric that the chip lacks is NaN.
struct TrafficReading {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double dram_read = kUnknown;     // bytes, HBM to L2
  double dram_written = kUnknown;  // bytes, L2 to HBM; what stays in L2 when the kernels end is not in it

  double l2_to_sm_read = kUnknown;     // bytes that arrived at the SMs' L1 caches from L2
  double sm_to_l2_written = kUnknown;  // bytes that left them
  double lts_bytes = kUnknown;         // bytes that the L2 slices served, fills from HBM included

  // 32-byte sectors that the SMs' load and store units asked L1 for in global memory. TMA does not pass there.
  double lsu_global_load_sectors = kUnknown;
  double lsu_global_store_sectors = kUnknown;

  /// Warps' accesses of one kind to shared memory, and the extra turns that they took because lanes met in a bank.
  struct SharedAccesses {
    double instructions = kUnknown, bank_conflicts = kUnknown;
  };
  SharedAccesses shared_loads;   // ldmatrix among them
  SharedAccesses shared_stores;  // without those of cp.async
  SharedAccesses shared_copies;  // cp.async
  // Extra turns of the load and store units' data path for any reason: also when accesses to global memory, which pass
  // there too, meet in a bank or with those to shared memory.
  double lsu_bank_conflicts = kUnknown;

  /// Every metric that was read, by CUPTI's name.
  std::map<std::string, double> raw;
  /// How often the launches ran for it.
  int passes = 0;
};

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
