// What reports call a place: the chapter's own line first and then the line of common/kernel that it led to, and the
// member of the block's storage.
#include "common/kernel/fragments.hpp"
#include "common/kernel/kernel.hpp"
#include "common/kernel/load_tile.hpp"
#include "tests/sim/harness.hpp"

using flash::Fault;
using flash::test::contains;
using flash::test::fault_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

using Texts = std::vector<std::string>;

void expect_report(const std::optional<Fault>& fault, const std::string& kind, const Texts& texts) {
  REQUIRE(fault.has_value());
  INFO(fault->what());
  CHECK(fault->kind == kind);
  for (const std::string& text : texts) {
    INFO("missing: " << text);
    CHECK(contains(fault->what(), text));
  }
}

enum class Helper { one, two_deep, race, after_one, copy, barrier };

using HelperTile = SharedTile<half, 32, 64, Padded16>;

__global__ void helper_kernel(GlobalTensor<const half> in, Helper what) {
  auto& tile = shared_storage<HelperTile>();
  const auto rows = in.head(0, 0);
  switch (what) {
    case Helper::one:
      load_a(tile, 0, 16);
      break;
    case Helper::two_deep: {
      Accumulator S[1][2] = {};
      multiply_transposed<half>(S, tile, 0, tile, 0);
      break;
    }
    case Helper::race:
      load_tile<64>(tile, rows, 0);
      warp_sum(1.0f);
      tile.load(1, 0);
      break;
    case Helper::after_one:
      load_tile<64>(tile, rows, 0);
      __syncthreads();
      load_a(tile, 0, 0);
      tile.load(32, 0);
      break;
    case Helper::copy:
      load_tile_async<64>(threadIdx.x, tile, rows, 0);
      __syncthreads();
      load_a(tile, 0, 0);
      break;
    case Helper::barrier:
      if (threadIdx.x < 32) warp_sum(threadIdx.x < 7 ? warp_max(1.0f) : 1.0f);
      break;
  }
}

std::optional<Fault> helper_fault(Helper what) {
  Tensor<half> in("in", 32, 64);
  Machine machine(0, 1);
  const auto fault = fault_of(machine, {"probe", {1}, 64, sizeof(HelperTile)}, helper_kernel,
                              GlobalTensor<const half>(in.ref()), what);
  // The thread that faulted was inside a function; the next launch begins outside.
  const auto next = fault_of(machine, {"probe", {1}, 64, sizeof(HelperTile)}, helper_kernel,
                             GlobalTensor<const half>(in.ref()), Helper::after_one);
  REQUIRE(next.has_value());
  CHECK(!contains(next->what(), "common/kernel/"));
  return fault;
}

TEST_CASE("a fault in a function of common/kernel names the line that called it first") {
  expect_report(helper_fault(Helper::one), "unwritten shared memory",
                {"\n  at tests/sim/reports_test.cpp:", ": load_a(tile, 0, 16);\n  in common/kernel/fragments.hpp:",
                 ": ldmatrix_x4(a.value, tile.lane_address(row, col,"});
  expect_report(
      helper_fault(Helper::two_deep), "unwritten shared memory",
      {": multiply_transposed<half>(S, tile, 0, tile, 0);\n  in common/kernel/fragments.hpp:", ": ldmatrix_x4("});
}

TEST_CASE("the earlier access of a race or of a copy is named by the line that called the function, too") {
  expect_report(
      helper_fault(Helper::race), "data race",
      {": tile.load(1, 0);\n", "the write of byte 144 by thread 8 (warp 0, lane 8)\n  at tests/sim/reports_test",
       ": load_tile<64>(tile, rows, 0);\n  in common/kernel/load_tile.hpp:", ": if (Whole || row < Rows) tile."});
  expect_report(helper_fault(Helper::copy), "copy in flight",
                {": load_a(tile, 0, 0);\n  in common/kernel/fragments.hpp:", "issued by thread ",
                 ": load_tile_async<64>(threadIdx.x, tile, rows, 0);\n  in common/kernel/load_tile.hpp:"});
}

TEST_CASE("those that wait in a function of common/kernel are listed by the line that called it") {
  const auto fault = helper_fault(Helper::barrier);
  expect_report(fault, "exited lanes",
                {"lanes 0-6 wait at __shfl_xor_sync for lanes 7-31, tests/sim/reports_test.cpp:",
                 ", in common/kernel/warp_reduce.hpp:"});
}

TEST_CASE("a fault after a function of common/kernel has returned names its own line alone") {
  const auto fault = helper_fault(Helper::after_one);
  expect_report(fault, "out of bounds", {": tile.load(32, 0);\n  read of row 32, column 0"});
}

// -- Members

struct Group {
  SharedTile<float, 4, 8> Q;
  SharedVector<float, 4> m, l;
  SHARED_MEMBERS(Q, m, l);
};

struct NamedStorage {
  SharedTile<half, 8, 64> KV[2][3];
  Group group[2];
  union {
    Group own;
    SharedTile<float, 2, 8> sums;
  };
  SharedTile<float, 2, 4> nameless;
  SHARED_MEMBERS(KV, group, own, sums);
};

enum class Member { array, nested, vector, in_union, other_of_union, nameless };

__global__ void member_kernel(Member what) {
  auto& smem = shared_storage<NamedStorage>();
  switch (what) {
    case Member::array:
      load_vector<8>(smem.KV[1][2], 3, 8);
      break;
    case Member::nested:
      smem.group[1].Q.load(2, 5);
      break;
    case Member::vector:
      smem.group[0].l.load(3);
      break;
    case Member::in_union:
      smem.own.Q.load(0, 0);
      break;
    case Member::other_of_union:
      smem.sums.load(0, 0);
      break;
    case Member::nameless:
      smem.nameless.load(1, 1);
      break;
  }
}

TEST_CASE("reports call a tile by its name in the storage, through arrays, structs and unions") {
  const auto expect = [](Member what, const std::string& text) {
    Machine machine(0, 1);
    const auto fault = fault_of(machine, {"probe", {1}, 32, sizeof(NamedStorage)}, member_kernel, what);
    expect_report(fault, "unwritten shared memory", {"read of " + text + ": nobody wrote byte"});
    CHECK(!contains(fault->what(), "another warp"));  // there is none
  };
  expect(Member::array, "row 3, columns 8 to 15 of KV[1][2] (8 by 64 at byte 5120)");
  expect(Member::nested, "row 2, column 5 of group[1].Q (4 by 8 at byte 6304)");
  expect(Member::vector, "row 0, column 3 of group[0].l (1 by 4 at byte 6288)");
  expect(Member::in_union, "row 0, column 0 of own.Q (4 by 8 at byte 6464)");
  expect(Member::other_of_union, "row 0, column 0 of sums (2 by 8 at byte 6464)");
  expect(Member::nameless, "row 1, column 1 of the shared tile of 2 by 4 at byte 6624");
}

}  // namespace
}  // namespace flash::sim
