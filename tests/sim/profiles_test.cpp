// The GPUs that the simulated one stands for: a launch beyond their shared memory is refused, an instruction that they
// lack is a fault with its name.
#include "common/kernel/kernel.hpp"
#include "common/sim/capability.hpp"
#include "tests/sim/harness.hpp"

using flash::DeviceError;
using flash::Fault;
using flash::gpu_profile;
using flash::GpuProfile;
using flash::UsageError;
using flash::test::contains;
using flash::test::fault_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

const GpuProfile kVolta{"v100", "V100", {70, 96 * 1024}};  // older than any profile

enum class Instruction {
  mma_fp16,
  mma_bf16,
  copy,
  zero,
  commit,
  wait,
  ldmatrix,
  ldmatrix_trans,
  stmatrix,
  later,
  hopper_only
};

struct InstructionStorage {
  SharedTile<half, 32, 8> tile;
};

__global__ void instruction_kernel(GlobalTensor<const half> x, Instruction what) {
  auto& shared = shared_storage<InstructionStorage>();
  const int lane = int(threadIdx.x);
  for (int i = 0; i < 8; ++i) shared.tile.store(lane, i, from_float<half>(0.0f));
  __syncwarp();
  float d[4] = {};
  std::uint32_t a[4] = {}, b[2] = {};
  switch (what) {
    case Instruction::mma_fp16:
      mma_m16n8k16<half>(d, a, b);
      break;
    case Instruction::mma_bf16:
      mma_m16n8k16<bfloat16>(d, a, b);
      break;
    case Instruction::copy:
      cp_async_16(shared.tile.address(lane, 0), x.head(0, 0).address(lane, 0));
      break;
    case Instruction::zero:
      cp_async_zero_16(shared.tile.address(lane, 0));
      break;
    case Instruction::commit:
      cp_async_commit();
      break;
    case Instruction::wait:
      cp_async_wait<0>();
      break;
    case Instruction::ldmatrix:
      ldmatrix_x4(a, shared.tile.address(lane, 0));
      break;
    case Instruction::ldmatrix_trans:
      ldmatrix_x2_trans(b, shared.tile.address(lane % 16, 0));
      break;
    case Instruction::stmatrix:
      stmatrix_x4(shared.tile.address(lane, 0), a);
      break;
    case Instruction::later:
      require_capability(90, "something later", Site::here());
      break;
    case Instruction::hopper_only:
      require_exact_capability(90, "something of Hopper's", Site::here());
      break;
  }
}

std::optional<Fault> fault_on(const GpuProfile& gpu, Instruction what) {
  Tensor<half> x("X", 32, 8);
  Machine machine(0, 1, gpu);
  return fault_of(machine, {"probe", {1}, 32, sizeof(InstructionStorage)}, instruction_kernel,
                  GlobalTensor<const half>(x.ref()), what);
}

void expect_missing(const GpuProfile& gpu, Instruction what, const std::string& text) {
  const std::optional<Fault> fault = fault_on(gpu, what);
  INFO(text);
  REQUIRE(fault.has_value());
  INFO(fault->what());
  CHECK(fault->kind == "missing instruction");
  CHECK(contains(fault->what(), text));
  CHECK(contains(fault->what(), "at tests/sim/profiles_test.cpp:"));
}

TEST_CASE("an instruction that the GPU lacks is a fault that says what it needs") {
  const GpuProfile& t4 = gpu_profile("t4");
  expect_missing(t4, Instruction::mma_fp16,
                 "mma.sync m16n8k16 with fp16 operands needs compute capability 8.0; this GPU, the T4, has 7.5");
  expect_missing(t4, Instruction::mma_bf16, "mma.sync with bf16 operands needs compute capability 8.0; this GPU");
  expect_missing(t4, Instruction::copy, "cp.async needs compute capability 8.0");
  expect_missing(t4, Instruction::zero, "cp.async needs compute capability 8.0");
  expect_missing(t4, Instruction::commit, "cp.async.commit_group needs compute capability 8.0");
  expect_missing(t4, Instruction::wait, "cp.async.wait_group needs compute capability 8.0");
  expect_missing(kVolta, Instruction::ldmatrix, "ldmatrix needs compute capability 7.5; this GPU, the V100, has 7.0");
  expect_missing(kVolta, Instruction::ldmatrix_trans, "ldmatrix needs compute capability 7.5");
  expect_missing(gpu_profile("a100"), Instruction::stmatrix,
                 "stmatrix needs compute capability 9.0; this GPU, the A100");
  CHECK(!fault_on(gpu_profile("h200"), Instruction::stmatrix).has_value());
  for (const char* name : {"a100", "rtx4090", "t4"}) {
    expect_missing(gpu_profile(name), Instruction::later, "something later needs compute capability 9.0; this GPU");
    expect_missing(gpu_profile(name), Instruction::hopper_only, "needs compute capability 9.0 exactly; this GPU");
  }
  // Blackwell has later capabilities and not what was Hopper's alone.
  expect_missing({"b200", "B200", {100, 227 * 1024}}, Instruction::hopper_only,
                 "something of Hopper's needs compute capability 9.0 exactly; this GPU, the B200, has 10.0");
}

TEST_CASE("an instruction that the GPU has is no fault") {
  for (const char* name : {"h200", "a100", "rtx4090"}) {
    for (const Instruction what : {Instruction::mma_fp16, Instruction::mma_bf16, Instruction::copy, Instruction::zero,
                                   Instruction::commit, Instruction::wait, Instruction::ldmatrix}) {
      CHECK(!fault_on(gpu_profile(name), what).has_value());
    }
  }
  CHECK(!fault_on(gpu_profile("t4"), Instruction::ldmatrix).has_value());
  CHECK(!fault_on(gpu_profile("h200"), Instruction::hopper_only).has_value());
}

__global__ void idle_kernel() {}

TEST_CASE("a launch with more shared memory than the GPU gives a block is refused") {
  for (const GpuProfile& gpu : gpu_profiles()) {
    INFO(gpu.name);
    Machine machine(0, 1, gpu);
    CHECK(machine.limits().capability == gpu.limits.capability);
    CHECK(machine.limits().shared_bytes == gpu.limits.shared_bytes);
    CHECK(contains(machine.describe(), "simulated GPU (" + gpu.title + ": compute capability "));
    machine.launch({"probe", {1}, 32, gpu.limits.shared_bytes}, idle_kernel);
    try {
      machine.launch({"probe", {1}, 32, gpu.limits.shared_bytes + 1}, idle_kernel);
      FAIL_CHECK("launched");
    } catch (const DeviceError& error) {
      CHECK(contains(error.what(), std::to_string(gpu.limits.shared_bytes) + " are possible on the " + gpu.title));
    }
  }
}

TEST_CASE("the profiles are those of the four GPUs, the H200 first") {
  REQUIRE(gpu_profiles().size() == 4);
  CHECK(gpu_profiles()[0].name == "h200");
  const auto is = [](const char* name, int capability, std::size_t kilobytes) {
    const GpuProfile& gpu = gpu_profile(name);
    CHECK(gpu.limits.capability == capability);
    CHECK(gpu.limits.shared_bytes == kilobytes * 1024);
  };
  is("h200", 90, 227);
  is("a100", 80, 163);
  is("rtx4090", 89, 99);
  is("t4", 75, 64);
  try {
    gpu_profile("gtx1080");
    FAIL_CHECK("found");
  } catch (const UsageError& error) {
    CHECK(contains(error.what(), "'gtx1080': use one of h200|a100|rtx4090|t4"));
  }
}

}  // namespace
}  // namespace flash::sim
