// What the simulated GPU counts, against values worked out by hand. A sector is 32 bytes; shared memory has 32 banks of
// 4 bytes and answers eight lanes at a time where each takes 16 bytes, sixteen where each takes 8.
#include <cstring>
#include <functional>

#include "common/kernel/kernel.hpp"
#include "tests/sim/harness.hpp"

using flash::test::Tensor;

namespace flash::sim {
namespace {

// -- Global accesses

enum class Pattern {
  coalesced,
  two_elements_apart,
  sector_apart,
  misaligned,
  broadcast,
  reversed,
  vector16,
  vector16_strided,
  half_warp,
  one_lane,
  if_else,
  if_else_same_line,
  different_trip_counts,
  lanes_start_late,
  skipped_by_some,
  nested,
  loop_with_collective,
  long_loop,
  long_divergent_loop,
  store_then_load,
  two_tensors_one_line,
  atomics
};

__global__ void pattern_kernel(GlobalTensor<float> tensor, GlobalTensor<float> other, Pattern what) {
  const auto x = tensor.head(0, 0);  // [64, 1024]
  const auto y = other.head(0, 0);
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  switch (what) {
    case Pattern::coalesced:
      x.load(warp, lane);
      break;
    case Pattern::two_elements_apart:
      x.load(warp, 2 * lane);
      break;
    case Pattern::sector_apart:
      x.load(warp, 8 * lane);
      break;
    case Pattern::misaligned:
      x.load(warp, lane + 3);
      break;
    case Pattern::broadcast:
      x.load(warp, 5);
      break;
    case Pattern::reversed:
      x.load(warp, 31 - lane);
      break;
    case Pattern::vector16:
      load_vector<4>(x, warp, 4 * lane);
      break;
    case Pattern::vector16_strided:
      load_vector<4>(x, warp, 16 * lane);
      break;
    case Pattern::half_warp:
      if (lane >= 16) x.load(warp, lane);
      break;
    case Pattern::one_lane:
      if (lane == 7) x.load(warp, lane);
      break;
    case Pattern::if_else:
      if (lane % 2 == 0) {
        x.load(warp, lane);
      } else {
        x.load(warp, lane);
      }
      break;
    case Pattern::if_else_same_line:
      // clang-format off
      if (lane % 2 == 0) { x.load(warp, lane); } else { y.load(warp, lane); }
      // clang-format on
      break;
    case Pattern::different_trip_counts:
      for (int i = 0; i <= lane; ++i) x.load(i, lane);
      break;
    case Pattern::lanes_start_late:
      if (lane < 8) x.load(40, lane);
      for (int i = 0; i < 4; ++i) x.load(i, lane);
      if (lane < 8) x.load(41, lane);
      break;
    case Pattern::skipped_by_some:
      // The lanes that skip the first access come to an earlier line, as behind a helper function from another file.
      for (const bool first : {true, false}) {
        if (!first) x.load(1, lane);
        if (first && lane < 16) x.load(0, lane);
      }
      break;
    case Pattern::nested:
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 1 + lane / 16; ++j) x.load(4 * i + j, lane);
        x.load(32 + i, lane);
      }
      break;
    case Pattern::loop_with_collective:
      for (int i = 0; i < 8; ++i) {
        if (lane < 4 * (i + 1)) x.load(i, lane);
        warp_sum(1.0f);
      }
      break;
    case Pattern::long_loop:
      if (lane == 0) x.load(63, 0);
      for (int i = 0; i < 1000; ++i) x.load(i % 64, lane);
      break;
    case Pattern::long_divergent_loop:
      if (lane < 16) {
        for (int i = 0; i < 1000; ++i) x.load(i % 64, lane);
      } else {
        for (int i = 0; i < 700; ++i) x.load(i % 64, 2 * lane);
      }
      x.load(0, 32 + lane);
      break;
    case Pattern::store_then_load:
      x.store(warp, lane, 1.0f);
      x.load(warp, lane ^ 1);
      break;
    case Pattern::two_tensors_one_line:
      x.store(warp, lane, y.load(warp, 8 * lane));
      break;
    case Pattern::atomics:
      atomic_add(x, 0, 0, 1.0f);
      atomic_add(x, 1, lane, 1.0f);
      break;
  }
}

struct Expected {
  std::int64_t read_requests, read_sectors, useful_bytes;
};

Counters count_pattern(Pattern what, std::uint64_t seed, int threads) {
  Tensor<float> x("X", 64, 1024), y("Y", 64, 1024);
  Machine machine(seed, 2);
  machine.launch({"pattern", {1}, threads}, pattern_kernel, GlobalTensor<float>(x.ref()), GlobalTensor<float>(y.ref()),
                 what);
  return machine.counters();
}

const TensorCounters& tensor(const Counters& counters, const char* name) {
  return counters.tensors[std::size_t(tensor_slot(name))];
}

void expect_reads(Pattern what, Expected of_one_warp) {
  for (const int warps : {1, 3}) {
    for (const std::uint64_t seed : {0, 1, 2, 3}) {
      INFO("pattern " << int(what) << ", " << warps << " warps, schedule seed " << seed);
      const Counters counters = count_pattern(what, seed, 32 * warps);
      const TensorCounters& x = tensor(counters, "X");
      CHECK(x.read_requests == warps * of_one_warp.read_requests);
      CHECK(x.read_sectors == warps * of_one_warp.read_sectors);
      CHECK(x.bytes_read() == 32 * x.read_sectors);
      CHECK(x.useful_bytes_read == warps * of_one_warp.useful_bytes);
      CHECK(x.written_sectors == 0);
      CHECK(counters.threads == 32 * warps);
      CHECK(counters.blocks == 1);
    }
  }
}

TEST_CASE("sectors of one access: coalesced, strided, misaligned, broadcast, vectors") {
  expect_reads(Pattern::coalesced, {1, 4, 128});           // 32 x 4 bytes
  expect_reads(Pattern::two_elements_apart, {1, 8, 128});  // over 256 bytes
  expect_reads(Pattern::sector_apart, {1, 32, 128});
  expect_reads(Pattern::misaligned, {1, 5, 128});  // bytes 12 to 139
  expect_reads(Pattern::broadcast, {1, 1, 128});
  expect_reads(Pattern::reversed, {1, 4, 128});
  expect_reads(Pattern::vector16, {1, 16, 512});
  expect_reads(Pattern::vector16_strided, {1, 32, 512});
  expect_reads(Pattern::half_warp, {1, 2, 64});
  expect_reads(Pattern::one_lane, {1, 1, 4});
}

TEST_CASE("sectors of diverged lanes: each branch is an access of its own, lanes meet again behind it") {
  expect_reads(Pattern::if_else, {2, 8, 128});  // each half of the lanes touches all 4 sectors
  // Iteration i has the lanes from i on: sectors i / 8 to 3.
  expect_reads(Pattern::different_trip_counts, {32, 8 * (4 + 3 + 2 + 1), 4 * (32 * 33 / 2)});
  expect_reads(Pattern::lanes_start_late, {6, 1 + 4 * 4 + 1, 4 * (8 + 4 * 32 + 8)});
  // In each of the 3 rounds: all lanes, the upper half, all lanes.
  expect_reads(Pattern::nested, {9, 3 * (4 + 2 + 4), 3 * 4 * (32 + 16 + 32)});
  // Lanes 0 to 4i + 3: (i + 2) / 2 sectors.
  expect_reads(Pattern::loop_with_collective, {8, 1 + 1 + 2 + 2 + 3 + 3 + 4 + 4, 4 * 4 * 36});
  expect_reads(Pattern::skipped_by_some, {2, 2 + 4, 64 + 128});
}

TEST_CASE("lanes of one line that access different tensors are different accesses") {
  const Counters counters = count_pattern(Pattern::if_else_same_line, 0, 32);
  CHECK(tensor(counters, "X").read_requests == 1);
  CHECK(tensor(counters, "Y").read_requests == 1);
  CHECK(tensor(counters, "X").read_sectors == 4);
  CHECK(tensor(counters, "Y").read_sectors == 4);
  CHECK(tensor(counters, "X").useful_bytes_read == 64);
}

TEST_CASE("loops longer than a lane's log are counted exactly, also when the lanes are out of step") {
  expect_reads(Pattern::long_loop, {1001, 1 + 4000, 4 + 128 * 1000});
  // Lanes 0 to 15: 2 sectors; lanes 16 to 31: 2 * lane from 32 to 62, 4 sectors; then all together.
  expect_reads(Pattern::long_divergent_loop, {1701, 2 * 1000 + 4 * 700 + 4, 64 * 1700 + 128});
}

TEST_CASE("writes and atomics are counted apart from reads") {
  Counters counters = count_pattern(Pattern::store_then_load, 0, 64);
  CHECK(tensor(counters, "X").read_sectors == 8);
  CHECK(tensor(counters, "X").written_sectors == 8);
  CHECK(tensor(counters, "X").bytes_written() == 256);
  CHECK(tensor(counters, "X").written_requests == 2);
  CHECK(tensor(counters, "X").useful_bytes_written == 256);

  counters = count_pattern(Pattern::two_tensors_one_line, 0, 32);
  CHECK(tensor(counters, "Y").read_sectors == 32);
  CHECK(tensor(counters, "Y").written_sectors == 0);
  CHECK(tensor(counters, "X").written_sectors == 4);
  CHECK(tensor(counters, "X").read_sectors == 0);

  counters = count_pattern(Pattern::atomics, 0, 64);
  CHECK(tensor(counters, "X").atomic_sectors == 2 * (1 + 4));
  CHECK(tensor(counters, "X").read_sectors == 0);
  CHECK(tensor(counters, "X").written_sectors == 0);
}

// -- Shared accesses

struct SharedSpace {
  SharedTile<float, 32, 32> plain;
  SharedTile<float, 32, 32, Padded16> padded;
  SharedTile<half, 64, 64> half_plain;
  SharedTile<half, 64, 64, Padded16> half_padded;
  alignas(1024) SharedTile<half, 64, 64, Swizzle128> half_swizzled;
};

enum class Shared {
  row,
  column,
  column_padded,
  broadcast,
  two_apart,
  vector8_row,
  vector8_column,
  vector16_row,
  vector16_column,
  vector16_column_padded,
  two_bytes_row,
  two_bytes_column_swizzled,
  store_column,
  pieces_plain,
  pieces_padded,
  pieces_swizzled,
  ldmatrix_plain,
  ldmatrix_padded,
  ldmatrix_swizzled,
  ldmatrix_x2_plain,
  ldmatrix_trans_swizzled,
  stmatrix_plain,
  stmatrix_padded,
  stmatrix_swizzled,
  copy_pieces_plain,
  copy_pieces_swizzled,
  half_the_lanes,
  two_lanes_of_one_group,
  two_lanes_of_two_groups
};

template <typename Tile>
void write_all(Tile& tile) {
  for (int row = 0; row < Tile::rows(); ++row) {
    for (int col = int(threadIdx.x); col < Tile::cols(); col += 32) tile.store(row, col, {});
  }
  __syncwarp();
}

__global__ void shared_kernel(GlobalTensor<const half> in, Shared what, bool prepare_only) {
  auto& shared = shared_storage<SharedSpace>();
  write_all(shared.plain);
  write_all(shared.padded);
  write_all(shared.half_plain);
  write_all(shared.half_padded);
  write_all(shared.half_swizzled);
  if (prepare_only) return;
  const int lane = int(threadIdx.x);
  const auto global = in.head(0, 0);
  std::uint32_t fragment[4] = {}, pair[2];
  switch (what) {
    case Shared::row:
      shared.plain.load(3, lane);
      break;
    case Shared::column:
      shared.plain.load(lane, 3);
      break;
    case Shared::column_padded:
      shared.padded.load(lane, 3);
      break;
    case Shared::broadcast:
      shared.plain.load(7, 7);
      break;
    case Shared::two_apart:
      shared.plain.load(lane / 16, 2 * lane % 32);
      break;
    case Shared::vector8_row:
      load_vector<2>(shared.plain, lane / 16, 2 * lane % 32);
      break;
    case Shared::vector8_column:
      load_vector<2>(shared.plain, lane, 4);
      break;
    case Shared::vector16_row:
      load_vector<4>(shared.plain, lane / 8, 4 * lane % 32);
      break;
    case Shared::vector16_column:
      load_vector<4>(shared.plain, lane, 8);
      break;
    case Shared::vector16_column_padded:
      load_vector<4>(shared.padded, lane, 8);
      break;
    case Shared::two_bytes_row:
      shared.half_plain.load(0, lane);
      break;
    case Shared::two_bytes_column_swizzled:
      shared.half_swizzled.load(lane, 0);
      break;
    case Shared::store_column:
      shared.plain.store(lane, 0, 1.0f);
      break;
    case Shared::pieces_plain:
      load_vector<8>(shared.half_plain, lane, 8);
      break;
    case Shared::pieces_padded:
      load_vector<8>(shared.half_padded, lane, 8);
      break;
    case Shared::pieces_swizzled:
      load_vector<8>(shared.half_swizzled, lane, 8);
      break;
    case Shared::ldmatrix_plain:
      ldmatrix_x4(fragment, shared.half_plain.address(lane % 16, lane / 16 * 8));
      break;
    case Shared::ldmatrix_padded:
      ldmatrix_x4(fragment, shared.half_padded.address(lane % 16, lane / 16 * 8));
      break;
    case Shared::ldmatrix_swizzled:
      ldmatrix_x4(fragment, shared.half_swizzled.address(lane % 16, lane / 16 * 8));
      break;
    case Shared::ldmatrix_x2_plain:
      ldmatrix_x2(pair, shared.half_plain.address(lane % 8, lane / 8 % 2 * 8));
      break;
    case Shared::ldmatrix_trans_swizzled:
      ldmatrix_x4_trans(fragment, shared.half_swizzled.address(lane % 16, 16 + lane / 16 * 8));
      break;
    case Shared::stmatrix_plain:
      stmatrix_x4(shared.half_plain.address(lane % 16, lane / 16 * 8), fragment);
      break;
    case Shared::stmatrix_padded:
      stmatrix_x4(shared.half_padded.address(lane % 16, lane / 16 * 8), fragment);
      break;
    case Shared::stmatrix_swizzled:
      stmatrix_x4(shared.half_swizzled.address(lane % 16, lane / 16 * 8), fragment);
      break;
    case Shared::copy_pieces_plain:
      cp_async_16(shared.half_plain.address(lane, 0), global.address(0, 8 * lane));
      break;
    case Shared::copy_pieces_swizzled:
      cp_async_16(shared.half_swizzled.address(lane, 0), global.address(0, 8 * lane));
      break;
    case Shared::half_the_lanes:
      if (lane % 2 == 0) shared.plain.load(lane, 0);
      break;
    case Shared::two_lanes_of_one_group:
      if (lane == 0 || lane == 7) load_vector<8>(shared.half_plain, lane, 8);
      break;
    case Shared::two_lanes_of_two_groups:
      if (lane == 0 || lane == 8) load_vector<8>(shared.half_plain, lane, 8);
      break;
  }
}

void expect_shared(Shared what, SharedAccess kind, std::int64_t bytes, std::int64_t conflicts) {
  Tensor<half> in("in", 1, 256);
  const auto count = [&](bool prepare_only, std::uint64_t seed) {
    Machine machine(seed, 1);
    machine.launch({"shared", {1}, 32, sizeof(SharedSpace)}, shared_kernel, GlobalTensor<const half>(in.ref()), what,
                   prepare_only);
    return machine.counters();
  };
  for (const std::uint64_t seed : {0, 1, 2}) {
    INFO("access " << int(what) << ", schedule seed " << seed);
    const Counters before = count(true, seed), after = count(false, seed);
    CHECK(after.shared_of(kind).accesses - before.shared_of(kind).accesses == 1);
    CHECK(after.shared_of(kind).bytes - before.shared_of(kind).bytes == bytes);
    CHECK(after.shared_of(kind).bank_conflicts - before.shared_of(kind).bank_conflicts == conflicts);
    CHECK(after.bank_conflicts() - before.bank_conflicts() == conflicts);
    CHECK(before.bank_conflicts() == 0);  // whole rows are written, 32 neighbours at a time
  }
}

TEST_CASE("bank conflicts of accesses of 2, 4, 8 and 16 bytes") {
  expect_shared(Shared::row, SharedAccess::load, 128, 0);
  expect_shared(Shared::column, SharedAccess::load, 128, 31);  // rows of 128 bytes: one bank
  expect_shared(Shared::broadcast, SharedAccess::load, 128, 0);
  expect_shared(Shared::two_apart, SharedAccess::load, 128, 1);       // 16 banks, two words each
  expect_shared(Shared::half_the_lanes, SharedAccess::load, 64, 15);  // 16 lanes, one bank
  expect_shared(Shared::store_column, SharedAccess::store, 128, 31);
  expect_shared(Shared::two_bytes_row, SharedAccess::load, 64, 0);  // two lanes share a word
  expect_shared(Shared::vector8_row, SharedAccess::load, 256, 0);
  expect_shared(Shared::vector8_column, SharedAccess::load, 256, 2 * 15);  // 2 groups of 16 lanes on one pair of banks
  expect_shared(Shared::vector16_row, SharedAccess::load, 512, 0);
  expect_shared(Shared::vector16_column, SharedAccess::load, 512, 4 * 7);  // 4 groups of 8 lanes on 4 banks
  // A group is lanes 0 to 7, 8 to 15, ..., also where some of them take no part.
  expect_shared(Shared::two_lanes_of_one_group, SharedAccess::load, 32, 1);
  expect_shared(Shared::two_lanes_of_two_groups, SharedAccess::load, 32, 0);
}

TEST_CASE("padding and swizzle remove the conflicts of a column") {
  // Rows of 144 bytes start 4 banks apart: lanes 8 apart meet in a bank.
  expect_shared(Shared::column_padded, SharedAccess::load, 128, 3);
  expect_shared(Shared::vector16_column_padded, SharedAccess::load, 512, 0);
  expect_shared(Shared::pieces_plain, SharedAccess::load, 512, 4 * 7);
  expect_shared(Shared::pieces_padded, SharedAccess::load, 512, 0);
  expect_shared(Shared::pieces_swizzled, SharedAccess::load, 512, 0);
  // Rows 8 apart have their first piece in the same place.
  expect_shared(Shared::two_bytes_column_swizzled, SharedAccess::load, 64, 3);
}

TEST_CASE("bank conflicts of ldmatrix, of stmatrix and of asynchronous copies, by layout") {
  expect_shared(Shared::ldmatrix_plain, SharedAccess::ldmatrix, 512, 4 * 7);
  expect_shared(Shared::ldmatrix_padded, SharedAccess::ldmatrix, 512, 0);
  expect_shared(Shared::ldmatrix_swizzled, SharedAccess::ldmatrix, 512, 0);
  expect_shared(Shared::ldmatrix_x2_plain, SharedAccess::ldmatrix, 256, 2 * 7);
  expect_shared(Shared::ldmatrix_trans_swizzled, SharedAccess::ldmatrix, 512, 0);
  expect_shared(Shared::stmatrix_plain, SharedAccess::stmatrix, 512, 4 * 7);
  expect_shared(Shared::stmatrix_padded, SharedAccess::stmatrix, 512, 0);
  expect_shared(Shared::stmatrix_swizzled, SharedAccess::stmatrix, 512, 0);
  expect_shared(Shared::copy_pieces_plain, SharedAccess::cp_async, 512, 4 * 7);
  expect_shared(Shared::copy_pieces_swizzled, SharedAccess::cp_async, 512, 0);
}

TEST_CASE("every element of a tile has a place of its own, whatever the layout") {
  const auto check = [](auto offset, int elements, int rows, int cols) {
    std::vector<int> taken(std::size_t(elements), 0);
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < cols; ++col) {
        const int at = offset(row, col);
        REQUIRE(at >= 0);
        REQUIRE(at < elements);
        CHECK(++taken[std::size_t(at)] == 1);
      }
    }
  };
  check([](int r, int c) { return RowMajor::offset<2, 16, 24>(r, c); }, RowMajor::elements<2, 16, 24>(), 16, 24);
  check([](int r, int c) { return Padded16::offset<2, 16, 24>(r, c); }, Padded16::elements<2, 16, 24>(), 16, 24);
  check([](int r, int c) { return Swizzle128::offset<2, 16, 128>(r, c); }, Swizzle128::elements<2, 16, 128>(), 16, 128);
  check([](int r, int c) { return Swizzle128::offset<4, 8, 32>(r, c); }, Swizzle128::elements<4, 8, 32>(), 8, 32);
  // Hopper's 128-byte swizzle: byte address bits 4 to 6 are those of the column exclusive-or those of the row.
  CHECK(Swizzle128::offset<2, 64, 64>(3, 16) * 2 == 3 * 128 + (2 ^ 3) * 16);
  CHECK(Swizzle128::offset<2, 64, 128>(13, 64 + 9) * 2 == 64 * 128 + 13 * 128 + (1 ^ 5) * 16 + 2);
}

// -- Operations

struct OperationsStorage {
  SharedTile<half, 16, 16> a;
};

__global__ void operations_kernel() {
  auto& a = shared_storage<OperationsStorage>().a;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  if (warp == 0) {
    for (int i = 0; i < 8; ++i) a.store(lane / 2, lane % 2 * 8 + i, half{0});
  }
  __syncthreads();
  std::uint32_t fragment[4];
  ldmatrix_x4(fragment, a.address(lane % 16, lane / 16 * 8));
  const std::uint32_t b[2] = {0, 0};
  float d[4] = {};
  for (int i = 0; i < 3; ++i) mma_m16n8k16<half>(d, fragment, b);
  if (lane < 5) d[0] += exp2_approx(float(lane)) + exp_approx(1.0f);
  if (warp < 2) named_barrier_sync(1, 64);
  if (warp == 0) named_barrier_arrive(2, 64);
  if (warp == 2) named_barrier_sync(2, 64);
  named_barrier_any(3, 96, lane == 7);
  __syncthreads();
}

TEST_CASE("matrix FLOPs, exponentials and barriers are counted, whatever the schedule") {
  for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    Machine machine(seed, 2);
    machine.launch({"operations", {2, 3}, 96, sizeof(OperationsStorage)}, operations_kernel);
    const Counters& counters = machine.counters();
    CHECK(counters.blocks == 6);
    CHECK(counters.threads == 6 * 96);
    CHECK(counters.matrix_flops == 6 * 3 * 3 * (2 * 16 * 8 * 16));
    CHECK(counters.exponentials == 6 * 3 * 5 * 2);
    CHECK(counters.barriers == 6 * 5);
    CHECK(counters.shared_of(SharedAccess::ldmatrix).accesses == 6 * 3);
    machine.reset_counted();
    CHECK(machine.counters().blocks == 0);
    CHECK(machine.counters().matrix_flops == 0);
  }
}

// -- The schedule

struct MixedStorage {
  SharedTile<float, 8, 128> x;
};

__global__ void mixed_kernel(GlobalTensor<const float> in, GlobalTensor<float> out) {
  auto& x = shared_storage<MixedStorage>().x;
  const auto g = in.head(0, 0);
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  float sum = 0.0f;
  for (int round = 0; round < 4; ++round) {
    if (thread < 32) cp_async_16(x.address(round % 2, 4 * thread), g.address(round + int(blockIdx.x), 4 * thread));
    cp_async_commit();
    for (int i = 0; i < (thread * 7 + round) % 11; ++i) sum += g.load(i, (thread * 3 + i) % 128);
    cp_async_wait<0>();
    __syncthreads();
    if ((lane ^ round) % 3 == 0) {
      sum += x.load(round % 2, lane * 4 % 128);
    } else {
      for (int i = 0; i <= lane % 5; ++i) sum += x.load(round % 2, (lane * 9 + i) % 128);
    }
    sum = warp_sum(sum);
    if (lane < 8) sum += __shfl_xor_sync(0xffu, g.load(warp, lane), 3);
    x.store(2 + warp, lane, sum);
    __syncwarp();
    sum += x.load(2 + warp, lane ^ 9);
    __syncthreads();
  }
  out.head(0, 0).store(int(blockIdx.x), thread, sum);
}

TEST_CASE("results and counts are the same for every schedule seed and any number of host threads") {
  Tensor<float> in("in", 32, 128), first("out", 16, 128);
  for (std::int64_t i = 0; i < in.size(); ++i) in[i] = 1.0f / float(i + 1);
  Counters counted;
  for (std::uint64_t seed = 0; seed <= 50; ++seed) {
    INFO("schedule seed " << seed);
    Tensor<float> out("out", 16, 128);
    Machine machine(seed, 1 + int(seed % 3));
    machine.launch({"mixed", {16}, 128, sizeof(MixedStorage)}, mixed_kernel, GlobalTensor<const float>(in.ref()),
                   GlobalTensor<float>((seed == 0 ? first : out).ref()));
    if (seed == 0) {
      counted = machine.counters();
      CHECK(counted.bank_conflicts() > 0);
      continue;
    }
    CHECK(std::memcmp(out.data(), first.data(), std::size_t(out.size()) * sizeof(float)) == 0);
    // Counters is made of 64-bit integers only.
    CHECK(std::memcmp(&machine.counters(), &counted, sizeof counted) == 0);
  }
}

TEST_CASE("a tensor's name gives its counters, the same name the same ones") {
  const int slot = tensor_slot("X");
  CHECK(tensor_slot("X") == slot);
  CHECK(tensor_name(slot) == "X");
  CHECK(tensor_slot("Y") != slot);
  CHECK(tensor_slots() > slot);
}

}  // namespace
}  // namespace flash::sim
