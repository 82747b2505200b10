// For each fault of the simulated GPU a small kernel that commits it, and the report that it must give; and correct
// kernels that must give none.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "common/kernel/kernel.hpp"
#include "tests/sim/harness.hpp"

using flash::DeviceError;
using flash::Fault;
using flash::LaunchConfig;
using flash::test::contains;
using flash::test::fault_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

using Texts = std::vector<std::string>;

constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3, 4};

// -- A correct kernel that uses everything: after a fault it must still give the right result

struct HealthyStorage {
  SharedTile<float, 2, 64> staged;
  SharedVector<float, 2> of_warp;
};

// out[block][i] = sum of all in[..] + in[i], for one row of 64
__global__ void healthy_kernel(GlobalTensor<const float> in, GlobalTensor<float> out) {
  auto& shared = shared_storage<HealthyStorage>();
  const int thread = int(threadIdx.x);
  const auto x = in.head(0, 0);
  if (thread < 16) cp_async_16(shared.staged.address(0, 4 * thread), x.address(0, 4 * thread));
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  const float mine = shared.staged.load(0, thread);
  const float sum = warp_sum(mine);
  if (thread % 32 == 0) shared.of_warp.store(thread / 32, sum);
  named_barrier_sync(3, 64);
  out.head(0, 0).store(int(blockIdx.x), thread, shared.of_warp.load(0) + shared.of_warp.load(1) + mine);
}

void require_healthy(Machine& machine) {
  Tensor<float> in("in", 1, 64), out("out", 3, 64);
  machine.launch({"healthy", {3}, 64, sizeof(HealthyStorage)}, healthy_kernel, GlobalTensor<const float>(in.ref()),
                 GlobalTensor<float>(out.ref()));
  for (int i = 0; i < 3 * 64; ++i) {
    if (out[i] != float(63 * 64 / 2 + i % 64)) FAIL("the launch after the fault gave a wrong result at " << i);
  }
}

/// The launch must end in a fault of this kind whose report has all of the texts, whatever the schedule.
template <typename... Parameters, typename... Arguments>
void expect_fault(const std::string& kind, Texts texts, const LaunchConfig& config, void (*kernel)(Parameters...),
                  Arguments&&... arguments) {
  texts.push_back("fault: " + kind);
  texts.push_back("kernel probe, block (");
  texts.push_back("tests/sim/faults_test.cpp:");
  for (const std::uint64_t seed : kSeeds) {
    INFO("schedule seed " << seed);
    Machine machine(seed, 2);
    const std::optional<Fault> fault = fault_of(machine, config, kernel, arguments...);
    REQUIRE(fault.has_value());
    INFO(fault->what());
    CHECK(fault->kind == kind);
    for (const std::string& text : texts) {
      INFO("missing: " << text);
      CHECK(contains(fault->what(), text));
    }
    require_healthy(machine);
  }
}

/// The launch must end in a report of two accesses that nothing orders, whatever the schedule: where the reader comes
/// first there is nothing to read yet.
template <typename... Parameters, typename... Arguments>
void expect_unordered(const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  for (const std::uint64_t seed : kSeeds) {
    INFO("schedule seed " << seed);
    Machine machine(seed, 1);
    const std::optional<Fault> fault = fault_of(machine, config, kernel, arguments...);
    REQUIRE(fault.has_value());
    INFO(fault->what());
    CHECK((fault->kind == "data race" || fault->kind == "unwritten shared memory"));
  }
}

/// The launch must end without one, whatever the schedule.
template <typename... Parameters, typename... Arguments>
void expect_clean(const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("schedule seed " << seed);
    Machine machine(seed, 2);
    const std::optional<Fault> fault = fault_of(machine, config, kernel, arguments...);
    if (fault) FAIL_CHECK(fault->what());
  }
}

// -- Global memory

enum class Global { row, col, vector, negative, write, head, batch, copy, misaligned, misaligned_write };

__global__ void global_kernel(GlobalTensor<float> tensor, Global what) {
  if (blockIdx.x != 1 || threadIdx.x != 37) return;
  const auto x = tensor.head(1, 2);
  switch (what) {
    case Global::row:
      x.load(4, 0);
      break;
    case Global::col:
      x.load(3, 8);
      break;
    case Global::vector:
      load_vector<4>(x, 2, 6);
      break;
    case Global::negative:
      x.load(-1, 3);
      break;
    case Global::write:
      x.store(0, 9, 1.0f);
      break;
    case Global::head:
      tensor.head(1, 3).load(0, 0);
      break;
    case Global::batch:
      tensor.head(2, 0).load(0, 0);
      break;
    case Global::copy:
      x.address(3, 6);
      break;
    case Global::misaligned:
      load_vector<2>(x, 1, 3);
      break;
    case Global::misaligned_write:
      x.store_vector(1, 2, Vector<float, 4>{});
      break;
  }
}

void expect_global_fault(Global what, const std::string& kind, Texts texts) {
  Tensor<float> x("X", 2, 3, 4, 8);
  texts.push_back("block (1, 0, 0) of (2, 1, 1), thread 37 (warp 1, lane 5)");
  expect_fault(kind, texts, {"probe", {2}, 64}, global_kernel, GlobalTensor<float>(x.ref()), what);
}

TEST_CASE("a global access outside the tensor is reported with tensor and indices") {
  expect_global_fault(Global::row, "out of bounds",
                      {"read of X[batch 1, head 2, row 4, columns 0 to 0]", "4 rows and 8 columns", ": x.load(4, 0);"});
  expect_global_fault(Global::col, "out of bounds",
                      {"read of X[batch 1, head 2, row 3, columns 8 to 8]", "x.load(3, 8)"});
  expect_global_fault(Global::vector, "out of bounds",
                      {"read of X[batch 1, head 2, row 2, columns 6 to 9]", "load_vector<4>(x, 2, 6)"});
  expect_global_fault(Global::negative, "out of bounds", {"row -1", "x.load(-1, 3)"});
  expect_global_fault(Global::write, "out of bounds", {"write of X[batch 1, head 2, row 0, columns 9 to 9]"});
  expect_global_fault(Global::head, "out of bounds", {"X[batch 1, head 3]", "2 batches and 3 heads"});
  expect_global_fault(Global::batch, "out of bounds", {"X[batch 2, head 0]"});
  expect_global_fault(Global::copy, "out of bounds", {"copy of X[batch 1, head 2, row 3, columns 6 to 9]"});
}

TEST_CASE("a misaligned global vector access is reported") {
  expect_global_fault(Global::misaligned, "misaligned",
                      {"read of X[batch 1, head 2, row 1, columns 3 to 4]", "not a multiple of 8 bytes"});
  expect_global_fault(Global::misaligned_write, "misaligned",
                      {"write of X[batch 1, head 2, row 1, columns 2 to 5]", "not a multiple of 16 bytes"});
}

// -- Shared tiles

struct Tiles {
  SharedTile<float, 4, 8> first;
  SharedTile<float, 2, 6> odd;  // rows of 24 bytes
};

enum class Tile { row, col, negative, vector, address, write, misaligned, misaligned_write, unwritten, foreign };

__global__ void tile_kernel(Tile what) {
  auto& shared = shared_storage<Tiles>();
  if (threadIdx.x != 40) return;
  SharedTile<float, 2, 2> own{};
  switch (what) {
    case Tile::row:
      shared.first.load(4, 1);
      break;
    case Tile::col:
      shared.odd.load(1, 6);
      break;
    case Tile::negative:
      shared.first.load(0, -1);
      break;
    case Tile::vector:
      load_vector<4>(shared.odd, 0, 4);
      break;
    case Tile::address:
      shared.first.address(3, 5);
      break;
    case Tile::write:
      shared.first.store(-2, 0, 1.0f);
      break;
    case Tile::misaligned:
      load_vector<4>(shared.odd, 1, 0);
      break;
    case Tile::misaligned_write:
      shared.first.store_vector(2, 1, Vector<float, 2>{});
      break;
    case Tile::unwritten:
      shared.first.store(1, 2, 1.0f);
      load_vector<2>(shared.first, 1, 2);
      break;
    case Tile::foreign:
      own.store(1, 1, 1.0f);
      break;
  }
}

void expect_tile_fault(Tile what, const std::string& kind, Texts texts) {
  texts.push_back("thread 40 (warp 1, lane 8)");
  expect_fault(kind, texts, {"probe", {1}, 64, sizeof(Tiles)}, tile_kernel, what);
}

TEST_CASE("an index outside a shared tile is reported with the tile and the indices") {
  expect_tile_fault(Tile::row, "out of bounds",
                    {"read of row 4, column 1 of the shared tile of 4 by 8 at byte 0", "shared.first.load(4, 1)"});
  expect_tile_fault(Tile::col, "out of bounds", {"read of row 1, column 6 of the shared tile of 2 by 6 at byte 128"});
  expect_tile_fault(Tile::negative, "out of bounds", {"row 0, column -1"});
  expect_tile_fault(Tile::vector, "out of bounds", {"row 0, columns 4 to 7 of the shared tile of 2 by 6"});
  expect_tile_fault(Tile::address, "out of bounds", {"address of row 3, columns 5 to 8"});
  expect_tile_fault(Tile::write, "out of bounds", {"write of row -2, column 0"});
  expect_tile_fault(Tile::foreign, "out of bounds", {"lies outside the", "own.store(1, 1, 1.0f)"});
}

TEST_CASE("a misaligned access to a shared tile is reported") {
  expect_tile_fault(Tile::misaligned, "misaligned",
                    {"read of row 1, columns 0 to 3 of the shared tile of 2 by 6", "not a multiple of 16 bytes"});
  expect_tile_fault(Tile::misaligned_write, "misaligned", {"write of row 2, columns 1 to 2", "8 bytes"});
}

TEST_CASE("a read of shared memory that nobody wrote is reported, also what another block wrote") {
  expect_tile_fault(Tile::unwritten, "unwritten shared memory",
                    {"read of row 1, columns 2 to 3 of the shared tile of 4 by 8",
                     "nobody wrote byte 44, or not yet: if another warp brings it, a barrier is missing"});
}

__global__ void write_in_first_block_kernel() {
  auto& shared = shared_storage<SharedVector<float, 32>>();
  if (blockIdx.x == 0) shared.store(int(threadIdx.x), 1.0f);
  shared.load(int(threadIdx.x));
}

TEST_CASE("what one block left in shared memory is not there for the next") {
  Machine machine(0, 1);  // one host thread: the second block gets the first one's memory
  const auto fault = fault_of(machine, {"probe", {2}, 32, 128}, write_in_first_block_kernel);
  REQUIRE(fault.has_value());
  CHECK(fault->kind == "unwritten shared memory");
  CHECK(contains(fault->what(), "block (1, 0, 0)"));
}

TEST_CASE("storage larger than the launch's shared memory is reported") {
  expect_fault("out of bounds", {"the kernel's storage has 176 bytes and the launch gave 100 bytes"},
               {"probe", {1}, 64, 100}, tile_kernel, Tile::row);
}

// -- Data races

enum class Race {
  write_write,
  write_read,
  read_write,
  lanes_write_write,
  lanes_write_read,
  lanes_read_write,
  lanes_partial_syncwarp,
  lanes_shuffle_orders_nothing,
  one_barrier_too_few,
  arrive_orders_nothing_for_the_arriving,
  write_after_arrive,
  other_pair_of_warps,
  vector_overlap,
  several_readers,
  last_reader_writes
};

struct RaceStorage {
  SharedVector<float, 128> x;
};

__global__ void race_kernel(Race what) {
  auto& x = shared_storage<SharedVector<float, 128>>();
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  x.store(thread, 0.0f);
  __syncthreads();
  switch (what) {
    case Race::write_write:
      x.store(lane, 1.0f);
      break;
    case Race::write_read:
      if (warp == 0) x.store(lane, 1.0f);
      if (warp == 1) x.load(lane);
      break;
    case Race::read_write:
      if (thread == 5) x.load(70);
      if (thread == 70) x.store(70, 2.0f);
      break;
    case Race::lanes_write_write:
      if (lane == 3 || lane == 9) x.store(warp, float(lane));
      break;
    case Race::lanes_write_read:
      x.store(thread, 1.0f);
      x.load(thread ^ 1);
      break;
    case Race::lanes_read_write:
      x.store(thread, 1.0f);
      __syncwarp();
      x.load(thread ^ 1);
      x.store(thread, 2.0f);
      break;
    case Race::lanes_partial_syncwarp:
      x.store(thread, 1.0f);
      __syncwarp(lane < 16 ? 0x0000ffffu : 0xffff0000u);
      if (lane == 20) x.load(warp * 32 + 2);
      break;
    case Race::lanes_shuffle_orders_nothing:
      x.store(thread, 1.0f);
      warp_sum(1.0f);
      x.load(thread ^ 1);
      break;
    case Race::one_barrier_too_few:
      for (int round = 0; round < 2; ++round) {  // the second round writes what the first one still reads
        if (warp == 0) x.store(lane, 1.0f);
        __syncthreads();
        x.load(lane);
      }
      break;
    case Race::arrive_orders_nothing_for_the_arriving:
      if (warp == 0) {
        x.store(lane, 1.0f);
        named_barrier_arrive(1, 64);
        x.load(32 + lane);  // warp 1 wrote it before it came, but warp 0 did not wait
      } else if (warp == 1) {
        x.store(32 + lane, 1.0f);
        named_barrier_sync(1, 64);
      }
      break;
    case Race::write_after_arrive:
      if (warp == 0) {
        named_barrier_arrive(1, 64);
        x.store(lane, 1.0f);
      } else if (warp == 1) {
        named_barrier_sync(1, 64);
        x.load(lane);
      }
      break;
    case Race::other_pair_of_warps:  // warps 0 and 1 meet, warps 2 and 3 meet, and 2 reads what 0 wrote
      if (warp == 0) x.store(lane, 1.0f);
      named_barrier_sync(1 + warp / 2, 64);
      if (warp == 2) x.load(lane);
      break;
    case Race::vector_overlap:
      if (warp == 0) x.store(lane, 1.0f);
      if (thread == 33) x.store(31, 2.0f);
      break;
    case Race::several_readers:
      x.load(0);
      if (thread == 1) x.store(0, 2.0f);
      break;
    case Race::last_reader_writes:
      if (warp == 0) x.load(0);
      if (thread == 31) x.store(0, 2.0f);
      break;
  }
}

void expect_race(Race what, Texts texts) {
  texts.push_back("no barrier between it and the");
  expect_fault("data race", texts, {"probe", {1}, 128, sizeof(RaceStorage)}, race_kernel, what);
}

TEST_CASE("a data race between warps is reported with both accesses") {
  expect_race(Race::write_write, {"write of row 0, column", "of the shared tile of 1 by 128 at byte 0",
                                  "no barrier between it and the write of byte", ": x.store(lane, 1.0f);"});
  expect_race(Race::write_read, {});
  expect_race(Race::read_write, {"of byte 280 by thread"});
  expect_race(Race::one_barrier_too_few, {});
  expect_race(Race::arrive_orders_nothing_for_the_arriving, {"x.load(32 + lane)", "x.store(32 + lane, 1.0f)"});
  expect_race(Race::write_after_arrive, {"x.store(lane, 1.0f)", "x.load(lane)"});
  expect_race(Race::other_pair_of_warps, {});
  expect_race(Race::several_readers, {"of byte 0 by thread"});
  expect_race(Race::vector_overlap, {"of byte 124 by thread"});
}

TEST_CASE("a data race between lanes of one warp is reported: __syncwarp is missing, or leaves a lane out") {
  expect_race(Race::lanes_write_write, {"the write of byte", "by thread"});
  expect_race(Race::lanes_write_read, {"x.load(thread ^ 1)"});
  expect_race(Race::lanes_read_write, {"x.load(thread ^ 1)", "x.store(thread, 2.0f)"});
  expect_race(Race::lanes_partial_syncwarp, {"x.load(warp * 32 + 2)", "x.store(thread, 1.0f)"});
  expect_race(Race::lanes_shuffle_orders_nothing, {"x.load(thread ^ 1)"});
  expect_race(Race::last_reader_writes, {"of byte 0 by thread"});
}

// -- Correct patterns, which must not be reported

enum class Correct {
  double_buffer,
  producer_consumer,
  readers_then_writer,
  own_value_after_all_read_it,
  broadcast,
  warp_private,
  partial_syncwarp,
  chain_of_syncwarps,
  reuse_after_barrier,
  chain_of_barriers,
  neighbours_in_a_word,
  copy_double_buffer,
  overlapping_masks_in_turn
};

struct CorrectStorage {
  SharedTile<float, 2, 128> buffers;
  SharedTile<half, 1, 256> halves;
};

__global__ void correct_kernel(GlobalTensor<const float> in, GlobalTensor<float> out, Correct what) {
  auto& shared = shared_storage<CorrectStorage>();
  auto& x = shared.buffers;
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  float sum = 0.0f;
  switch (what) {
    case Correct::double_buffer:
      x.store(0, thread, 1.0f);
      for (int round = 0; round < 5; ++round) {
        __syncthreads();
        if (round < 4) x.store((round + 1) % 2, thread, float(round + 2));
        sum += x.load(round % 2, (thread + 37) % 128);
      }
      if (sum != 15.0f) out.head(0, 0).store(0, 0, -1.0f);
      break;
    case Correct::producer_consumer:  // warp 0 fills two buffers in turn, warp 1 empties them; 1 + b full, 3 + b empty
      if (warp == 0) {
        for (int round = 0; round < 6; ++round) {
          const int b = round % 2;
          if (round >= 2) named_barrier_sync(3 + b, 64);
          x.store(b, lane, float(round));
          named_barrier_arrive(1 + b, 64);
        }
      } else if (warp == 1) {
        for (int round = 0; round < 6; ++round) {
          const int b = round % 2;
          named_barrier_sync(1 + b, 64);
          if (x.load(b, lane ^ 5) != float(round)) out.head(0, 0).store(0, 0, -1.0f);
          if (round < 4) named_barrier_arrive(3 + b, 64);
        }
      }
      break;
    case Correct::readers_then_writer:
      x.store(0, thread, 1.0f);
      __syncthreads();
      for (int i = 0; i < 128; i += 9) sum += x.load(0, i);
      __syncthreads();
      x.store(0, 127 - thread, sum);
      break;
    case Correct::own_value_after_all_read_it:  // an old row maximum that all read, and its owner then updates
      x.store(0, thread, 1.0f);
      __syncthreads();
      for (int i = 0; i < 128; i += 5) sum += x.load(0, i);
      __syncthreads();
      x.store(0, thread, sum + x.load(0, thread));
      __syncwarp();
      if (lane == 0) {
        for (int i = 0; i < 32; ++i) sum += x.load(0, warp * 32 + i);
        x.store(0, warp * 32 + 7, sum);
      }
      break;
    case Correct::broadcast:
      if (thread == 77) x.store(1, 3, 4.0f);
      __syncthreads();
      sum = x.load(1, 3);
      __syncthreads();
      if (thread == 12) x.store(1, 3, 5.0f);
      break;
    case Correct::warp_private:
      for (int round = 0; round < 3; ++round) {
        x.store(0, thread, float(round));
        __syncwarp();
        sum += x.load(0, thread ^ 31);
        __syncwarp();
      }
      break;
    case Correct::partial_syncwarp:
      x.store(0, thread, 1.0f);
      if (lane < 8) {
        __syncwarp(0xffu);
        sum = x.load(0, thread ^ 7);
        __syncwarp(0xffu);
        x.store(0, thread, sum);
      } else {
        __syncwarp(0xffffff00u);
        sum = x.load(0, warp * 32 + 8 + (lane + 1) % 24);
      }
      break;
    case Correct::chain_of_syncwarps:  // lane 0 hands on to lane 1, that one to lane 2, who has not met lane 0
      if (lane == 0) x.store(0, warp, 1.0f);
      if (lane <= 1) __syncwarp(0x3u);
      if (lane == 1 || lane == 2) __syncwarp(0x6u);
      if (lane == 2) x.store(0, warp, 1.0f + x.load(0, warp));
      break;
    case Correct::reuse_after_barrier:
      for (int round = 0; round < 4; ++round) {
        if (warp == round % 4) x.store(0, lane, float(round));
        __syncthreads();
        sum += x.load(0, lane);
        __syncthreads();
      }
      break;
    case Correct::chain_of_barriers:  // 0 to 1, 1 to 2, 2 to 3: 3 reads what 0 wrote
      if (warp == 0) x.store(0, lane, 1.0f);
      if (warp > 0) named_barrier_sync(warp, 64);
      if (warp < 3) named_barrier_sync(warp + 1, 64);
      if (warp == 3) x.store(0, lane, x.load(0, lane ^ 1) * 0.0f), sum = 1.0f;
      break;
    case Correct::neighbours_in_a_word:
      shared.halves.store(0, thread, from_float<half>(1.0f));
      shared.halves.store(0, thread, from_float<half>(2.0f));
      break;
    case Correct::copy_double_buffer: {
      const auto g = in.head(0, 0);
      const auto fetch = [&](int round) {
        if (thread < 32) cp_async_16(x.address(round % 2, 4 * thread), g.address(round, 4 * thread));
        cp_async_commit();
      };
      fetch(0);
      for (int round = 0; round < 4; ++round) {
        if (round < 3) {
          fetch(round + 1);
          cp_async_wait<1>();
        } else {
          cp_async_wait<0>();
        }
        __syncthreads();
        if (x.load(round % 2, (thread + 64) % 128) != float(round * 128 + (thread + 64) % 128)) {
          out.head(0, 0).store(0, 0, -1.0f);
        }
        __syncthreads();
      }
      break;
    }
    case Correct::overlapping_masks_in_turn:
      if (lane < 16) sum += __shfl_xor_sync(0xffffu, float(lane), 8);
      if (lane >= 8) sum += __shfl_sync(0xffffff00u, float(lane), 31);
      sum += warp_sum(sum);
      break;
  }
  if (sum == -12345.0f) out.head(0, 0).store(0, 1, sum);
}

TEST_CASE("correct kernels end without a fault, with the right values") {
  for (const Correct what :
       {Correct::double_buffer, Correct::producer_consumer, Correct::readers_then_writer, Correct::broadcast,
        Correct::warp_private, Correct::partial_syncwarp, Correct::chain_of_syncwarps, Correct::reuse_after_barrier,
        Correct::neighbours_in_a_word, Correct::copy_double_buffer, Correct::overlapping_masks_in_turn,
        Correct::own_value_after_all_read_it}) {
    INFO("pattern " << int(what));
    Tensor<float> in("in", 4, 128), out("out", 1, 2);
    expect_clean({"correct", {2}, 128, sizeof(CorrectStorage)}, correct_kernel, GlobalTensor<const float>(in.ref()),
                 GlobalTensor<float>(out.ref()), what);
    CHECK(out[0] == 0.0f);
  }
}

TEST_CASE("what several barriers order one after another is ordered") {
  // Lane l of warp 3 writes where its neighbour reads: only across warps is this pattern correct.
  Tensor<float> in("in", 4, 128), out("out", 1, 2);
  Machine machine(0, 1);
  const auto fault =
      fault_of(machine, {"correct", {1}, 128, sizeof(CorrectStorage)}, correct_kernel,
               GlobalTensor<const float>(in.ref()), GlobalTensor<float>(out.ref()), Correct::chain_of_barriers);
  REQUIRE(fault.has_value());
  INFO(fault->what());
  CHECK(fault->kind == "data race");
  CHECK(contains(fault->what(), "thread 97"));  // lane 1 of warp 3, not a thread of warp 0
}

// -- Asynchronous copies

struct CopyStorage {
  SharedTile<float, 2, 128> x;
};

enum class Copy {
  no_wait,
  no_commit,
  wait_one_too_few,
  no_barrier,
  overwrite_while_read,
  store_into_flight,
  two_copies_to_one_place,
  zero_fill_no_wait
};

__global__ void copy_kernel(GlobalTensor<const float> in, Copy what) {
  auto& x = shared_storage<CopyStorage>().x;
  const auto g = in.head(0, 0);
  const int thread = int(threadIdx.x);
  const auto fetch = [&](int row) { cp_async_16(x.address(row, 4 * thread % 128), g.address(row, 4 * thread % 128)); };
  switch (what) {
    case Copy::no_wait:
      if (thread < 32) fetch(0);
      cp_async_commit();
      __syncthreads();
      x.load(0, thread);
      break;
    case Copy::no_commit:
      if (thread < 32) fetch(0);
      cp_async_wait<0>();
      __syncthreads();
      x.load(0, thread);
      break;
    case Copy::wait_one_too_few:
      if (thread < 32) fetch(0);
      cp_async_commit();
      if (thread < 32) fetch(1);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      x.load(0, thread);
      x.load(1, thread);
      break;
    case Copy::no_barrier:
      if (thread < 32) fetch(0);
      cp_async_commit();
      cp_async_wait<0>();
      named_barrier_sync(1 + thread / 32, 32);
      if (thread == 5) x.load(0, 8);
      if (thread >= 32) named_barrier_sync(3, 32);
      __syncwarp();
      if (thread == 36) x.load(0, 8);
      break;
    case Copy::overwrite_while_read:
      x.store(0, thread, 1.0f);
      __syncthreads();
      x.load(0, 127 - thread);
      if (thread < 32) fetch(0);
      break;
    case Copy::store_into_flight:
      if (thread == 3) fetch(0);
      if (thread == 3) x.store(0, 14, 1.0f);
      break;
    case Copy::two_copies_to_one_place:
      if (thread == 3) fetch(0);
      if (thread == 3) fetch(0);
      break;
    case Copy::zero_fill_no_wait:
      if (thread == 9) cp_async_zero_16(x.address(1, 4));
      if (thread == 9) x.load(1, 7);
      break;
  }
}

void expect_copy_fault(Copy what, const std::string& kind, const Texts& texts) {
  Tensor<float> in("in", 2, 128);
  expect_fault(kind, texts, {"probe", {1}, 128, sizeof(CopyStorage)}, copy_kernel, GlobalTensor<const float>(in.ref()),
               what);
}

TEST_CASE("reading what an asynchronous copy has not delivered is reported with its issuer") {
  expect_copy_fault(Copy::no_wait, "copy in flight",
                    {"the asynchronous copy into byte", "has not been waited for; issued by thread", "cp_async_16"});
  expect_copy_fault(Copy::no_commit, "copy in flight", {"has not been waited for"});
  expect_copy_fault(Copy::wait_one_too_few, "copy in flight",
                    {"read of row 1, column", "of the shared tile of 2 by 128", "x.load(1, thread)"});
  expect_copy_fault(Copy::store_into_flight, "copy in flight", {"write of row 0, column 14", "issued by thread 3"});
  expect_copy_fault(Copy::two_copies_to_one_place, "copy in flight", {"asynchronous copy of row 0, columns 12 to 15"});
  expect_copy_fault(Copy::zero_fill_no_wait, "copy in flight", {"read of row 1, column 7", "issued by thread 9"});
}

TEST_CASE("a copy that its issuer waited for is the issuer's alone until a barrier") {
  Tensor<float> in("in", 2, 128);
  for (const std::uint64_t seed : kSeeds) {
    Machine machine(seed, 1);
    const auto fault = fault_of(machine, {"probe", {1}, 128, sizeof(CopyStorage)}, copy_kernel,
                                GlobalTensor<const float>(in.ref()), Copy::no_barrier);
    REQUIRE(fault.has_value());
    INFO(fault->what());
    // Thread 36 reads what thread 2 copied; where it runs first, the copy is not there at all.
    CHECK((fault->kind == "data race" || fault->kind == "unwritten shared memory" || fault->kind == "copy in flight"));
    CHECK(contains(fault->what(), "thread 36 (warp 1, lane 4)"));
  }
  Machine machine(0, 1);
  CHECK(fault_of(machine, {"probe", {1}, 128, sizeof(CopyStorage)}, copy_kernel, GlobalTensor<const float>(in.ref()),
                 Copy::no_barrier)
            ->kind == "data race");
}

TEST_CASE("a copy into a buffer that others still read is a race") {
  expect_copy_fault(Copy::overwrite_while_read, "data race",
                    {"asynchronous copy of row 0, columns", "the read of byte"});
}

__global__ void late_source_kernel(GlobalTensor<float> source, GlobalTensor<float> out) {
  auto& x = shared_storage<CopyStorage>().x;
  const auto g = source.head(0, 0);
  const int thread = int(threadIdx.x);
  cp_async_16(x.address(0, 4 * thread), g.address(0, 4 * thread));
  cp_async_commit();
  __syncwarp();
  g.store(0, 4 * thread, -1.0f);  // the copy may or may not have read the old value
  cp_async_wait<0>();
  out.head(0, 0).store(0, thread, x.load(0, 4 * thread));
}

TEST_CASE("a copy happens at the latest legal moment, and with a seed at some moment before") {
  int early = 0, late = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Tensor<float> source("source", 1, 128), out("out", 1, 32);
    Machine machine(seed, 1);
    machine.launch({"late_source", {1}, 32, sizeof(CopyStorage)}, late_source_kernel, GlobalTensor<float>(source.ref()),
                   GlobalTensor<float>(out.ref()));
    for (int i = 0; i < 32; ++i) {
      CHECK((out[i] == -1.0f || out[i] == float(4 * i)));
      if (seed == 0) {
        CHECK(out[i] == -1.0f);
      } else {
        (out[i] == -1.0f ? late : early) += 1;
      }
    }
  }
  CHECK(early > 0);
  CHECK(late > 0);
}

// -- Barriers

enum class Barrier {
  early_return,
  half_warp_returns,
  swapped,
  count_too_large,
  count_too_small,
  count_not_a_multiple,
  count_beyond_block,
  counts_differ,
  bad_id,
  diverged_ids,
  sync_and_arrive,
  arrives_twice,
  vote_early_return,
  vote_count_not_a_multiple,
  vote_counts_differ,
  vote_bad_id,
  vote_twice,
  vote_and_sync,
  vote_and_arrive,
  sync_and_vote,
  vote_and_arrive_of_one_warp,
  vote_without_barrier
};

__global__ void barrier_kernel(Barrier what) {
  auto& x = shared_storage<SharedVector<float, 128>>();
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  switch (what) {
    case Barrier::early_return:
      if (warp == 2) return;
      __syncthreads();
      break;
    case Barrier::half_warp_returns:
      if (thread >= 112) return;
      __syncthreads();
      break;
    case Barrier::swapped:
      if (warp < 2) {
        named_barrier_sync(1, 128);
        named_barrier_sync(2, 128);
      } else {
        named_barrier_sync(2, 128);
        named_barrier_sync(1, 128);
      }
      break;
    case Barrier::count_too_large:
      if (warp < 2) named_barrier_sync(4, 96);
      break;
    case Barrier::count_too_small:  // each warp passes alone
      x.store(thread, 1.0f);
      named_barrier_sync(1, 32);
      x.load(127 - thread);
      break;
    case Barrier::count_not_a_multiple:
      named_barrier_sync(1, 40);
      break;
    case Barrier::count_beyond_block:
      named_barrier_sync(1, 160);
      break;
    case Barrier::counts_differ:
      named_barrier_sync(1, warp == 0 ? 64 : 128);
      break;
    case Barrier::bad_id:
      named_barrier_sync(16, 128);
      break;
    case Barrier::diverged_ids:
      named_barrier_sync(lane < 16 ? 1 : 2, 128);
      break;
    case Barrier::sync_and_arrive:
      if (lane < 16) {
        named_barrier_sync(1, 128);
      } else {
        named_barrier_arrive(1, 128);
      }
      break;
    case Barrier::arrives_twice:
      named_barrier_arrive(1 + warp / 2, 64 + 64 * (warp / 2));
      if (warp == 2) named_barrier_arrive(2, 128);
      break;
    case Barrier::vote_early_return:
      if (warp == 2) return;
      named_barrier_any(1, 128, false);
      break;
    case Barrier::vote_count_not_a_multiple:
      named_barrier_any(1, 40, true);
      break;
    case Barrier::vote_counts_differ:
      named_barrier_any(1, warp == 0 ? 64 : 128, true);
      break;
    case Barrier::vote_bad_id:
      named_barrier_any(16, 128, true);
      break;
    case Barrier::vote_twice:
      if (lane < 16) {
        named_barrier_any(1, 128, true);
      } else {
        named_barrier_any(1, 128, true);
      }
      break;
    case Barrier::vote_and_sync:  // whoever comes first
      if (warp % 2 == 0) {
        named_barrier_any(1, 128, true);
      } else {
        named_barrier_sync(1, 128);
      }
      break;
    case Barrier::vote_and_arrive:
      if (warp == 3) {
        named_barrier_any(1, 128, true);
      } else {
        named_barrier_arrive(1, 128);
      }
      break;
    case Barrier::sync_and_vote:  // at one barrier one after another, which is right
      for (int round = 0; round < 3; ++round) {
        named_barrier_sync(1, 128);
        named_barrier_any(1, 128, round == 1);
        named_barrier_any(1, 128, round == 2);
      }
      break;
    case Barrier::vote_and_arrive_of_one_warp:
      if (lane < 16) {
        named_barrier_any(1, 128, true);
      } else {
        named_barrier_arrive(1, 128);
      }
      break;
    case Barrier::vote_without_barrier:  // a vote of two warps each orders nothing for the others
      x.store(thread, 1.0f);
      named_barrier_any(1 + warp / 2, 64, true);
      x.load(127 - thread);
      break;
  }
}

void expect_barrier_fault(Barrier what, const std::string& kind, const Texts& texts) {
  expect_fault(kind, texts, {"probe", {1}, 128, 512}, barrier_kernel, what);
}

TEST_CASE("a barrier that not all threads reach is reported with who waits where") {
  expect_barrier_fault(
      Barrier::early_return, "barrier not reached by all",
      {"__syncthreads waits for 128 threads: 96 are there, 32 have exited",
       "warp 0, lanes 0-31 wait at __syncthreads (96 of 128 threads are there), tests/sim/faults_test.cpp:",
       "warp 2, lanes 0-31 have exited"});
  expect_barrier_fault(
      Barrier::half_warp_returns, "barrier not reached by all",
      {"112 are there, 16 have exited", "warp 3, lanes 16-31 have exited", "warp 3, lanes 0-15 wait at"});
}

TEST_CASE("a deadlock is reported with who waits where") {
  expect_barrier_fault(Barrier::swapped, "deadlock",
                       {"warp 0, lanes 0-31 wait at named barrier 1 (64 of 128 threads are there)",
                        "warp 3, lanes 0-31 wait at named barrier 2 (64 of 128 threads are there)",
                        "named_barrier_sync(1, 128);", "named_barrier_sync(2, 128);"});
}

TEST_CASE("a named barrier for the wrong number of threads is reported") {
  expect_barrier_fault(Barrier::count_too_large, "barrier not reached by all",
                       {"named barrier 4 waits for 96 threads: 64 are there"});
  expect_barrier_fault(Barrier::count_not_a_multiple, "bad barrier",
                       {"named barrier 1 for 40 threads", "multiple of 32"});
  expect_barrier_fault(Barrier::count_beyond_block, "bad barrier", {"for 160 threads, but the block has 128"});
  expect_barrier_fault(Barrier::counts_differ, "bad barrier", {"but others came there for"});
  expect_barrier_fault(Barrier::bad_id, "bad barrier", {"named barrier 16", "barriers 0 to 15"});
  expect_barrier_fault(Barrier::arrives_twice, "bad barrier", {"warp 2 arrives at named barrier 2 again"});
  expect_unordered({"probe", {1}, 128, 512}, barrier_kernel, Barrier::count_too_small);
}

TEST_CASE("lanes of one warp that do different things at a barrier are reported") {
  expect_barrier_fault(Barrier::sync_and_arrive, "diverged warp", {"at named barrier 1, this one"});
  expect_barrier_fault(Barrier::diverged_ids, "diverged warp",
                       {"warp 1, lanes 0-15 wait at named barrier 1", "warp 1, lanes 16-31 wait at named barrier 2"});
}

TEST_CASE("a vote at a barrier has the faults of a barrier") {
  expect_barrier_fault(Barrier::vote_early_return, "barrier not reached by all",
                       {"named barrier 1 waits for 128 threads: 96 are there, 32 have exited"});
  expect_barrier_fault(Barrier::vote_count_not_a_multiple, "bad barrier",
                       {"named barrier 1 for 40 threads", "multiple of 32"});
  expect_barrier_fault(Barrier::vote_counts_differ, "bad barrier", {"but others came there for"});
  expect_barrier_fault(Barrier::vote_bad_id, "bad barrier", {"named barrier 16", "barriers 0 to 15"});
  expect_barrier_fault(Barrier::vote_twice, "diverged warp", {"a warp comes to named barrier 1 as a whole"});
  expect_barrier_fault(Barrier::vote_and_arrive_of_one_warp, "diverged warp", {"at named barrier 1, this one"});
  expect_unordered({"probe", {1}, 128, 512}, barrier_kernel, Barrier::vote_without_barrier);
}

TEST_CASE("a vote at a barrier to which others come without one is reported; one after the other is none") {
  expect_barrier_fault(Barrier::vote_and_sync, "bad barrier", {"vote of named barrier 1, to which others came"});
  expect_barrier_fault(Barrier::vote_and_arrive, "bad barrier", {"vote of named barrier 1, to which others came"});
  for (const std::uint64_t seed : kSeeds) {
    Machine machine(seed, 1);
    const auto fault = fault_of(machine, {"probe", {1}, 128, 512}, barrier_kernel, Barrier::sync_and_vote);
    if (fault) FAIL_CHECK(fault->what());
    CHECK(machine.counters().barriers == 9);
  }
}

__global__ void vote_kernel(GlobalTensor<int> out) {
  auto& x = shared_storage<SharedVector<float, 128>>();
  const int thread = int(threadIdx.x), warp = thread / 32;
  const auto result = out.head(0, 0);  // [4, 128]
  // Nobody, one thread, all; and two pairs of warps at the same time, of which one has a thread that votes.
  result.store(0, thread, named_barrier_any(1, 128, false) ? 1 : 0);
  result.store(1, thread, named_barrier_any(1, 128, thread == 77) ? 1 : 0);
  result.store(2, thread, named_barrier_any(1, 128, true) ? 1 : 0);
  x.store(thread, 1.0f);
  result.store(3, thread, named_barrier_any(1 + warp % 2, 64, thread == 35) ? 1 : 0);
  x.load((thread + 64) % 128);  // of the other warp of the pair
}

TEST_CASE("a vote at a barrier is true for all who meet there if it is for one of them, and orders what they did") {
  for (const std::uint64_t seed : kSeeds) {
    Machine machine(seed, 1);
    Tensor<int> out("out", 4, 128);
    machine.launch({"vote", {1}, 128, 512}, vote_kernel, GlobalTensor<int>(out.ref()));
    for (int thread = 0; thread < 128; ++thread) {
      INFO("schedule seed " << seed << ", thread " << thread);
      CHECK(out[thread] == 0);
      CHECK(out[128 + thread] == 1);
      CHECK(out[256 + thread] == 1);
      CHECK(out[384 + thread] == thread / 32 % 2);
    }
  }
}

// -- Warp collectives

enum class Collective {
  exited_lanes,
  mask_misses_caller,
  different_operations,
  different_types,
  read_outside_mask,
  bad_width,
  masks_disagree,
  ldmatrix_alone,
  stmatrix_alone,
  syncwarp_exited
};

__global__ void collective_kernel(Collective what) {
  auto& tile = shared_storage<SharedTile<half, 8, 8>>();
  const int lane = int(threadIdx.x) % 32;
  switch (what) {
    case Collective::exited_lanes:
      if (lane >= 20) return;
      __shfl_xor_sync(0xffffffffu, 1.0f, 16);
      break;
    case Collective::mask_misses_caller:
      __shfl_sync(0x7fffffffu, 1.0f, 0);
      break;
    case Collective::different_operations:
      if (lane < 16) {
        __shfl_xor_sync(0xffffffffu, 1.0f, 1);
      } else {
        __ballot_sync(0xffffffffu, true);
      }
      break;
    case Collective::different_types:
      if (lane < 16) {
        __shfl_xor_sync(0xffffffffu, 1.0f, 1);
      } else {
        __shfl_xor_sync(0xffffffffu, 1.0, 1);
      }
      break;
    case Collective::read_outside_mask:
      if (lane < 16) __shfl_sync(0x0000ffffu, 1.0f, 20);
      break;
    case Collective::bad_width:
      __shfl_sync(0xffffffffu, 1.0f, 0, 12);
      break;
    case Collective::masks_disagree:
      __shfl_sync(lane < 16 ? 0xffffffffu : 0xffff0000u, 1.0f, 16);
      break;
    case Collective::ldmatrix_alone: {
      std::uint32_t fragment[2];
      if (threadIdx.x < 8) {
        for (int i = 0; i < 8; ++i) tile.store(lane, i, from_float<half>(1.0f));
        ldmatrix_x2(fragment, tile.address(lane, 0));
      }
      break;
    }
    case Collective::stmatrix_alone: {
      const std::uint32_t fragment[4] = {};
      if (threadIdx.x < 8) stmatrix_x4(tile.address(lane, 0), fragment);
      break;
    }
    case Collective::syncwarp_exited:
      if (lane == 31) return;
      __syncwarp();
      break;
  }
}

void expect_collective_fault(Collective what, const std::string& kind, const Texts& texts) {
  expect_fault(kind, texts, {"probe", {1}, 64, 128}, collective_kernel, what);
}

TEST_CASE("a collective that waits for lanes that have exited is reported") {
  expect_collective_fault(Collective::exited_lanes, "exited lanes",
                          {"__shfl_xor_sync waits for lanes 20-31, which have exited",
                           "warp 1, lanes 0-19 wait at __shfl_xor_sync for lanes 20-31"});
  expect_collective_fault(Collective::syncwarp_exited, "exited lanes", {"__syncwarp waits for lanes 31"});
  expect_collective_fault(Collective::ldmatrix_alone, "exited lanes", {"ldmatrix.x2 waits for lanes 8-31"});
  expect_collective_fault(Collective::stmatrix_alone, "exited lanes", {"stmatrix.x4 waits for lanes 8-31"});
}

struct StmatrixStorage {
  SharedTile<half, 16, 24> tile;
};

enum class Stmatrix { right, not_written_before, read_without_order, beyond_tile, two_to_one_row };

__global__ void stmatrix_kernel(GlobalTensor<half> out, Stmatrix what) {
  auto& tile = shared_storage<StmatrixStorage>().tile;
  const int lane = int(threadIdx.x), row = lane % 16, col = lane / 16 * 8;
  std::uint32_t matrices[4];
  for (int i = 0; i < 4; ++i) {
    const float first = float(64 * i + lane / 4 * 8 + lane % 4 * 2);
    matrices[i] = pack<half>(first, first + 1);
  }
  if (what == Stmatrix::beyond_tile) {
    stmatrix_x4(tile.address(row, 2 * col + 8), matrices);
  } else if (what == Stmatrix::two_to_one_row) {
    stmatrix_x4(tile.address(row / 2 * 2, col), matrices);
  } else {
    stmatrix_x4(tile.address(row, col), matrices);
  }
  if (what != Stmatrix::read_without_order) __syncwarp();
  const int read = what == Stmatrix::not_written_before ? 17 : 16;
  for (int i = lane; i < 16 * read; i += 32) out.head(0, 0).store(i / read, i % read, tile.load(i / read, i % read));
}

TEST_CASE("stmatrix writes its rows as stores do: what no lane wrote, races and bounds are faults") {
  Tensor<half> out("out", 16, 24);
  const auto expect = [&](Stmatrix what, const std::string& kind, const Texts& texts) {
    expect_fault(kind, texts, {"probe", {1}, 32, sizeof(StmatrixStorage)}, stmatrix_kernel,
                 GlobalTensor<half>(out.ref()), what);
  };
  expect(Stmatrix::not_written_before, "unwritten shared memory", {"column 16"});
  expect(Stmatrix::beyond_tile, "out of bounds", {"columns 24 to 31"});
  expect(Stmatrix::two_to_one_row, "data race", {"write of row", "stmatrix_x4("});
  expect_unordered({"probe", {1}, 32, sizeof(StmatrixStorage)}, stmatrix_kernel, GlobalTensor<half>(out.ref()),
                   Stmatrix::read_without_order);
}

TEST_CASE("stmatrix gathers each row from the lanes that hold it") {
  for (const std::uint64_t seed : kSeeds) {
    INFO("schedule seed " << seed);
    Tensor<half> out("out", 16, 24);
    Machine machine(seed, 1);
    machine.launch({"stmatrix", {1}, 32, sizeof(StmatrixStorage)}, stmatrix_kernel, GlobalTensor<half>(out.ref()),
                   Stmatrix::right);
    // Lane 8i + r named the row: matrices 0 and 1 stand above each other, 2 and 3 beside them.
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 16; ++col) {
        const int matrix = col / 8 * 2 + row / 8;
        CHECK(to_float(out[row * 24 + col]) == float(64 * matrix + row % 8 * 8 + col % 8));
      }
    }
  }
}

TEST_CASE("a collective with a wrong mask or width is reported") {
  expect_collective_fault(Collective::mask_misses_caller, "bad mask",
                          {"__shfl_sync with mask 0x7fffffff, which does not name the calling lane", "lane 31)"});
  expect_collective_fault(Collective::read_outside_mask, "bad shuffle",
                          {"reads lane 20, which the mask 0x0000ffff does not name"});
  expect_collective_fault(Collective::bad_width, "bad shuffle", {"__shfl_sync with width 12"});
}

TEST_CASE("lanes of one warp that meet in different operations are reported") {
  expect_collective_fault(Collective::different_operations, "diverged warp", {"that wait at __"});
  expect_collective_fault(Collective::different_types, "diverged warp", {"__shfl_xor_sync meets lanes"});
  for (const std::uint64_t seed : kSeeds) {
    Machine machine(seed, 1);
    const auto fault = fault_of(machine, {"probe", {1}, 64, 128}, collective_kernel, Collective::masks_disagree);
    REQUIRE(fault.has_value());
    INFO(fault->what());
    CHECK((fault->kind == "deadlock" || fault->kind == "exited lanes"));
  }
}

// -- Launches

__global__ void nothing_kernel() {}

TEST_CASE("launches beyond the hardware's limits are refused before they start") {
  Machine machine(0, 1);
  const auto refused = [&](const LaunchConfig& config, const std::string& text) {
    INFO(text);
    try {
      machine.launch(config, nothing_kernel);
      FAIL_CHECK("launched");
    } catch (const DeviceError& error) {
      INFO(error.what());
      CHECK(contains(error.what(), text));
      CHECK(contains(error.what(), "kernel probe"));
    }
    require_healthy(machine);
  };
  refused({"probe", {0}, 32}, "grid of 0 x 1 x 1");
  refused({"probe", {std::int64_t(1) << 31}, 32}, "2147483648");
  refused({"probe", {1, 65536}, 32}, "65536");
  refused({"probe", {1, 1, 65536}, 32}, "65536");
  refused({"probe", {1, -1}, 32}, "-1");
  refused({"probe", {1}, 0}, "0 threads");
  refused({"probe", {1}, 1025}, "1025 threads");
  refused({"probe", {1}, 32, 227 * 1024 + 1}, "232449 bytes of shared memory");
  machine.launch({"probe", {1, 65535}, 1, 227 * 1024}, nothing_kernel);
  machine.launch({"probe", {1}, 1024}, nothing_kernel);
}

__global__ void late_block_kernel(GlobalTensor<float> x) {
  if (blockIdx.x >= 3) x.head(0, 0).load(0, std::int64_t(100 + blockIdx.x));
}

TEST_CASE("of several blocks that fault the first is reported") {
  Tensor<float> x("X", 1, 8);
  for (const int host_threads : {1, 2, 4}) {
    Machine machine(0, host_threads);
    const auto fault = fault_of(machine, {"probe", {50}, 32}, late_block_kernel, GlobalTensor<float>(x.ref()));
    REQUIRE(fault.has_value());
    CHECK(contains(fault->what(), "block (3, 0, 0)"));
    require_healthy(machine);
  }
}

__global__ void throwing_kernel() {
  if (threadIdx.x == 33) throw std::runtime_error("from the kernel");
  __syncthreads();
}

TEST_CASE("another exception of a kernel reaches the caller, and the machine stays usable") {
  Machine machine(0, 2);
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS_AS(machine.launch({"probe", {4}, 64}, throwing_kernel), std::runtime_error);
    require_healthy(machine);
  }
}

/// Destructors that run while a thread unwinds must do so, and only once.
struct Tally {
  int& count;
  explicit Tally(int& at) : count(at) { ++count; }
  ~Tally() { --count; }
};

__global__ void unwinding_kernel(int* began, int* alive, GlobalTensor<float> x) {
  ++*began;
  const Tally tally(*alive);
  if (threadIdx.x == 20) x.head(0, 0).load(9, 9);
  __syncthreads();
}

TEST_CASE(
    "after a fault all threads leave the kernel: those that wait are unwound, those that did not begin never do") {
  Tensor<float> x("X", 1, 8);
  for (const std::uint64_t seed : kSeeds) {
    int began = 0, alive = 0;
    Machine machine(seed, 1);
    CHECK(fault_of(machine, {"probe", {1}, 128}, unwinding_kernel, &began, &alive, GlobalTensor<float>(x.ref()))
              .has_value());
    if (seed == 0) CHECK(began == 21);
    CHECK(alive == 0);
    require_healthy(machine);
    CHECK(alive == 0);
  }
}

// -- Endless loops

__global__ void endless_kernel() {
  volatile bool forever = true;
  if (blockIdx.x == 1 && threadIdx.x == 34) {
    while (forever) {
    }
  }
  // Keeps the first worker busy, so that another one takes block 1.
  if (blockIdx.x == 0 && threadIdx.x == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

__global__ void spinning_kernel(GlobalTensor<int> flag) {
  if (threadIdx.x == 3) {
    while (flag.head(0, 0).load(0, 0) == 0) {
    }
  }
}

__global__ void endless_barriers_kernel() {
  volatile bool forever = true;
  while (forever) __syncthreads();
}

struct Ended {
  int exit_code = -1;
  std::string errors;
};

/// Runs `body` in a child process; it is expected to end the process.
template <typename Body>
Ended in_child(Body body) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) FAIL("pipe");
  const pid_t child = fork();
  if (child < 0) FAIL("fork");
  if (child == 0) {
    alarm(60);  // a hang must not outlive the test
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[0]);
    try {
      body();
    } catch (...) {
      _exit(98);
    }
    _exit(99);
  }
  close(pipe_ends[1]);
  Ended ended;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) ended.errors.append(buffer, std::size_t(n));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  return ended;
}

TEST_CASE("a thread in an endless loop is reported and ends the process, whichever worker runs it") {
  for (const int host_threads : {1, 2, 3}) {
    const Ended ended = in_child([&] {
      Machine machine(0, host_threads);
      machine.set_watchdog(std::chrono::milliseconds(200));
      machine.launch({"probe", {3}, 64}, endless_kernel);
    });
    INFO(ended.errors);
    CHECK(ended.exit_code == kExitCheckFailed);
    CHECK(contains(ended.errors, "fault: endless loop"));
    CHECK(contains(ended.errors, "kernel probe, block (1, 0, 0), thread 34 (warp 1, lane 2)"));
    CHECK(contains(ended.errors, "has run for 200 ms without a barrier"));
  }
}

TEST_CASE("a thread that looks for ever at memory that nobody writes is reported with the line") {
  const Ended ended = in_child([&] {
    Tensor<int> flag("flag", 1, 1);
    Machine machine(0, 2);
    machine.set_watchdog(std::chrono::milliseconds(200));
    machine.launch({"probe", {1}, 64}, spinning_kernel, GlobalTensor<int>(flag.ref()));
  });
  INFO(ended.errors);
  CHECK(ended.exit_code == kExitCheckFailed);
  CHECK(contains(ended.errors, "thread 3 (warp 0, lane 3)"));
  CHECK(contains(ended.errors, "while (flag.head(0, 0).load(0, 0) == 0) {"));
}

TEST_CASE("an endless loop with a barrier in it is reported") {
  const Ended ended = in_child([&] {
    Machine machine(0, 2);
    machine.set_watchdog(std::chrono::milliseconds(100));
    machine.launch({"probe", {1}, 64}, endless_barriers_kernel);
  });
  INFO(ended.errors);
  CHECK(ended.exit_code == kExitCheckFailed);
  CHECK(contains(ended.errors, "has run for 1000 ms without an end of its block"));
}

__global__ void handshake_kernel(GlobalTensor<int> flags) {
  const auto x = flags.head(0, 0);
  if (threadIdx.x == 0) {
    x.store(0, 0, 1);
    while (x.load(0, 1) == 0) {
    }
  }
  if (threadIdx.x == 32) {
    while (x.load(0, 0) == 0) {
    }
    x.store(0, 1, 1);
  }
}

TEST_CASE("a thread that waits for another one's write does not keep it from running") {
  for (const std::uint64_t seed : kSeeds) {
    Tensor<int> flags("flag", 1, 2);
    flags[0] = flags[1] = 0;
    Machine machine(seed, 1);
    machine.launch({"probe", {1}, 64}, handshake_kernel, GlobalTensor<int>(flags.ref()));
    CHECK(flags[1] == 1);
  }
}

// -- Many launches

TEST_CASE("several host threads launch at the same time, on one machine and on several") {
  Machine common(0, 2);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Machine own(std::uint64_t(i), 2);
      Tensor<float> in("in", 1, 64), out("out", 3, 64), x("X", 1, 8);
      for (int round = 0; round < 20; ++round) {
        Machine& machine = round % 2 == 0 ? common : own;
        for (int j = 0; j < 3 * 64; ++j) out[j] = -1.0f;
        machine.launch({"healthy", {3}, 64, sizeof(HealthyStorage)}, healthy_kernel,
                       GlobalTensor<const float>(in.ref()), GlobalTensor<float>(out.ref()));
        for (int j = 0; j < 3 * 64; ++j) failures += out[j] != float(63 * 64 / 2 + j % 64);
        if (i == 1) {  // faults here disturb nobody there
          failures += !fault_of(own, {"probe", {5}, 96}, late_block_kernel, GlobalTensor<float>(x.ref())).has_value();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK(common.counters().blocks == 4 * 10 * 3);
  CHECK(common.counters().barriers == 4 * 10 * 3 * 2);
}

std::int64_t resident_kilobytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6));
  }
  return 0;
}

TEST_CASE("memory does not grow with the number of blocks or of faults") {
  Tensor<float> in("in", 1, 64), out("out", 100, 64), x("X", 1, 8);
  Machine machine(0, 2);
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      machine.launch({"healthy", {100}, 64, sizeof(HealthyStorage)}, healthy_kernel,
                     GlobalTensor<const float>(in.ref()), GlobalTensor<float>(out.ref()));
      (void)fault_of(machine, {"probe", {4}, 64}, late_block_kernel, GlobalTensor<float>(x.ref()));
    }
  };
  rounds(5);
  const std::int64_t before = resident_kilobytes();
  rounds(100);
  CHECK(resident_kilobytes() - before < 4096);
}

}  // namespace
}  // namespace flash::sim
