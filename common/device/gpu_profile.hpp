// GPUs that the simulated one can stand for: what differs between them and a kernel can come upon.
#pragma once

#include <string>
#include <vector>

#include "common/base/limits.hpp"

namespace flash {

struct GpuProfile {
  std::string name;   // as --sim-gpu takes it: "a100"
  std::string title;  // "A100"
  DeviceLimits limits;
  int processors = 1;  // streaming multiprocessors
};

/// All there are, the default first. Source: CUDA C++ programming guide, "Technical specifications per compute
/// capability" (maximum amount of shared memory per thread block); for the processors NVIDIA's data sheets of the H200
/// SXM, A100, RTX 4090 and T4.
const std::vector<GpuProfile>& gpu_profiles();

/// Throws UsageError, one line, that lists the names there are.
const GpuProfile& gpu_profile(const std::string& name);

}  // namespace flash
