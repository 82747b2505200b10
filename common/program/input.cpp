#include "common/program/input.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/host_memory.hpp"
#include "common/program/file.hpp"
#include "common/program/npy.hpp"

namespace flash {

namespace {

std::int64_t tensor_bytes(const TensorRef& t) {  // of a contiguous tensor
  return t.batch * t.batch_stride * t.element_bytes;
}

void require_agreement(const char* flag, const std::optional<std::int64_t>& given, const std::string& path,
                       std::int64_t in_file) {
  if (given && *given != in_file) {
    throw UsageError(fmt::format("{} {}, but {} has {}: leave {} out, or give matching files", flag, *given,
                                 file_name(path), in_file, flag));
  }
}

NpyArray read_input(const Options& options, const std::string& path) {
  const bool bf16 = options.dtype == DType::bf16;
  return read_npy(path, 4, bf16 ? VoidElements::bfloat16 : VoidElements::refused);
}

/// An array's elements rounded to `dtype`.
HostTensor to_tensor(const NpyArray& array, DType dtype) {
  HostTensor tensor(dtype, array.shape[0], array.shape[1], array.shape[2], array.shape[3]);
  for (std::int64_t i = 0; i < array.size(); ++i) tensor.bits()[i] = tensor.encode(array.as_float(i));
  return tensor;
}

}  // namespace

Problem describe_problem(const Options& options, bool on_gpu) {
  Problem problem;
  problem.causal = options.causal;
  problem.dtype = options.dtype.value_or(DType::fp16);
  if (options.q_path.empty()) {
    problem.batch = options.batch.value_or(1);
    problem.heads = options.heads.value_or(on_gpu ? 16 : 2);
    problem.kv_heads = options.kv_heads.value_or(problem.heads);
    problem.seq_q = options.seq.value_or(on_gpu ? 4096 : 256);
    problem.seq_kv = options.seq_kv.value_or(problem.seq_q);
    problem.head_dim = options.head_dim.value_or(on_gpu ? 128 : 64);
    problem.validate();
    return problem;
  }
  const NpyArray q = read_input(options, options.q_path), k = read_input(options, options.k_path),
                 v = read_input(options, options.v_path);
  const std::string q_file = file_name(options.q_path), k_file = file_name(options.k_path);
  if (k.shape != v.shape) {
    throw UsageError(fmt::format("{} has shape {} and {} has shape {}: k and v need the same", k_file,
                                 shape_text(k.shape), file_name(options.v_path), shape_text(v.shape)));
  }
  if (q.shape[0] != k.shape[0] || q.shape[3] != k.shape[3]) {
    throw UsageError(
        fmt::format("{} has shape {} and {} has shape {}: batch (first) and head dimension (last) must agree", q_file,
                    shape_text(q.shape), k_file, shape_text(k.shape)));
  }
  problem.batch = q.shape[0];
  problem.seq_q = q.shape[1];
  problem.heads = q.shape[2];
  problem.head_dim = q.shape[3];
  problem.seq_kv = k.shape[1];
  problem.kv_heads = k.shape[2];
  require_agreement("--batch", options.batch, options.q_path, problem.batch);
  require_agreement("--seq", options.seq, options.q_path, problem.seq_q);
  require_agreement("--heads", options.heads, options.q_path, problem.heads);
  require_agreement("--head-dim", options.head_dim, options.q_path, problem.head_dim);
  require_agreement("--seq-kv", options.seq_kv, options.k_path, problem.seq_kv);
  require_agreement("--kv-heads", options.kv_heads, options.k_path, problem.kv_heads);
  // validate() suggests options; here the files have to change.
  if (problem.head_dim % 8 != 0) {
    throw UsageError(fmt::format("{} has shape {}: head-dim {} is not a multiple of 8", q_file, shape_text(q.shape),
                                 problem.head_dim));
  }
  if (problem.heads % problem.kv_heads != 0) {
    throw UsageError(fmt::format("{} has shape {} and {} has shape {}: heads {} is not a multiple of kv-heads {}",
                                 q_file, shape_text(q.shape), k_file, shape_text(k.shape), problem.heads,
                                 problem.kv_heads));
  }
  problem.validate();
  return problem;
}

Input make_input(const Options& options, const Problem& problem) {
  Input input;
  input.problem = problem;
  if (!options.q_path.empty()) {
    input.source = fmt::format("{}, {}, {}", options.q_path, options.k_path, options.v_path);
    input.q = to_tensor(read_input(options, options.q_path), problem.dtype);
    input.k = to_tensor(read_input(options, options.k_path), problem.dtype);
    input.v = to_tensor(read_input(options, options.v_path), problem.dtype);
    return input;
  }
  input.source = fmt::format("random {}, seed {}", to_string(options.distribution), options.seed);
  input.q = HostTensor(problem.dtype, problem.batch, problem.seq_q, problem.heads, problem.head_dim);
  input.k = HostTensor(problem.dtype, problem.batch, problem.seq_kv, problem.kv_heads, problem.head_dim);
  input.v = HostTensor(problem.dtype, problem.batch, problem.seq_kv, problem.kv_heads, problem.head_dim);
  fill_random(input.q, options.distribution, options.seed, 0);
  fill_random(input.k, options.distribution, options.seed, 1);
  fill_random(input.v, options.distribution, options.seed, 2);
  return input;
}

double device_bytes(const AttentionCall& call, const std::vector<TensorRef>& workspace) {
  double bytes = 0;
  for (const TensorRef* t : {&call.q, &call.k, &call.v, &call.o, &call.lse}) bytes += double(tensor_bytes(*t));
  for (const TensorRef& t : workspace) bytes += double(tensor_bytes(t));
  return bytes;
}

void require_memory(Device& device, const Problem& problem, const std::vector<TensorRef>& workspace) {
  const AttentionCall call = contiguous_call(problem);
  const double on_device = device_bytes(call, workspace), on_host = device_bytes(call, {});
  const bool shared = device.kind() == DeviceKind::sim;  // the simulation's memory is the host's
  const double host_need = on_host + (shared ? on_device : 0.0), host_free = double(host_available_bytes());
  if (!shared && on_device > double(device.free_bytes())) {
    throw UsageError(fmt::format(
        "{} needs {:.2f} GB on the GPU ({:.2f} GB of it intermediate tensors) and {:.2f} GB are "
        "free: use a smaller problem",
        problem.describe(), on_device / 1e9, (on_device - on_host) / 1e9, double(device.free_bytes()) / 1e9));
  }
  if (host_need > host_free) {
    throw UsageError(
        fmt::format("{} needs {:.2f} GB of the host's memory and {:.2f} GB are free: use a smaller problem",
                    problem.describe(), host_need / 1e9, host_free / 1e9));
  }
}

DeviceTensors::DeviceTensors(Device& device, const Input& input)
    : device_(device), call_(contiguous_call(input.problem)) {
  const auto place = [&](TensorRef& ref, DeviceBuffer& buffer) {
    buffer = DeviceBuffer(device_, std::size_t(tensor_bytes(ref)));
    ref.data = buffer.data();
  };
  place(call_.q, q_);
  place(call_.k, k_);
  place(call_.v, v_);
  place(call_.o, o_);
  place(call_.lse, lse_);
  device_.upload(q_.data(), input.q.bits(), input.q.bytes());
  device_.upload(k_.data(), input.k.bits(), input.k.bytes());
  device_.upload(v_.data(), input.v.bits(), input.v.bytes());
}

AttentionCall DeviceTensors::call(const std::vector<TensorRef>& workspace) {
  AttentionCall call = call_;
  call.workspace = workspace;
  for (std::size_t i = 0; i < workspace.size(); ++i) {
    if (i == workspace_.size()) workspace_.emplace_back();
    const auto bytes = std::size_t(tensor_bytes(workspace[i]));
    if (workspace_[i].bytes() < bytes) {
      workspace_[i] = DeviceBuffer();  // free the old memory first
      workspace_[i] = DeviceBuffer(device_, bytes);
    }
    call.workspace[i].data = workspace_[i].data();
  }
  return call;
}

void DeviceTensors::poison() {
  // All bits set is a NaN in fp16, bf16 and fp32.
  device_.fill_bytes(o_.data(), 0xff, o_.bytes());
  device_.fill_bytes(lse_.data(), 0xff, lse_.bytes());
  for (DeviceBuffer& buffer : workspace_) device_.fill_bytes(buffer.data(), 0xff, buffer.bytes());
}

HostTensor DeviceTensors::download_o() {
  const Problem& p = call_.problem;
  HostTensor o(p.dtype, p.batch, p.seq_q, p.heads, p.head_dim);
  device_.download(o.bits(), o_.data(), o.bytes());
  return o;
}

std::vector<float> DeviceTensors::download_lse() {
  const Problem& p = call_.problem;
  std::vector<float> lse(std::size_t(p.batch * p.heads * p.seq_q));
  device_.download(lse.data(), lse_.data(), lse.size() * sizeof(float));
  return lse;
}

}  // namespace flash
