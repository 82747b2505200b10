// The copy engine (TMA) of the simulated GPU: which bytes a box has and where they go, when they are there, and what
// happens to those who do not wait, do not fence or miscount.
#include "tests/sim/hopper.hpp"

using flash::Fault;
using flash::refusal;
using flash::Swizzle;
using flash::swizzle_bytes;
using flash::swizzle_offset;
using flash::TensorMapSpec;
using flash::UsageError;
using flash::test::contains;
using flash::test::expect_clean;
using flash::test::expect_fault;
using flash::test::expect_one_of;
using flash::test::fault_of;
using flash::test::map_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

// -- Which bytes go where

struct BoxStorage {
  alignas(1024) std::byte bytes[4096];
  Mbarrier full;
  SHARED_MEMBERS(bytes, full);
};

/// Where the box begins, the innermost first.
struct Coordinates {
  int load[5], store[5];
};

/// One box to shared memory; what lies there then goes to `raw`, 4 bytes a thread, and from there back to `to`.
template <int Rank>
__global__ void box_kernel(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to, Coordinates at,
                           int bytes, GlobalTensor<float> raw) {
  auto& shared = shared_storage<BoxStorage>();
  const SharedAddress box{shared.bytes, Block::place_of(shared.bytes)};
  int load[Rank], store[Rank];
  for (int i = 0; i < Rank; ++i) load[i] = at.load[i], store[i] = at.store[i];
  if (threadIdx.x == 0) {
    shared.full.init(1);
    mbarrier_init_fence();
    tma_prefetch_map(from);
    shared.full.arrive_expect_tx(bytes);
    tma_load(box, from, load, shared.full, L2Hint::evict_first);
  }
  __syncthreads();
  shared.full.wait(0);
  auto& words = reinterpret_cast<SharedVector<float, 1024>&>(shared.bytes);
  for (int i = int(threadIdx.x); i < bytes / 4; i += 32) raw.head(0, 0).store(0, i, words.load(i));
  __syncthreads();
  if (threadIdx.x == 0) {
    tma_store(to, store, box);
    tma_store_commit();
    tma_store_wait<0>();
  }
}

const LaunchConfig kBox{"box", {1}, 32, sizeof(BoxStorage)};

struct BoxCase {
  int rank, box[5];
  Swizzle swizzle;
  int columns = 24;  // of the tensor
};

/// A load from `at`, whose innermost coordinate is in pieces of 16 bytes, and a store to the same without the signs.
template <typename T>
void expect_box(const BoxCase& c, const int (&at)[2]) {
  // 5 dimensions of 24 or fewer, 6, 5, 4 and 3 elements with gaps between the rows.
  const int extents[] = {c.columns, 6, 5, 4, 3}, element = int(sizeof(T));
  TensorMapSpec spec;
  spec.rank = c.rank;
  spec.element_bytes = element;
  spec.swizzle = c.swizzle;
  Coordinates coordinates{};
  std::int64_t stride = element;
  for (int i = 0; i < c.rank; ++i) {
    spec.extent[i] = extents[i];
    spec.stride[i] = stride;
    spec.box[i] = c.box[i];
    stride *= extents[i];
    if (i == 0) stride = (stride + 31) / 16 * 16;
    coordinates.load[i] = i == 0 ? at[0] * 16 / element : at[1];
    coordinates.store[i] = std::abs(coordinates.load[i]);
  }
  Tensor<std::uint8_t> from("from", 1, 65536), to("to", 1, 65536);
  for (int i = 0; i < 65536; ++i) from[i] = std::uint8_t(i * 7 + i / 251), to[i] = 0xee;
  Tensor<float> raw("raw", 1, 1024);
  spec.tensor = "from";
  spec.data = from.data();
  const TensorMap from_map = Machine(0, 1).tensor_map(spec);
  spec.tensor = "to";
  spec.data = to.data();
  const TensorMap to_map = Machine(0, 1).tensor_map(spec);
  Machine machine(3, 1);
  const int bytes = spec.box_bytes();
  const GlobalTensor<float> raw_tensor(raw.ref());
  if (c.rank == 1) machine.launch(kBox, box_kernel<1>, from_map, to_map, coordinates, bytes, raw_tensor);
  if (c.rank == 2) machine.launch(kBox, box_kernel<2>, from_map, to_map, coordinates, bytes, raw_tensor);
  if (c.rank == 3) machine.launch(kBox, box_kernel<3>, from_map, to_map, coordinates, bytes, raw_tensor);
  if (c.rank == 4) machine.launch(kBox, box_kernel<4>, from_map, to_map, coordinates, bytes, raw_tensor);
  if (c.rank == 5) machine.launch(kBox, box_kernel<5>, from_map, to_map, coordinates, bytes, raw_tensor);

  struct Element {
    bool inside = true, piece = true;  // the element, and the first of its 16 bytes
    std::int64_t offset = 0;
  };
  const auto find = [&](int e, const int(&first)[5]) {
    Element found;
    for (int i = 0, rest = e; i < c.rank; rest /= c.box[i], ++i) {
      const int x = first[i] + rest % c.box[i];
      const int x_of_piece = i == 0 ? x * element / 16 * 16 / element : x;
      found.inside &= x >= 0 && x < extents[i];
      found.piece &= x_of_piece >= 0 && x_of_piece < extents[i];
      found.offset += x * spec.stride[i];
    }
    return found;
  };
  const auto* const shared = reinterpret_cast<const std::uint8_t*>(raw.data());
  std::vector<std::uint8_t> expected_to(65536, 0xee);
  std::int64_t loaded = 0, stored = 0;
  int wrong = 0;
  for (int e = 0; e < bytes / element; ++e) {
    const Element source = find(e, coordinates.load), target = find(e, coordinates.store);
    loaded += source.inside ? element : 0;
    stored += target.inside ? element : 0;
    for (int byte = 0; byte < element; ++byte) {
      const std::uint8_t value = source.inside ? from[source.offset + byte] : std::uint8_t(0);
      wrong += shared[swizzle_offset(c.swizzle, unsigned(e * element + byte))] != value;
      if (target.piece) expected_to[std::size_t(target.offset + byte)] = value;
    }
  }
  CHECK(wrong == 0);
  CHECK(std::equal(expected_to.begin(), expected_to.end(), to.data()));
  const TensorCounters& read = *machine.counters().of_tensor("from");
  const TensorCounters& written = *machine.counters().of_tensor("to");
  CHECK(read.useful_bytes_read == loaded);
  CHECK(written.useful_bytes_written == stored);
  CHECK(read.read_requests == 1);
  CHECK(written.written_requests == 1);
  CHECK(machine.counters().shared_of(SharedAccess::tma_load).bytes == bytes);
  CHECK(machine.counters().shared_of(SharedAccess::tma_store).bytes == bytes);
}

/// From the beginning, over the near edges and over the far ones, and outside.
constexpr int kPlaces[][2] = {{0, 0}, {1, 1}, {-1, -2}, {-2, 0}, {2, 3}, {0, -1}, {4, 6}};

TEST_CASE("a TMA copy moves a box of 1 to 5 dimensions, and zeros for what lies outside the tensor") {
  for (const auto& at : kPlaces) {
    INFO("from " << at[0] << ", " << at[1]);
    expect_box<std::uint16_t>({1, {16}, Swizzle::none}, at);
    expect_box<std::uint16_t>({2, {16, 4}, Swizzle::none}, at);
    expect_box<std::uint16_t>({3, {8, 4, 3}, Swizzle::none}, at);
    expect_box<std::uint16_t>({4, {8, 3, 2, 4}, Swizzle::none}, at);
    expect_box<std::uint16_t>({5, {8, 2, 3, 2, 2}, Swizzle::none}, at);
    expect_box<std::uint8_t>({2, {32, 4}, Swizzle::none}, at);
    expect_box<std::uint32_t>({3, {4, 4, 3}, Swizzle::none}, at);
  }
}

TEST_CASE("a TMA copy swizzles by the bits of shared addresses, and back") {
  for (const auto& at : kPlaces) {
    INFO("from " << at[0] << ", " << at[1]);
    expect_box<std::uint16_t>({2, {16, 16}, Swizzle::bytes32}, at);
    expect_box<std::uint16_t>({2, {32, 16}, Swizzle::bytes64}, at);
    expect_box<std::uint16_t>({3, {64, 4, 4}, Swizzle::bytes128}, at);
    expect_box<std::uint32_t>({2, {32, 16}, Swizzle::bytes128}, at);
  }
}

TEST_CASE("a TMA store over the end of a row writes the whole 16 bytes in which it ends, a TMA load brings zeros") {
  for (const auto& at : kPlaces) {
    INFO("from " << at[0] << ", " << at[1]);
    for (const int columns : {17, 21, 23}) {
      expect_box<std::uint16_t>({1, {24}, Swizzle::none, columns}, at);
      expect_box<std::uint16_t>({2, {24, 4}, Swizzle::none, columns}, at);
      expect_box<std::uint16_t>({3, {32, 4, 3}, Swizzle::bytes64, columns}, at);
      expect_box<std::uint32_t>({2, {8, 4}, Swizzle::bytes32, columns}, at);
      expect_box<std::uint8_t>({2, {32, 6}, Swizzle::none, columns}, at);
    }
  }
}

TEST_CASE("the swizzles exchange 16-byte pieces among 2, 4 and 8, and undo themselves") {
  CHECK(swizzle_offset(Swizzle::none, 0x3ff) == 0x3ff);
  CHECK(swizzle_offset(Swizzle::bytes128, 0x080) == 0x090);
  CHECK(swizzle_offset(Swizzle::bytes128, 0x3f5) == 0x385);
  CHECK(swizzle_offset(Swizzle::bytes64, 0x1f0) == 0x1c0);
  CHECK(swizzle_offset(Swizzle::bytes32, 0x0b0) == 0x0a0);
  CHECK(swizzle_offset(Swizzle::bytes32, 0x130) == 0x130);
  for (const Swizzle swizzle : {Swizzle::bytes32, Swizzle::bytes64, Swizzle::bytes128}) {
    for (unsigned at = 0; at < 4096; ++at) REQUIRE(swizzle_offset(swizzle, swizzle_offset(swizzle, at)) == at);
  }
  using Layout = Swizzle128;
  for (int row = 0; row < 64; ++row) {
    for (int col = 0; col < 64; ++col) {
      const auto plain = unsigned(row * 128 + col * 2);
      REQUIRE(swizzle_offset(Swizzle::bytes128, plain) == unsigned(2 * Layout::offset<2, 64, 64>(row, col)));
    }
  }
}

TEST_CASE("a map that the copy engine cannot take is refused with the reason") {
  Tensor<std::uint16_t> x("X", 8, 64);
  TensorMapSpec good;
  good.tensor = "X";
  good.data = x.data();
  good.rank = 2;
  good.extent[0] = 64, good.extent[1] = 8;
  good.stride[0] = 2, good.stride[1] = 128;
  good.box[0] = 64, good.box[1] = 8;
  good.swizzle = Swizzle::bytes128;
  CHECK(refusal(good) == "");
  const auto expect = [&](const std::string& text, auto change) {
    TensorMapSpec spec = good;
    change(spec);
    INFO(refusal(spec));
    CHECK(contains(refusal(spec), "TMA cannot copy X: "));
    CHECK(contains(refusal(spec), text));
    CHECK_THROWS_AS(Machine(0, 1).tensor_map(spec), UsageError);
  };
  expect("address is not a multiple of 16", [&](TensorMapSpec& s) { s.data = x.data() + 4; });
  expect("the stride of dimension 1 is 136 bytes", [](TensorMapSpec& s) { s.stride[1] = 136; });
  expect("the stride of dimension 1 is -128 bytes", [](TensorMapSpec& s) { s.stride[1] = -128; });
  expect("not neighbours", [](TensorMapSpec& s) { s.stride[0] = 4; });
  expect("the extent of dimension 1 is 0", [](TensorMapSpec& s) { s.extent[1] = 0; });
  expect("the box has 257 elements of dimension 1", [](TensorMapSpec& s) { s.box[1] = 257; });
  expect("a row of the box has 24 bytes; multiples of 16", [](TensorMapSpec& s) { s.box[0] = 12; });
  expect("the swizzle takes at most 64", [](TensorMapSpec& s) { s.swizzle = Swizzle::bytes64; });
  expect("6 dimensions", [](TensorMapSpec& s) { s.rank = 6; });
  expect("its elements have 8 bytes", [](TensorMapSpec& s) { s.element_bytes = 8; });
}

TEST_CASE("the sectors of a box are counted row by row, inside the tensor alone") {
  Tensor<std::uint16_t> x("sectors", 6, 64);  // rows of 128 bytes
  const TensorMap map = map_of(x, 4, 32);
  Tensor<float> raw("raw", 1, 1024);
  const auto sectors = [&](int row, int col) {
    Machine machine(0, 1);
    machine.launch(kBox, box_kernel<2>, map, map, Coordinates{{col, row}, {}}, 4 * 64, GlobalTensor<float>(raw.ref()));
    return machine.counters().of_tensor("sectors")->read_sectors;
  };
  CHECK(sectors(0, 0) == 4 * 2);    // 64 bytes from a sector's start
  CHECK(sectors(3, 8) == 3 * 3);    // rows 3 to 5, 64 bytes across three sectors
  CHECK(sectors(-2, -8) == 2 * 2);  // rows 0 and 1, columns 0 to 23
}

// -- Coordinates that hardware does not take

struct CoordinatesTest {
  Tensor<std::uint16_t> x{"X", 16, 64};
  Tensor<float> raw{"raw", 1, 1024};
  TensorMap map = map_of(x, 4, 32);
  void expect(const Coordinates& at, const std::string& text) {
    expect_fault("bad coordinates", {text}, kBox, box_kernel<2>, map, map, at, 4 * 64, GlobalTensor<float>(raw.ref()));
  }
  void expect_taken(const Coordinates& at) {
    expect_clean(kBox, box_kernel<2>, map, map, at, 4 * 64, GlobalTensor<float>(raw.ref()));
  }
};

TEST_CASE("an innermost coordinate of a TMA copy that is no multiple of 16 bytes is a fault") {
  CoordinatesTest test;
  const char* const needed = "a multiple of 16 bytes is needed";
  for (const int col : {7, 4, -1, -4}) {
    INFO("column " << col);
    const std::string at =
        "X at coordinate " + std::to_string(col) + " of dimension 0, byte " + std::to_string(2 * col) + " of a row: ";
    test.expect({{col, 0}, {0, 0}}, "TMA load of " + at + needed);
    test.expect({{0, 0}, {col, 0}}, "TMA store of " + at + needed);
  }
  for (const int col : {-8, 8, 56, 64, 72}) test.expect_taken({{col, 5}, {8, 3}});
}

TEST_CASE("a TMA store that begins before the tensor is a fault, a TMA load is none") {
  CoordinatesTest test;
  const char* const refused = ": a store may not begin before the tensor";
  test.expect({{0, 0}, {-8, 0}}, std::string("TMA store of X at coordinate -8 of dimension 0") + refused);
  test.expect({{0, 0}, {0, -1}}, std::string("TMA store of X at coordinate -1 of dimension 1") + refused);
  test.expect({{0, 0}, {8, -4}}, std::string("TMA store of X at coordinate -4 of dimension 1") + refused);
  test.expect_taken({{-8, -4}, {0, 0}});
  test.expect_taken({{-64, -40}, {56, 14}});
  test.expect_taken({{0, 0}, {64, 16}});
}

/// A map of the first `columns` columns of rows that are 24 apart.
TensorMapSpec narrow_spec(std::uint16_t* data, int rows, int columns) {
  TensorMapSpec spec;
  spec.tensor = "X";
  spec.data = data;
  spec.rank = 2;
  spec.extent[0] = columns, spec.extent[1] = rows;
  spec.stride[0] = 2, spec.stride[1] = 48;
  spec.box[0] = 24, spec.box[1] = 4;
  return spec;
}

TEST_CASE("the 16 bytes in which a row ends must be there where a TMA store writes them") {
  Tensor<float> raw("raw", 1, 1024);
  const auto fault = [&](const TensorMapSpec& spec, const Coordinates& at) {
    Machine machine(0, 1);
    const TensorMap map = machine.tensor_map(spec);
    return fault_of(machine, kBox, box_kernel<2>, map, map, at, spec.box_bytes(), GlobalTensor<float>(raw.ref()));
  };
  Tensor<std::uint16_t> whole("X", 6, 24), cut("X", 1, 5 * 24 + 21);
  alignas(16) std::uint16_t host[6 * 24] = {};  // of which the machine knows what the map says
  CHECK_FALSE(fault(narrow_spec(whole.data(), 6, 21), {{}, {0, 4}}).has_value());
  for (std::uint16_t* const data : {cut.data(), host}) {
    const std::optional<Fault> beyond = fault(narrow_spec(data, 6, 21), {{}, {0, 4}});
    REQUIRE(beyond.has_value());
    INFO(beyond->what());
    CHECK(beyond->kind == "out of bounds");
    CHECK(
        contains(beyond->what(), "TMA store of X[batch 0, head 0, row 5, columns 0 to 23]: whole pieces of 16 bytes"));
    CHECK_FALSE(fault(narrow_spec(data, 6, 21), {{}, {0, 1}}).has_value());   // rows 1 to 4
    CHECK_FALSE(fault(narrow_spec(data, 6, 21), {{}, {24, 4}}).has_value());  // outside
    CHECK_FALSE(fault(narrow_spec(data, 6, 16), {{}, {0, 4}}).has_value());   // ends with 16 bytes
  }
}

// -- What goes wrong

struct CopyStorage {
  SharedTile<std::uint16_t, 64, 64, Swizzle128> tile[2];
  Mbarrier full, other;
  SHARED_MEMBERS(tile, full, other);
};

enum class Copy {
  right,
  no_wait,
  never_waited_for,
  wait_of_another,
  other_barrier,
  expect_too_much,
  expect_too_little,
  nothing_expected,
  no_init_fence,
  not_aligned,
  into_unread,
  while_in_flight,
  two_into_one,
  coordinates,
  beyond_memory,
  write_without_fence,
};

__global__ void copy_kernel(const __grid_constant__ TensorMap map, GlobalTensor<float> out, Copy what) {
  auto& shared = shared_storage<CopyStorage>();
  const auto address = shared.tile[0].address(0, 0);
  constexpr int bytes = 64 * 64 * 2;
  const int at[2] = {0, 0};
  if (threadIdx.x == 0) {
    shared.full.init(1);
    shared.other.init(1);
    if (what != Copy::no_init_fence) mbarrier_init_fence();
  }
  if (what == Copy::into_unread || what == Copy::write_without_fence) {
    shared.tile[0].store(int(threadIdx.x), 0, std::uint16_t(1));
    if (what == Copy::into_unread) async_proxy_fence();
  }
  if (what != Copy::into_unread) __syncthreads();
  if (threadIdx.x == 0) {
    shared.full.arrive_expect_tx(what == Copy::expect_too_much     ? 2 * bytes
                                 : what == Copy::expect_too_little ? bytes - 16
                                 : what == Copy::nothing_expected  ? 0
                                                                   : bytes);
    if (what == Copy::not_aligned) {
      tma_load(shared.tile[0].address(0, 8), map, at, shared.full);
    } else if (what == Copy::beyond_memory) {
      tma_load(shared.tile[1].address(1, 0), map, at, shared.full);
    } else if (what == Copy::coordinates) {
      const int three[3] = {};
      tma_load(address, map, three, shared.full);
    } else {
      tma_load(address, map, at, shared.full);
    }
    if (what == Copy::two_into_one) tma_load(address, map, at, shared.other);
    if (what == Copy::while_in_flight) shared.tile[0].store(0, 0, std::uint16_t(3));
    if (what == Copy::other_barrier) {
      shared.other.arrive_expect_tx(bytes);
      tma_load(shared.tile[1].address(0, 0), map, at, shared.other);
    }
  }
  if (what == Copy::into_unread) __syncthreads();
  if (what == Copy::never_waited_for) return;
  if (what == Copy::other_barrier) {
    shared.other.wait(0);
    if (threadIdx.x == 0) shared.full.wait(0);
    __syncwarp();
    if (threadIdx.x < 32) out.head(0, 0).store(0, 0, float(shared.tile[0].load(3, 3)));
    if (threadIdx.x >= 32) out.head(0, 0).store(0, 1, float(shared.tile[0].load(3, 3)));
    return;
  }
  if (what == Copy::wait_of_another && threadIdx.x >= 32) {
    out.head(0, 0).store(0, 1, float(shared.tile[0].load(3, 3)));
    return;
  }
  if (what != Copy::no_wait) shared.full.wait(0);
  out.head(0, 0).store(0, int(threadIdx.x), float(shared.tile[0].load(3, int(threadIdx.x))));
}

const LaunchConfig kCopy{"probe", {1}, 64, sizeof(CopyStorage)};

struct CopyTest {
  Tensor<std::uint16_t> x{"X", 64, 64};
  Tensor<float> out{"out", 1, 64};
  TensorMap map = map_of(x, 64, 64, Swizzle::bytes128);
  void expect(Copy what, const std::vector<std::string>& kinds, const std::vector<std::string>& texts) {
    expect_one_of(kinds, texts, kCopy, copy_kernel, map, GlobalTensor<float>(out.ref()), what);
  }
};

TEST_CASE("a thread that waits at the mbarrier finds what a TMA load brings") {
  CopyTest test;
  expect_clean(kCopy, copy_kernel, test.map, GlobalTensor<float>(test.out.ref()), Copy::right);
  for (int col = 0; col < 64; ++col) CHECK(test.out[col] == float(3 * 64 + col));
}

TEST_CASE("a read of a TMA tile without the wait is a fault") {
  CopyTest test;
  test.expect(Copy::no_wait, {"copy in flight", "unwritten shared memory"}, {"tile[0]", "row 3, column"});
  test.expect(Copy::never_waited_for, {"copy in flight"}, {"the block ends", "TMA load to tile[0] at byte 0"});
  // The wait of another thread is none of one's own.
  test.expect(Copy::wait_of_another, {"copy in flight", "data race", "unwritten shared memory"}, {"tile[0]"});
  // Nor is the wait for another copy.
  test.expect(Copy::other_barrier, {"copy in flight", "data race"}, {"row 3, column 3 of tile[0]"});
}

TEST_CASE("bytes that are not those expected are a fault that names them") {
  CopyTest test;
  test.expect(Copy::expect_too_much, {"transaction bytes"},
              {"full at byte 16384", "0 of 1 arrivals and 8192 bytes are missing", "announced"});
  test.expect(Copy::expect_too_little, {"transaction bytes"}, {"0 of 1 arrivals and -16 bytes are missing"});
}

TEST_CASE("a phase that does not expect the copy is a fault where the copy could come late") {
  CopyTest test;
  test.expect(Copy::nothing_expected, {"copy in flight", "transaction bytes"}, {"tests/sim/hopper_tma_test.cpp"});
}

TEST_CASE("an mbarrier whose initialisation is not fenced cannot take a TMA load") {
  CopyTest test;
  test.expect(Copy::no_init_fence, {"missing proxy fence"}, {"full at byte", "mbarrier_init_fence"});
}

TEST_CASE("places and coordinates that a TMA copy does not take are faults") {
  CopyTest test;
  test.expect(Copy::not_aligned, {"misaligned"}, {"tile[0] at byte 16", "a multiple of 128 bytes"});
  test.expect(Copy::beyond_memory, {"out of bounds"}, {"TMA load", "tile[1]"});
  test.expect(Copy::coordinates, {"bad tensor map"}, {"3 coordinates for the map of X, which has 2 dimensions"});
}

TEST_CASE("a TMA load over what others still use is a fault") {
  CopyTest test;
  test.expect(Copy::into_unread, {"data race", "copy in flight"}, {"tile[0]"});
  test.expect(Copy::while_in_flight, {"copy in flight"}, {"write of row 0, column 0 of tile[0]"});
  test.expect(Copy::two_into_one, {"copy in flight"}, {"TMA load of tile[0] at byte 0"});
  test.expect(Copy::write_without_fence, {"missing proxy fence"}, {"TMA load of tile[0]", "plain write of byte 0"});
}

// -- Stores

struct StoreStorage {
  SharedTile<std::uint16_t, 64, 64> tile;
  SHARED_MEMBERS(tile);
};

enum class Out {
  right,
  by_stmatrix,
  by_stmatrix_no_fence,
  fence_by_issuer,
  no_fence,
  fence_too_early,
  no_barrier,
  unwritten,
  no_wait,
  no_commit,
  commit_after_wait,
  overwritten,
  overwritten_after_wait,
};

__global__ void store_kernel(const __grid_constant__ TensorMap map, Out what) {
  auto& shared = shared_storage<StoreStorage>();
  const int row = int(threadIdx.x);
  if (what == Out::fence_too_early) async_proxy_fence();
  for (int col = 0; col < (what == Out::unwritten && row == 5 ? 63 : 64); ++col) {
    shared.tile.store(row, col, std::uint16_t(row * 1000 + col));
  }
  if (what == Out::by_stmatrix || what == Out::by_stmatrix_no_fence) {
    // The same numbers once more, after the others are fenced, through rows that are exchanged among the lanes.
    async_proxy_fence();
    __syncwarp();
    const int lane = row % 32, warp_row = row / 32 * 32;
    for (int col = 0; col < 64; col += 8) {
      std::uint32_t matrices[4];
      for (int i = 0; i < 4; ++i) {
        const int first = (warp_row + 8 * i + lane / 4) * 1000 + col + lane % 4 * 2;
        matrices[i] = std::uint32_t(std::uint16_t(first)) | std::uint32_t(std::uint16_t(first + 1)) << 16;
      }
      stmatrix_x4(shared.tile.address(row, col), matrices);
    }
  }
  if (what != Out::no_fence && what != Out::by_stmatrix_no_fence && what != Out::fence_too_early &&
      what != Out::fence_by_issuer)
    async_proxy_fence();
  if (what != Out::no_barrier) __syncthreads();
  if (row == 0) {
    const int at[2] = {0, 0};
    if (what == Out::fence_by_issuer) async_proxy_fence();
    tma_store(map, at, shared.tile.address(0, 0));
    if (what == Out::commit_after_wait) tma_store_wait_read<0>();
    if (what != Out::no_commit) tma_store_commit();
    if (what == Out::overwritten) shared.tile.store(1, 1, std::uint16_t(0));
    if (what != Out::no_wait && what != Out::no_commit) tma_store_wait_read<0>();
    if (what == Out::overwritten_after_wait) shared.tile.store(1, 1, std::uint16_t(0));
  }
}

const LaunchConfig kStore{"probe", {1}, 64, sizeof(StoreStorage)};

struct StoreTest {
  Tensor<std::uint16_t> x{"X", 64, 64};
  TensorMap map = map_of(x, 64, 64);
  void expect(Out what, const std::vector<std::string>& kinds, const std::vector<std::string>& texts) {
    expect_one_of(kinds, texts, kStore, store_kernel, map, what);
  }
};

TEST_CASE("a TMA store writes what was fenced for it, by the writers or by its issuer") {
  for (const Out what : {Out::right, Out::by_stmatrix, Out::fence_by_issuer, Out::overwritten_after_wait}) {
    StoreTest test;
    expect_clean(kStore, store_kernel, test.map, what);
    for (int i = 0; i < 64 * 64; ++i) REQUIRE(test.x[i] == std::uint16_t(i / 64 * 1000 + i % 64));
  }
}

TEST_CASE("plain writes that a TMA store reads without a proxy fence are a fault") {
  StoreTest test;
  test.expect(Out::no_fence, {"missing proxy fence"},
              {"TMA store of tile at byte", "async_proxy_fence()", "written by thread 0"});
  test.expect(Out::by_stmatrix_no_fence, {"missing proxy fence"}, {"TMA store of tile at byte", "stmatrix_x4("});
  test.expect(Out::fence_too_early, {"missing proxy fence"}, {"TMA store of tile at byte"});
}

TEST_CASE("a TMA store of what others write without a barrier is a fault") {
  StoreTest test;
  test.expect(Out::no_barrier, {"data race", "unwritten shared memory"}, {"tile at byte"});
  test.expect(Out::unwritten, {"unwritten shared memory"}, {"nobody wrote byte 766"});
}

TEST_CASE("a thread that ends before its TMA stores have read is a fault") {
  StoreTest test;
  test.expect(Out::no_wait, {"missing store wait"}, {"has read tile at byte 0"});
  test.expect(Out::no_commit, {"missing store wait"}, {"has read tile at byte 0"});
  test.expect(Out::commit_after_wait, {"missing commit"}, {"no tma_store_commit() since the TMA store"});
}

TEST_CASE("a write over what a TMA store is reading is a fault") {
  StoreTest test;
  test.expect(Out::overwritten, {"store source in use"}, {"row 1, column 1 of tile", "is being read by the TMA store"});
}

__global__ void two_blocks_kernel(const __grid_constant__ TensorMap map) {
  auto& shared = shared_storage<StoreStorage>();
  const int row = int(threadIdx.x);
  for (int col = 0; col < 64; ++col) shared.tile.store(row, col, std::uint16_t(0));
  async_proxy_fence();
  __syncthreads();
  if (row == 0) {
    const int at[2] = {0, int(blockIdx.x) * 63};
    tma_store(map, at, shared.tile.address(0, 0));
    tma_store_commit();
    tma_store_wait<0>();
  }
}

TEST_CASE("TMA stores of two blocks to one place are a data race between blocks") {
  Tensor<std::uint16_t> x("X", 128, 64);
  expect_fault("data race between blocks", {"write of X[batch 0, head 0, row 63, columns 0 to 63]"},
               {"probe", {2}, 64, sizeof(StoreStorage)}, two_blocks_kernel, map_of(x, 64, 64));
}

__global__ void behind_the_edge_kernel(const __grid_constant__ TensorMap map, GlobalTensor<std::uint16_t> x, int col) {
  auto& shared = shared_storage<StoreStorage>();
  const int row = int(threadIdx.x);
  for (int i = 0; i < 64; ++i) shared.tile.store(row, i, std::uint16_t(0));
  async_proxy_fence();
  __syncthreads();
  if (row == 0 && blockIdx.x == 0) {
    const int at[2] = {0, 0};
    tma_store(map, at, shared.tile.address(0, 0));
    tma_store_commit();
    tma_store_wait<0>();
  }
  if (row == 0 && blockIdx.x == 1) x.head(0, 0).store(2, col, 1);
}

TEST_CASE("what a TMA store writes behind the end of a row races with other blocks as the rest does") {
  Tensor<std::uint16_t> x("X", 6, 24);
  const LaunchConfig two_blocks{"probe", {2}, 64, sizeof(StoreStorage)};
  const TensorMap map = Machine(0, 1).tensor_map(narrow_spec(x.data(), 6, 13));
  const GlobalTensor<std::uint16_t> plain(x.ref());
  expect_fault("data race between blocks", {"X[batch 0, head 0, row 2, column"}, two_blocks, behind_the_edge_kernel,
               map, plain, 15);
  expect_clean(two_blocks, behind_the_edge_kernel, map, plain, 16);
}

}  // namespace
}  // namespace flash::sim
