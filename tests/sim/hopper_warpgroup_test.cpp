// What warpgroups of the simulated GPU have beside products: registers, the elected lane, the clock; and a small
// pipeline of all of Hopper's parts, which gives the same bits whatever the schedule.
#include <cmath>

#include "tests/sim/hopper.hpp"

using flash::Fault;
using flash::Swizzle;
using flash::test::contains;
using flash::test::expect_clean;
using flash::test::expect_fault;
using flash::test::expect_one_of;
using flash::test::fault_of;
using flash::test::map_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

enum class Registers {
  right,
  back_and_forth,
  over_budget,
  never_freed,
  waited_for,
  wrong_way_up,
  wrong_way_down,
  odd,
  too_many,
  one_warp
};

__global__ void register_kernel(Registers what) {
  const int warpgroup = int(threadIdx.x) / 128;
  switch (what) {
    case Registers::right:  // 3 warpgroups of 168: 24 + 2 · 240
      if (warpgroup == 0) {
        decrease_registers<24>();
      } else {
        increase_registers<240>();
      }
      break;
    case Registers::back_and_forth:
      if (warpgroup == 0) {
        decrease_registers<24>();
        named_barrier_sync(1, 384);
        increase_registers<240>();
      } else if (warpgroup == 1) {
        increase_registers<240>();
        decrease_registers<24>();
        named_barrier_sync(1, 384);
      } else {
        named_barrier_sync(1, 384);
      }
      break;
    case Registers::over_budget:  // 40 + 2 · 240 are more than 3 · 168 and the rest
      if (warpgroup == 0) {
        decrease_registers<40>();
      } else {
        increase_registers<240>();
      }
      break;
    case Registers::never_freed:
      if (warpgroup == 1) increase_registers<240>();
      break;
    case Registers::waited_for:  // who has its registers waits for who has not, and the third has ended
      if (warpgroup == 0) {
        decrease_registers<40>();
      } else {
        increase_registers<240>();
        named_barrier_sync(1, 256);
      }
      break;
    case Registers::wrong_way_up:
      increase_registers<160>();
      break;
    case Registers::wrong_way_down:
      decrease_registers<176>();
      break;
    case Registers::odd:
      increase_registers<171>();
      break;
    case Registers::too_many:
      increase_registers<264>();
      break;
    case Registers::one_warp:
      if (threadIdx.x < 32) decrease_registers<24>();
      break;
  }
}

const LaunchConfig kRegisters{"probe", {1}, 384, 0};

TEST_CASE("warpgroups pass registers on, and wait for them") {
  expect_clean(kRegisters, register_kernel, Registers::right);
  expect_clean(kRegisters, register_kernel, Registers::back_and_forth);
}

TEST_CASE("more registers than there are is a fault that says who waits for how many") {
  expect_fault("registers over budget",
               {"wait for 240 registers a thread, 9216 more than they have: 8192 of the 65536 are free",
                "increase_registers<240>();"},
               kRegisters, register_kernel, Registers::over_budget);
  expect_fault("registers over budget", {"warps 4 to 7 wait for 240 registers", "1024 of the 65536 are free"},
               kRegisters, register_kernel, Registers::never_freed);
  expect_fault("registers over budget", {"wait for 240 registers a thread"}, kRegisters, register_kernel,
               Registers::waited_for);
}

TEST_CASE("a register count that setmaxnreg does not take is a fault") {
  const auto expect = [](Registers what, const std::string& text) {
    expect_fault("bad register count", {text}, kRegisters, register_kernel, what);
  };
  expect(Registers::wrong_way_up, "increase_registers<160>, but a thread of this warpgroup has 168");
  expect(Registers::wrong_way_down, "decrease_registers<176>, but a thread of this warpgroup has 168");
  expect(Registers::odd, "increase_registers<171>: multiples of 8 from 24 to 256 are possible");
  expect(Registers::too_many, "increase_registers<264>: multiples of 8 from 24 to 256 are possible");
}

TEST_CASE("a warp that changes its registers without the rest of its warpgroup is a fault") {
  expect_fault("diverged warp", {"a warpgroup comes to decrease_registers as a whole: 32 threads of warps 0 are there"},
               kRegisters, register_kernel, Registers::one_warp);
}

__global__ void elect_kernel(GlobalTensor<float> out, bool diverged) {
  const std::uint32_t before = clock_stamp();
  if (diverged && threadIdx.x == 7) return;
  const bool elected = elect_one();
  out.head(0, 0).store(0, int(threadIdx.x), elected ? 1.0f : 0.0f);
  if (clock_stamp() <= before) out.head(0, 0).store(0, int(threadIdx.x), -1.0f);
}

TEST_CASE("one lane of each warp is elected, and the clock goes on") {
  Tensor<float> out("out", 1, 64);
  expect_clean({"probe", {1}, 64, 0}, elect_kernel, GlobalTensor<float>(out.ref()), false);
  for (int i = 0; i < 64; ++i) CHECK(out[i] == (i % 32 == 0 ? 1.0f : 0.0f));
  expect_one_of({"exited lanes", "diverged warp"}, {"elect_one"}, {"probe", {1}, 64, 0}, elect_kernel,
                GlobalTensor<float>(out.ref()), true);
}

// -- A pipeline of everything

constexpr int kTiles = 6, kStages = 2, kConsumers = 2;

struct PipelineStorage {
  SharedTile<half, 128, 64, Swizzle128> a;
  SharedTile<half, 64, 64, Swizzle128> b[kStages];
  SharedTile<half, 128, 64, Swizzle128> out;
  Mbarrier a_full, full[kStages], empty[kStages];
  SHARED_MEMBERS(a, b, out, a_full, full, empty);
};

enum class Pipeline { right, early_release, release_by_one_warp, missing_wait, one_stage_too_few, short_bytes };

/// out = sum over t of a·b[t]^T, with 64 rows of a for each of two consumer warpgroups; tiles of b arrive through a
/// ring.
__global__ void pipeline_kernel(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                                const __grid_constant__ TensorMap out, Pipeline what) {
  auto& shared = shared_storage<PipelineStorage>();
  const int warpgroup = int(threadIdx.x) / 128;
  const int releases = what == Pipeline::release_by_one_warp ? kConsumers : 4 * kConsumers;
  if (threadIdx.x == 0) {
    shared.a_full.init(1);
    for (int s = 0; s < kStages; ++s) shared.full[s].init(1), shared.empty[s].init(releases);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (warpgroup == kConsumers) {  // the producer
    decrease_registers<24>();
    if (threadIdx.x % 128 != 0) return;
    const int origin[2] = {0, 0};
    shared.a_full.arrive_expect_tx(128 * 64 * 2);
    tma_load(shared.a.address(0, 0), a, origin, shared.a_full);
    for (int t = 0; t < kTiles; ++t) {
      const int stage = t % kStages;
      if (what != Pipeline::one_stage_too_few) {
        shared.empty[stage].wait(unsigned(t / kStages % 2) ^ 1u);
      } else if (t >= kStages + 1) {  // as if there were one more
        shared.empty[stage].wait(unsigned((t - 1) / kStages % 2) ^ 1u);
      }
      shared.full[stage].arrive_expect_tx(64 * 64 * 2 - (what == Pipeline::short_bytes && t == 3 ? 64 : 0));
      const int at[2] = {0, 64 * t};
      tma_load(shared.b[stage].address(0, 0), b, at, shared.full[stage], L2Hint::evict_last);
    }
    return;
  }
  increase_registers<240>();
  AccumulatorRegister d[8][4] = {};
  shared.a_full.wait(0);
  const auto A = matrix_descriptor(shared.a.address(64 * warpgroup, 0), 16, 1024, Swizzle::bytes128);
  for (int t = 0; t < kTiles; ++t) {
    const int stage = t % kStages;
    if (what != Pipeline::missing_wait || t != 3) shared.full[stage].wait(unsigned(t / kStages % 2));
    const auto B = matrix_descriptor(shared.b[stage].address(0, 0), 16, 1024, Swizzle::bytes128);
    wgmma_fence();
    for (int k = 0; k < 64; k += 16) {
      wgmma<half, 64, Major::k, Major::k>(d, advance(A, 2 * k), advance(B, 2 * k), true);
    }
    wgmma_commit();
    if (what != Pipeline::early_release) wgmma_wait<0>();
    const bool releases_stage = what == Pipeline::release_by_one_warp ? threadIdx.x % 128 == 0 : elect_one();
    if (releases_stage) shared.empty[stage].arrive();
    if (what == Pipeline::early_release) wgmma_wait<0>();
  }
  const int row = int(threadIdx.x) / 32 * 16 + int(threadIdx.x) % 32 / 4, column = int(threadIdx.x) % 4 * 2;
  for (int c = 0; c < 8; ++c) {
    for (int h = 0; h < 2; ++h) {
      shared.out.store_vector<2>(row + 8 * h, 8 * c + column,
                                 {from_float<half>(d[c][2 * h]), from_float<half>(d[c][2 * h + 1])});
    }
  }
  async_proxy_fence();
  named_barrier_sync(1 + warpgroup, 128);
  if (threadIdx.x % 128 == 0) {
    const int at[2] = {0, 64 * warpgroup};
    tma_store(out, at, shared.out.address(64 * warpgroup, 0));
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}

struct PipelineTest {
  Tensor<half> a{"A", 128, 64}, b{"B", 64 * kTiles, 64}, out{"out", 128, 64};
  PipelineTest() {
    for (int i = 0; i < 128 * 64; ++i) a[i] = from_float<half>(float(i * 29 % 64) / 37.0f);
    for (int i = 0; i < 64 * kTiles * 64; ++i) b[i] = from_float<half>(float(i * 31 % 97) / 53.0f - 1.0f);
  }
  TensorMap a_map = map_of(a, 128, 64, Swizzle::bytes128), b_map = map_of(b, 64, 64, Swizzle::bytes128),
            out_map = map_of(out, 64, 64, Swizzle::bytes128);
};

const LaunchConfig kPipeline{"probe", {1}, 128 * (kConsumers + 1), sizeof(PipelineStorage)};

TEST_CASE("a pipeline of TMA, mbarriers and wgmma gives the same bits for each schedule seed") {
  PipelineTest test;
  std::vector<std::uint16_t> first;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("schedule seed " << seed);
    Machine machine(seed, 1);
    const auto fault =
        fault_of(machine, kPipeline, pipeline_kernel, test.a_map, test.b_map, test.out_map, Pipeline::right);
    if (fault) FAIL(fault->what());
    std::vector<std::uint16_t> bits;
    for (int i = 0; i < 128 * 64; ++i) bits.push_back(test.out[i].bits);
    if (first.empty()) first = bits;
    CHECK(bits == first);
    CHECK(machine.counters().of_tensor("B")->bytes_read() == kTiles * 64 * 128);
    CHECK(machine.counters().matrix_flops == std::int64_t(2) * 128 * 64 * 64 * kTiles);
  }
  for (int row = 0; row < 128; row += 17) {
    for (int column = 0; column < 64; column += 5) {
      double sum = 0;
      for (int t = 0; t < kTiles; ++t) {
        for (int k = 0; k < 64; ++k) {
          sum += double(to_float(test.a[row * 64 + k])) * double(to_float(test.b[(t * 64 + column) * 64 + k]));
        }
      }
      // The result is rounded to 11 bits.
      CHECK(std::abs(double(to_float(test.out[row * 64 + column])) - sum) <= 1e-3 * std::abs(sum) + 1e-3);
    }
  }
}

TEST_CASE("each mistake in the pipeline is found for each schedule seed") {
  const auto expect = [](Pipeline what, const std::vector<std::string>& kinds, const std::vector<std::string>& texts) {
    PipelineTest test;
    expect_one_of(kinds, texts, kPipeline, pipeline_kernel, test.a_map, test.b_map, test.out_map, what);
  };
  expect(Pipeline::early_release, {"operand in use", "data race"}, {"TMA load of b[", "tma_load("});
  // CUTLASS lets one thread of a warpgroup release a stage; the manual says of a wait only what the own warp can rely
  // on.
  expect(Pipeline::release_by_one_warp, {"data race", "operand in use"}, {"TMA load of b["});
  expect(Pipeline::missing_wait, {"copy in flight", "data race", "phase missed", "unwritten shared memory"}, {"probe"});
  expect(Pipeline::one_stage_too_few, {"too many arrivals", "operand in use", "copy in flight", "data race"},
         {"tests/sim/"});
  expect(Pipeline::short_bytes, {"transaction bytes"},
         {"full[1] at byte", "0 of 1 arrivals and -64 bytes are missing"});
}

}  // namespace
}  // namespace flash::sim
