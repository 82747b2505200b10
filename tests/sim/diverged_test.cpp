// Instructions that PTX calls .aligned (mma, ldmatrix, barriers) need the whole warp, from one place. Where a condition
// that differs between lanes decides about them, hardware does anything; the simulation says so. Collectives with a
// mask may be reached from different places.
#include "common/kernel/fragments.hpp"
#include "common/kernel/kernel.hpp"
#include "tests/sim/harness.hpp"

using flash::Fault;
using flash::test::contains;
using flash::test::fault_of;

namespace flash::sim {
namespace {

enum class Diverged {
  two_products,
  two_loads,
  two_stores,
  two_barriers,
  two_named_barriers,
  through_functions,
  products_of_half_a_warp,
  barrier_of_half_a_warp,
  load_against_barrier,
  more_rounds,
  more_rounds_then_exit,
  more_rounds_of_barriers,
};

using DivergedTile = SharedTile<half, 16, 16, Padded16>;

__global__ void diverged_kernel(Diverged what) {
  auto& tile = shared_storage<DivergedTile>();
  const int lane = int(threadIdx.x) % 32;
  if (threadIdx.x < 16) {
    for (int col = 0; col < 16; ++col) tile.store(lane, col, from_float<half>(1.0f));
  }
  __syncthreads();
  Accumulator d[2] = {};
  FragmentA a = {};
  FragmentB2 b = {};
  const auto address = tile.address(lane % 16, 0);
  switch (what) {
    case Diverged::two_products:
      if (lane < 16) {
        mma_m16n8k16<half>(d[0].value, a.value, b.value[0]);
      } else {
        mma_m16n8k16<half>(d[1].value, a.value, b.value[1]);
      }
      break;
    case Diverged::two_loads:
      if (lane % 2 == 0) {
        ldmatrix_x4(a.value, address);
      } else {
        ldmatrix_x4(a.value, address);
      }
      break;
    case Diverged::two_stores:
      if (lane % 2 == 0) {
        stmatrix_x4(address, a.value);
      } else {
        stmatrix_x4(address, a.value);
      }
      break;
    case Diverged::two_barriers:
      if (lane < 16) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      break;
    case Diverged::two_named_barriers:
      if (lane == 5) {
        named_barrier_sync(1, 64);
      } else {
        named_barrier_sync(1, 64);
      }
      break;
    case Diverged::through_functions:  // one instruction, called from two places
      if (lane < 16) {
        multiply_add<half>(d, a, b);
      } else {
        multiply_add<half>(d, a, b);
      }
      break;
    case Diverged::products_of_half_a_warp:
      if (lane < 16) multiply_add<half>(d, a, b);
      __syncthreads();
      break;
    case Diverged::barrier_of_half_a_warp:
      if (lane < 16) __syncthreads();
      warp_sum(1.0f);
      break;
    case Diverged::load_against_barrier:
      if (lane < 16) {
        ldmatrix_x4(a.value, address);
      } else {
        __syncthreads();
      }
      break;
    case Diverged::more_rounds:
      for (int i = 0; i < (lane < 16 ? 2 : 3); ++i) multiply_add<half>(d, a, b);
      __syncthreads();
      break;
    case Diverged::more_rounds_then_exit:
      for (int i = 0; i < (lane < 16 ? 2 : 3); ++i) multiply_add<half>(d, a, b);
      break;
    case Diverged::more_rounds_of_barriers:
      for (int i = 0; i < (lane == 31 ? 2 : 3); ++i) __syncthreads();
      warp_sum(1.0f);
      break;
  }
}

void expect_diverged(Diverged what, const std::vector<std::string>& texts, const char* kind = "diverged warp") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    INFO("schedule seed " << seed);
    Machine machine(seed, 1);
    const auto fault = fault_of(machine, {"probe", {1}, 64, sizeof(DivergedTile)}, diverged_kernel, what);
    REQUIRE(fault.has_value());
    INFO(fault->what());
    CHECK(fault->kind == kind);
    for (const std::string& text : texts) {
      INFO("missing: " << text);
      CHECK(contains(fault->what(), text));
    }
  }
}

TEST_CASE("lanes that come to one kind of instruction from different places are a diverged warp") {
  expect_diverged(Diverged::two_products, {"a warp comes to mma.sync as a whole, but lanes ",
                                           "mma_m16n8k16<half>(d[0].value, a.value, b.value[0]);",
                                           "mma_m16n8k16<half>(d[1].value, a.value, b.value[1]);"});
  expect_diverged(Diverged::two_stores, {"a warp comes to stmatrix.x4 as a whole, but lanes "});
  expect_diverged(Diverged::two_loads, {"a warp comes to ldmatrix.x4 as a whole, but lanes "});
  expect_diverged(Diverged::two_barriers, {"a warp comes to __syncthreads as a whole, but lanes "});
  expect_diverged(Diverged::two_named_barriers, {"a warp comes to named barrier 1 as a whole, but lanes "});
}

TEST_CASE("a function of common/kernel called from two places is two places") {
  expect_diverged(Diverged::through_functions, {"\n  at tests/sim/diverged_test.cpp:",
                                                ": multiply_add<half>(d, a, b);\n  in common/kernel/fragments.hpp:",
                                                "came from tests/sim/diverged_test.cpp:"});
}

TEST_CASE(
    "an instruction that only some lanes of a warp come to is a diverged warp, and the report says where all are") {
  expect_diverged(Diverged::products_of_half_a_warp,
                  {"a warp comes to mma.sync as a whole: lanes 0-15 of warp 0 are there, lanes 16-31 are not",
                   "warp 0, lanes 0-15 wait at mma.sync for lanes 16-31, tests/sim/diverged_test.cpp:",
                   "warp 0, lanes 16-31 wait at __syncthreads ("});
  expect_diverged(Diverged::barrier_of_half_a_warp,
                  {"a warp comes to __syncthreads as a whole: lanes 0-15 of warp 0 are there, lanes 16-31 are not",
                   "warp 0, lanes 16-31 wait at __shfl_xor_sync for lanes 0-15"});
  expect_diverged(Diverged::load_against_barrier, {"warp 0, lanes 0-15 wait at ldmatrix.x4 for lanes 16-31",
                                                   "warp 0, lanes 16-31 wait at __syncthreads ("});
}

TEST_CASE("lanes that go through a loop a different number of times are found where the others have gone on") {
  expect_diverged(Diverged::more_rounds, {"wait at mma.sync for lanes 0-15", "lanes 0-15 wait at __syncthreads ("});
  expect_diverged(Diverged::more_rounds_then_exit, {"mma.sync waits for lanes 0-15, which have exited"},
                  "exited lanes");
  expect_diverged(Diverged::more_rounds_of_barriers,
                  {"lanes 0-30 of warp 0 are there, lanes 31 are not", "lanes 31 wait at __shfl_xor_sync"});
}

enum class Together { masked_collectives, uniform_branch, lane_zero_between, loop };

__global__ void together_kernel(Together what, float* sum) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  Accumulator d[2] = {};
  FragmentA a = {};
  FragmentB2 b = {};
  switch (what) {
    case Together::masked_collectives:  // votes and shuffles have no .aligned: one mask, two places
      if (lane < 16) {
        *sum += float(__shfl_sync(0xffffffffu, lane, 20));
        __syncwarp();
      } else {
        *sum += float(__shfl_sync(0xffffffffu, lane, 20));
        __syncwarp();
      }
      break;
    case Together::uniform_branch:
      if (warp == 0) {
        multiply_add<half>(d, a, b);
        __syncthreads();
      } else {
        multiply_add<half>(d, a, b);
        __syncthreads();
      }
      break;
    case Together::lane_zero_between:
      for (int i = 0; i < 3; ++i) {
        multiply_add<half>(d, a, b);
        if (lane == i) *sum += warp == 0 ? 1.0f : 2.0f;
        __syncthreads();
      }
      break;
    case Together::loop:
      for (int i = 0; i < 2 + warp; ++i) multiply_add<half>(d, a, b);
      __syncthreads();
      break;
  }
}

TEST_CASE("warps in different places, lanes that do something between and masked collectives are not diverged") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const std::pair<Together, float> expected[] = {{Together::masked_collectives, 64 * 20.0f},
                                                   {Together::uniform_branch, 0.0f},
                                                   {Together::lane_zero_between, 9.0f},
                                                   {Together::loop, 0.0f}};
    for (const auto& [what, wanted] : expected) {
      INFO("schedule seed " << seed << ", kernel " << int(what));
      Machine machine(seed, 1);
      float sum = 0.0f;
      const auto fault = fault_of(machine, {"probe", {1}, 64}, together_kernel, what, &sum);
      if (fault) FAIL_CHECK(fault->what());
      CHECK(sum == wanted);
    }
  }
}

}  // namespace
}  // namespace flash::sim
