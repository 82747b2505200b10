#include "common/device/gpu_profile.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace flash {

const std::vector<GpuProfile>& gpu_profiles() {
  static const std::vector<GpuProfile> list = {
      {"h200", "H200", {90, 227 * 1024}, 132},
      {"a100", "A100", {80, 163 * 1024}, 108},
      {"rtx4090", "RTX 4090", {89, 99 * 1024}, 128},
      {"t4", "T4", {75, 64 * 1024}, 40},
  };
  return list;
}

const GpuProfile& gpu_profile(const std::string& name) {
  std::string names;
  for (const GpuProfile& profile : gpu_profiles()) {
    if (profile.name == name) return profile;
    names += (names.empty() ? "" : "|") + profile.name;
  }
  throw UsageError(fmt::format("no simulated GPU is named '{}': use one of {}", name, names));
}

}  // namespace flash
