// The bytes that a GPU's counters saw move.
#pragma once

#include <limits>
#include <map>
#include <string>

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

}  // namespace flash
