// Two blocks of one launch and one place in global memory: what is a race, what orders them, and that the answer does
// not depend on which of them comes first.
#include "common/kernel/kernel.hpp"
#include "tests/sim/harness.hpp"

using flash::Fault;
using flash::LaunchConfig;
using flash::test::contains;
using flash::test::fault_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

enum class Case {
  // Races.
  write_write,
  same_value,
  write_read,
  read_write,
  several_read_one_writes,
  all_read_last_writes,
  bytes_of_one_vector,
  copy_read,
  atomic_write,
  write_atomic,
  atomic_read,
  many_atomics_one_read,
  third_of_a_sector,
  not_ordered_by_an_atomic_alone,
  fence_before_only,
  fence_after_only,
  another_counter,
  read_again_after_the_release,
  written_after_the_release,
  // No races.
  neighbouring_elements,
  neighbouring_bytes_read_and_written,
  all_read,
  atomics_of_all,
  each_its_own_rows,
  read_then_write_own,
  counter_of_finished_blocks,
  last_block_overwrites_what_all_read,
  chain_of_two_counters,
};

constexpr int kBlocks = 12;

/// Whether this block is the last of the launch to come to the counter; all it wrote is released before.
__device__ __forceinline__ bool last_to_finish(const GlobalMatrix<int>& counters, int counter, bool fence_before,
                                               bool fence_after) {
  if (fence_before) __threadfence();
  const bool last = atomic_add(counters, 0, counter, 1) == kBlocks - 1;
  if (fence_after) __threadfence();
  return last;
}

// One thread a block; x is [64, 64], y its 16-bit twin, counters start at 0.
__global__ void two_blocks_kernel(GlobalTensor<float> xs, GlobalTensor<half> ys, GlobalTensor<int> cs, Case what) {
  struct Staged {
    SharedTile<float, 1, 4> tile;
  };
  auto& shared = shared_storage<Staged>();
  const auto x = xs.head(0, 0);
  const auto y = ys.head(0, 0);
  const auto counters = cs.head(0, 0);
  const int block = int(blockIdx.x);
  const half value = from_float<half>(float(block));
  switch (what) {
    case Case::write_write:
      if (block == 3 || block == 7) x.store(2, 5, float(block));
      break;
    case Case::same_value:
      if (block == 3 || block == 7) x.store(2, 5, 1.0f);
      break;
    case Case::write_read:
      if (block == 3) x.store(2, 5, 1.0f);
      if (block == 7) x.load(2, 5);
      break;
    case Case::read_write:
      if (block == 3) x.load(2, 5);
      if (block == 7) x.store(2, 5, 1.0f);
      break;
    case Case::several_read_one_writes:
      if (block >= 2) load_vector<4>(x, 2, 4);
      if (block == 1) x.store(2, 5, 1.0f);
      break;
    case Case::all_read_last_writes:
      load_vector<4>(x, 2, 4);
      if (block == kBlocks - 1) x.store(2, 5, 1.0f);
      break;
    case Case::bytes_of_one_vector:
      if (block == 3) y.store_vector(1, 8, Vector<half, 8>{});
      if (block == 7) y.store(1, 15, value);
      break;
    case Case::copy_read:
      if (block == 3) x.store(2, 7, 1.0f);
      if (block == 7) cp_async_16(shared.tile.address(0, 0), x.address(2, 4));
      break;
    case Case::atomic_write:
      if (block == 3) atomic_add(x, 2, 5, 1.0f);
      if (block == 7) x.store(2, 5, 1.0f);
      break;
    case Case::write_atomic:
      if (block == 3) x.store(2, 5, 1.0f);
      if (block == 7) atomic_add(x, 2, 5, 1.0f);
      break;
    case Case::atomic_read:
      if (block == 3) atomic_max(x, 2, 5, 1.0f);
      if (block == 7) x.load(2, 5);
      break;
    case Case::many_atomics_one_read:
      if (block != 6) atomic_add(x, 2, 5, 1.0f);
      if (block == 6) x.load(2, 5);
      break;
    case Case::third_of_a_sector:  // each block has 2 bytes of a sector, and one of them writes its neighbour's too
      y.store(0, block, value);
      if (block == 9) y.store(0, 8, value);
      break;
    case Case::not_ordered_by_an_atomic_alone:
      x.store(block, 0, 1.0f);
      if (last_to_finish(counters, 0, false, false)) x.load(block == 0 ? 1 : 0, 0);
      break;
    case Case::fence_before_only:
      x.store(block, 0, 1.0f);
      if (last_to_finish(counters, 0, true, false)) x.load(block == 0 ? 1 : 0, 0);
      break;
    case Case::fence_after_only:
      x.store(block, 0, 1.0f);
      if (last_to_finish(counters, 0, false, true)) x.load(block == 0 ? 1 : 0, 0);
      break;
    case Case::another_counter:
      x.store(block, 0, 1.0f);
      last_to_finish(counters, block % 2, true, true);
      if (block == 0) x.load(1, 0);
      if (block == 1) x.load(0, 0);
      break;
    case Case::read_again_after_the_release:
      x.load(40, 0);
      if (last_to_finish(counters, 0, true, true)) x.store(40, 0, 1.0f);
      x.load(40, 0);
      break;
    case Case::written_after_the_release:
      last_to_finish(counters, 0, true, true);
      x.store(block, 0, 1.0f);
      __threadfence();
      for (int other = 0; other < kBlocks; ++other) x.load(other, 0);
      break;
    case Case::neighbouring_elements:
      for (int col = block; col < 60; col += kBlocks) y.store(3, col, value);
      break;
    case Case::neighbouring_bytes_read_and_written:
      if (block % 2 == 0) y.store(3, block, value);
      if (block % 2 == 1) y.load(3, block);
      break;
    case Case::all_read:
      for (int col = 0; col < 64; col += 4) load_vector<4>(x, 1, col);
      for (int col = 0; col < 64; ++col) x.load(1, col);
      break;
    case Case::atomics_of_all:
      for (int i = 0; i < 20; ++i) atomic_add(x, 2, i % 3, 1.0f);
      break;
    case Case::each_its_own_rows:
      for (int i = 0; i < 3; ++i) {
        for (int col = 0; col < 64; ++col) x.store(block, col, x.load(block, col) + 1.0f);
      }
      break;
    case Case::read_then_write_own:
      y.load(0, 2 * block);
      y.load(0, 2 * block + 1);
      y.store(0, 2 * block + 1, value);
      atomic_add(counters, 0, 4 + block, 1);
      counters.store(0, 4 + block, 7);
      break;
    case Case::counter_of_finished_blocks:
      x.store(block, 0, float(block));
      if (last_to_finish(counters, 0, true, true)) {
        float sum = 0.0f;
        for (int other = 0; other < kBlocks; ++other) sum += x.load(other, 0);
        x.store(0, 1, sum);
      }
      break;
    case Case::last_block_overwrites_what_all_read:
      for (int col = 0; col < 64; ++col) x.load(40, col);
      x.store(block, 0, float(block));
      if (last_to_finish(counters, 0, true, true)) {
        for (int col = 0; col < 64; ++col) x.store(40, col, 1.0f);
        for (int other = 0; other < kBlocks; ++other) x.store(other, 0, 1.0f);
      }
      break;
    case Case::chain_of_two_counters: {
      // The last of each half writes a sum; the last of the two sums it up.
      x.store(block, 0, float(block));
      const int half_of_blocks = block % 2;
      __threadfence();
      if (atomic_add(counters, 0, half_of_blocks, 1) != kBlocks / 2 - 1) break;
      __threadfence();
      x.store(20 + half_of_blocks, 0, 1.0f);
      __threadfence();
      if (atomic_add(counters, 0, 2, 1) != 1) break;
      __threadfence();
      x.load(20, 0);
      x.load(21, 0);
      for (int other = 0; other < kBlocks; ++other) x.load(other, 0);
      break;
    }
  }
}

struct Tensors {
  Tensor<float> x{"X", 64, 64};
  Tensor<half> y{"Y", 64, 64};
  Tensor<int> counters{"counters", 1, 64};
  Tensors() {
    for (int i = 0; i < 64; ++i) counters[i] = 0;
  }
};

std::optional<Fault> run(Case what, std::uint64_t seed, int host_threads, Tensors& tensors) {
  Machine machine(seed, host_threads);
  return fault_of(machine, {"probe", {kBlocks}, 1, 64}, two_blocks_kernel, GlobalTensor<float>(tensors.x.ref()),
                  GlobalTensor<half>(tensors.y.ref()), GlobalTensor<int>(tensors.counters.ref()), what);
}

/// A race whatever the order of the blocks, on one host thread and on several. With seed 0 and one thread blocks run in
/// order, so the report is known.
void expect_race(Case what, const std::vector<std::string>& texts) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    for (const int host_threads : {1, 3}) {
      INFO("case " << int(what) << ", seed " << seed << ", " << host_threads << " host threads");
      Tensors tensors;
      const std::optional<Fault> fault = run(what, seed, host_threads, tensors);
      REQUIRE(fault.has_value());
      INFO(fault->what());
      CHECK(fault->kind == "data race between blocks");
      CHECK(contains(fault->what(), "nothing orders the two blocks"));
      CHECK(contains(fault->what(), "at tests/sim/between_blocks_test.cpp:"));
      if (seed != 0 || host_threads != 1) continue;
      for (const std::string& text : texts) {
        INFO("missing: " << text);
        CHECK(contains(fault->what(), text));
      }
    }
  }
}

void expect_none(Case what) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    for (const int host_threads : {1, 3}) {
      INFO("case " << int(what) << ", seed " << seed << ", " << host_threads << " host threads");
      Tensors tensors;
      const std::optional<Fault> fault = run(what, seed, host_threads, tensors);
      if (fault) FAIL_CHECK(fault->what());
      if (what == Case::counter_of_finished_blocks) CHECK(tensors.x[1] == float(kBlocks * (kBlocks - 1) / 2));
    }
  }
}

TEST_CASE("two blocks that touch one place, one of them writing, race: both and their places are named") {
  expect_race(Case::write_write, {"block (7, 0, 0) of (12, 1, 1)",
                                  "write of X[batch 0, head 0, row 2, columns 5 to 5]: block (3, 0, 0) wrote it at "
                                  "tests/sim/between_blocks_test.cpp:",
                                  "x.store(2, 5, float(block));"});
  expect_race(Case::same_value, {"block (3, 0, 0) wrote it"});
  expect_race(Case::write_read, {"read of X[batch 0, head 0, row 2, columns 5 to 5]: block (3, 0, 0) wrote it at"});
  expect_race(Case::read_write, {"write of X[batch 0, head 0, row 2, columns 5 to 5]: block (3, 0, 0) read it at"});
  expect_race(Case::several_read_one_writes,
              {"read of X[batch 0, head 0, row 2, columns 4 to 7]: block (1, 0, 0) wrote"});
  expect_race(Case::all_read_last_writes, {"block (11, 0, 0) of", "write of X", "block (0, 0, 0) read it at"});
  expect_race(Case::bytes_of_one_vector,
              {"write of Y[batch 0, head 0, row 1, columns 15 to 15]: block (3, 0, 0) wrote"});
  expect_race(Case::copy_read, {"read of X[batch 0, head 0, row 2, columns 4 to 7]: block (3, 0, 0) wrote it at"});
  expect_race(Case::third_of_a_sector, {"columns 8 to 8]: block (8, 0, 0) wrote it at"});
}

TEST_CASE("an atomic and a plain access of two blocks race, atomics do not") {
  expect_race(Case::atomic_write, {"write of X", "block (3, 0, 0) atomically updated it at"});
  expect_race(Case::write_atomic, {"atomic of X", "block (3, 0, 0) wrote it at"});
  expect_race(Case::atomic_read, {"read of X", "block (3, 0, 0) atomically updated it at"});
  expect_race(Case::many_atomics_one_read, {"block (6, 0, 0) of", "read of X"});
  expect_none(Case::atomics_of_all);
}

TEST_CASE("blocks that touch what no other touches, or only read, do not race") {
  expect_none(Case::neighbouring_elements);
  expect_none(Case::neighbouring_bytes_read_and_written);
  expect_none(Case::all_read);
  expect_none(Case::each_its_own_rows);
  expect_none(Case::read_then_write_own);
}

TEST_CASE("an atomic between two fences orders what came before it and what comes after") {
  expect_none(Case::counter_of_finished_blocks);
  expect_none(Case::last_block_overwrites_what_all_read);
  expect_none(Case::chain_of_two_counters);
}

TEST_CASE("without both fences, or on another place, an atomic orders nothing") {
  expect_race(Case::not_ordered_by_an_atomic_alone, {"read of X", "wrote it"});
  expect_race(Case::fence_before_only, {"read of X", "wrote it"});
  expect_race(Case::fence_after_only, {"read of X", "wrote it"});
  expect_race(Case::another_counter, {"write of X", "block (0, 0, 0) read it"});
  expect_race(Case::read_again_after_the_release, {"X[batch 0, head 0, row 40"});
  expect_race(Case::written_after_the_release, {"write of X", "block (0, 0, 0) read it"});
}

__global__ void one_place_kernel(GlobalTensor<float> x) { x.head(0, 0).store(0, 0, 1.0f); }

TEST_CASE("launches one after another are ordered, and a block does not race with itself") {
  Tensor<float> x("X", 1, 8);
  Machine machine;
  for (int launch = 0; launch < 3; ++launch) {
    machine.launch({"probe", {1}, 64}, one_place_kernel, GlobalTensor<float>(x.ref()));
  }
  const auto fault = fault_of(machine, {"probe", {2}, 1}, one_place_kernel, GlobalTensor<float>(x.ref()));
  REQUIRE(fault.has_value());
  CHECK(fault->kind == "data race between blocks");
}

}  // namespace
}  // namespace flash::sim
