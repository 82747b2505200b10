// The problem and its tensors, from the command line: random, or from .npy files.
#pragma once

#include <string>

#include "common/base/host_tensor.hpp"
#include "common/base/problem.hpp"
#include "common/device/device.hpp"
#include "common/program/options.hpp"

namespace flash {

struct Input {
  Problem problem;
  std::string source;  // "random normal, seed 0" or the files' names
  HostTensor q, k, v;
};

/// The problem that the options describe; files are read for their shapes, random tensors are not made. `on_gpu` picks
/// the defaults. Throws UsageError where options and files contradict each other, or the shape is one that no chapter
/// can have.
Problem describe_problem(const Options& options, bool on_gpu);

/// The problem with its tensors.
Input make_input(const Options& options, const Problem& problem);

/// Q, K, V, O, LSE and a chapter's workspace on a device.
class DeviceTensors {
 public:
  /// Throws UsageError, with the bytes needed and free, when the device has not enough memory.
  DeviceTensors(Device& device, const Input& input);

  /// The call with `workspace` memory behind it. The workspace is kept for the next call and grown on demand.
  AttentionCall call(const std::vector<TensorRef>& workspace);

  /// Fills O, LSE and the workspace with NaN: what a kernel does not write cannot pass for a result.
  void poison();

  HostTensor download_o();
  std::vector<float> download_lse();

 private:
  Device& device_;
  AttentionCall call_;
  DeviceBuffer q_, k_, v_, o_, lse_;
  std::vector<DeviceBuffer> workspace_;
};

/// Bytes on the device for a call with this workspace; a double, because a sum of sizes may exceed 64 bits.
double device_bytes(const AttentionCall& call, const std::vector<TensorRef>& workspace);

/// Throws UsageError, with the bytes needed and free, when the problem does not fit on the device or its copy on the
/// host.
void require_memory(Device& device, const Problem& problem, const std::vector<TensorRef>& workspace);

}  // namespace flash
