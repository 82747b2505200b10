// The happens-before records of shared memory: what a lane alone, some lanes or a whole warp release and acquire, for
// bytes in pieces of any width.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>

#include "common/kernel/kernel.hpp"
#include "common/sim/shared_shadow.hpp"
#include "tests/sim/harness.hpp"

using flash::Fault;
using flash::test::contains;
using flash::test::fault_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

constexpr std::uint32_t kAll = 0xffffffffu;

/// Three warps, 64 bytes. All accesses have 4 bytes.
struct Shadow : SharedShadow {
  Shadow() { begin_block(64, 96); }
  Conflict read(int thread, int offset) { return on_read(thread, offset, 4, 1); }
  Conflict write(int thread, int offset) { return on_write(thread, offset, 4, 2); }
};

bool clean(const Conflict& conflict) { return conflict.kind == Conflict::none; }

TEST_CASE("a lane that releases alone releases what it did, and nothing of its neighbours") {
  Shadow shadow;
  shadow.write(3, 0);
  shadow.write(4, 4);
  Clock clock;
  shadow.release(0, 1u << 3, clock);
  shadow.write(3, 8);  // after the release
  shadow.acquire(1, kAll, clock);
  CHECK(clean(shadow.read(40, 0)));
  for (const auto& [offset, writer] : std::map<int, int>{{4, 4}, {8, 3}}) {
    const Conflict conflict = shadow.read(40, offset);
    CHECK(conflict.kind == Conflict::race_with_write);
    CHECK(conflict.thread == writer);
    CHECK(conflict.offset == offset);
  }
}

TEST_CASE("what a lane acquires alone its neighbours do not know until the warp meets") {
  Shadow shadow;
  shadow.write(3, 0);
  Clock clock;
  shadow.release(0, kAll, clock);
  shadow.acquire(1, 1u << 8, clock);
  CHECK(clean(shadow.read(40, 0)));
  CHECK(shadow.read(41, 0).kind == Conflict::race_with_write);
  shadow.order_lanes(1, 0x00000f00u);  // lanes 8 to 11
  CHECK(clean(shadow.read(43, 0)));
  CHECK(shadow.read(44, 0).kind == Conflict::race_with_write);
  shadow.order_lanes(1, kAll);
  CHECK(clean(shadow.read(44, 0)));
}

TEST_CASE("a lane that releases alone hands on what it acquired, from lanes and from warps") {
  Shadow shadow;
  shadow.write(3, 0);
  shadow.write(50, 4);
  Clock of_lane, of_warp, on;
  shadow.release(0, 1u << 3, of_lane);
  shadow.release(1, kAll, of_warp);
  shadow.acquire(0, 1u << 5, of_lane);
  shadow.acquire(0, kAll, of_warp);
  shadow.release(0, 1u << 5, on);
  shadow.acquire(2, 1u << 1, on);
  CHECK(clean(shadow.write(65, 0)));
  CHECK(clean(shadow.write(65, 4)));
  CHECK(shadow.write(66, 0).kind == Conflict::race_with_write);
}

TEST_CASE("lanes that read one place and release one after another are all waited for") {
  for (const int left_out : {-1, 17}) {
    Shadow shadow;
    shadow.write(64, 0);
    Clock start, clock;
    shadow.release(2, kAll, start);
    shadow.acquire(0, kAll, start);
    for (int lane = 0; lane < 32; ++lane) {
      CHECK(clean(shadow.read(lane, 0)));
      if (lane != left_out) shadow.release(0, 1u << lane, clock);
    }
    shadow.acquire(2, 1u, clock);
    const Conflict conflict = shadow.write(64, 0);
    if (left_out < 0) {
      CHECK(clean(conflict));
      CHECK(shadow.write(65, 0).kind == Conflict::race_with_write);
    } else {
      CHECK(conflict.kind == Conflict::race_with_read);
      CHECK(conflict.thread == left_out);
    }
  }
}

TEST_CASE("a part of a wide piece has the history of the whole") {
  for (const int reader : {32, 64}) {  // the first and the second of them
    SharedShadow shadow;
    shadow.begin_block(64, 96);
    shadow.on_write(0, 16, 16, 1);
    Clock written, read;
    shadow.release(0, kAll, written);
    shadow.acquire(1, kAll, written);
    shadow.acquire(2, kAll, written);
    for (const int thread : {32, 64}) CHECK(clean(shadow.on_read(thread, 16, 16, 2)));
    shadow.release(reader / 32, kAll, read);
    shadow.acquire(0, kAll, read);
    for (const int bytes : {8, 4, 2, 1}) {
      const Conflict conflict = shadow.on_write(0, 32 - bytes, bytes, 3);
      CHECK(conflict.kind == Conflict::race_with_read);
      CHECK(conflict.thread == 96 - reader);
      CHECK(conflict.offset == 32 - bytes);
    }
    CHECK(shadow.on_read(0, 15, 1, 3).kind == Conflict::unwritten);
  }
}

TEST_CASE("after lanes of one instruction wrote the same value, the next to use it waits for each of them") {
  const std::array<std::byte, 64> memory{};
  for (const bool all : {true, false}) {
    Shadow shadow;
    for (int lane = 0; lane < 4; ++lane) CHECK(clean(shadow.on_write(lane, 0, 4, 7, memory.data(), memory.data())));
    Clock clock;
    shadow.release(0, all ? 0xfu : 0xeu, clock);
    shadow.acquire(1, kAll, clock);
    CHECK(clean(shadow.read(32, 0)) == all);
    CHECK(clean(shadow.write(32, 0)) == all);
  }
}

// -- Random accesses against a simple model: a vector clock for each thread, all accesses to each byte

constexpr int kBytes = 48;
constexpr int kThreads = 70;  // the last warp has six lanes

struct Model {
  using Times = std::array<int, kThreads>;
  struct Use {
    int thread, when;
    SiteId site;
    bool wrote;
  };
  struct Byte {
    bool written = false;
    int copier = -1;
    std::vector<Use> uses;  // since the last write that replaced a value, with it
    std::byte value{};
  };
  std::array<Times, kThreads> clocks{};
  std::array<Byte, kBytes> bytes{};

  Model() {
    for (int t = 0; t < kThreads; ++t) clocks[std::size_t(t)][std::size_t(t)] = 1;
  }
  bool ordered(int thread, const Use& use) const {
    return use.when <= clocks[std::size_t(thread)][std::size_t(use.thread)];
  }
  static void join(Times& into, const Times& from) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
  }
  void release(int thread, Times& into) const { join(into, clocks[std::size_t(thread)]); }
  void advance(int thread) { ++clocks[std::size_t(thread)][std::size_t(thread)]; }

  Conflict::Kind read(int thread, Byte& byte, SiteId site) {
    if (!byte.written) return Conflict::unwritten;
    if (byte.copier >= 0) return Conflict::copy_in_flight;
    for (const Use& use : byte.uses) {
      if (use.wrote && !ordered(thread, use)) return Conflict::race_with_write;
    }
    byte.uses.push_back({thread, clocks[std::size_t(thread)][std::size_t(thread)], site, false});
    return Conflict::none;
  }
  Conflict::Kind write(int thread, Byte& byte, SiteId site, std::byte value, bool may_repeat) {
    if (byte.copier >= 0) return Conflict::copy_in_flight;
    bool repeats = false;
    for (const Use& use : byte.uses) {
      if (ordered(thread, use)) continue;
      if (!use.wrote) return Conflict::race_with_read;
      if (!may_repeat || use.thread / 32 != thread / 32 || use.site != site || byte.value != value) {
        return Conflict::race_with_write;
      }
      repeats = true;
    }
    if (!repeats) byte.uses.clear();
    byte.written = true;
    byte.value = value;
    byte.uses.push_back({thread, clocks[std::size_t(thread)][std::size_t(thread)], site, true});
    return Conflict::none;
  }
};

std::string family(Conflict::Kind kind) {
  if (kind == Conflict::none) return "none";
  if (kind == Conflict::unwritten) return "unwritten";
  return kind == Conflict::copy_in_flight ? "copy" : "race";
}

TEST_CASE("random accesses, releases and acquires are judged as by a vector clock for each thread") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const auto some_lanes = [&](int thread) {
    const std::uint32_t all = thread / 32 == 2 ? 0x3fu : kAll;
    const int kind = below(4);
    if (kind == 0) return all;
    if (kind == 1) return std::uint32_t(random()) & all;
    return 1u << thread % 32;
  };
  SharedShadow shadow;
  std::map<std::string, int> seen;
  for (int block = 0; block < 20000; ++block) {
    shadow.begin_block(kBytes, kThreads);
    Model model;
    Clock clocks[3];
    Model::Times times[3] = {};
    std::array<std::byte, kBytes> memory{};
    std::vector<std::array<int, 3>> copies;  // thread, offset, bytes
    const int widest = below(5);
    std::vector<int> threads;  // few, so that they are ordered often
    for (int i = 1 + below(6); i > 0; --i) threads.push_back(below(kThreads));
    for (int step = 0; step < 400; ++step) {
      const int thread = threads[std::size_t(below(int(threads.size())))], warp = thread / 32, action = below(20);
      const int size = 1 << below(widest + 1), offset = below(kBytes / size) * size;
      const SiteId site = SiteId(1 + below(2));
      Conflict conflict;
      Conflict::Kind expected = Conflict::none;
      int first = offset;
      const auto for_bytes = [&](auto&& use) {
        for (first = offset; first < offset + size; ++first) {
          if ((expected = use(model.bytes[std::size_t(first)], std::size_t(first))) != Conflict::none) return;
        }
      };
      if (action < 6) {
        for_bytes([&](Model::Byte& byte, std::size_t) { return model.read(thread, byte, site); });
        conflict = shadow.on_read(thread, offset, size, site);
      } else if (action < 11) {
        std::array<std::byte, 16> values;
        values.fill(std::byte(below(8) == 0));
        for_bytes([&](Model::Byte& byte, std::size_t at) {
          return model.write(thread, byte, site, values[at - std::size_t(offset)], true);
        });
        conflict = shadow.on_write(thread, offset, size, site, memory.data() + offset, values.data());
        std::memcpy(memory.data() + offset, values.data(), std::size_t(size));
      } else if (action < 12) {
        for_bytes(
            [&](Model::Byte& byte, std::size_t at) { return model.write(thread, byte, site, memory[at], false); });
        conflict = shadow.begin_copy(thread, offset, size, site);
        for (int i = offset; i < offset + size; ++i) model.bytes[std::size_t(i)].copier = thread;
        copies.push_back({thread, offset, size});
      } else if (action < 14) {
        for (const auto& [issuer, from, bytes] : copies) {
          for (int i = from; i < from + bytes; ++i) {
            Model::Byte& byte = model.bytes[std::size_t(i)];
            byte.copier = -1;
            byte.uses = {{issuer, model.clocks[std::size_t(issuer)][std::size_t(issuer)], site, true}};
          }
          shadow.end_copy(issuer, from, bytes, site);
        }
        copies.clear();
      } else {
        const std::uint32_t lanes = some_lanes(thread);
        const int which = below(3);
        const auto each = [&](auto&& lane_does) {
          for (int lane = 0; lane < 32; ++lane) {
            if (lanes >> lane & 1u) lane_does(warp * 32 + lane);
          }
        };
        Model::Times all{};
        if (action < 16) {
          each([&](int t) { model.release(t, times[which]); });
          each([&](int t) { model.advance(t); });
          shadow.release(warp, lanes, clocks[which]);
        } else if (action < 18) {
          each([&](int t) { Model::join(model.clocks[std::size_t(t)], times[which]); });
          shadow.acquire(warp, lanes, clocks[which]);
        } else {
          each([&](int t) { model.release(t, all); });
          each([&](int t) { Model::join(model.clocks[std::size_t(t)], all); });
          each([&](int t) { model.advance(t); });
          shadow.order_lanes(warp, lanes);
        }
      }
      if (family(conflict.kind) != family(expected) || (conflict.kind != Conflict::none && conflict.offset != first)) {
        FAIL("block " << block << ", step " << step << ", action " << action << ": " << family(conflict.kind)
                      << " at byte " << conflict.offset << " where " << family(expected) << " at " << first
                      << " is right");
      }
      ++seen[family(expected)];
      if (expected == Conflict::unwritten) continue;  // what comes after it is judged as before
      if (expected != Conflict::none) break;
    }
  }
  for (const char* kind : {"none", "unwritten", "copy", "race"}) CHECK(seen[kind] > 500);
}

// -- In kernels: what mbarriers are made of

__global__ void hand_over_kernel(GlobalTensor<int> flag, Clock* clock, int reader) {
  auto& x = shared_storage<SharedVector<float, 64>>();
  const int thread = int(threadIdx.x);
  const auto there = flag.head(0, 0);
  if (thread == 3) {
    x.store(0, 1.0f);
    this_block().release(1u << 3, *clock);
    there.store(0, 0, 1);
  }
  if (thread == 40 || thread == reader) {
    while (there.load(0, 0) == 0) {
    }
    if (thread == 40) this_block().acquire(1u << 8, *clock);
    if (thread == reader) x.load(0);
  }
}

TEST_CASE("one thread hands shared memory to one thread of another warp, and not to that one's neighbour") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    for (const int reader : {40, 41}) {
      Tensor<int> flag("flag", 1, 1);
      Clock clock;
      Machine machine(seed, 1);
      const auto fault =
          fault_of(machine, {"probe", {1}, 64, 256}, hand_over_kernel, GlobalTensor<int>(flag.ref()), &clock, reader);
      CHECK(fault.has_value() == (reader == 41));
      if (!fault) continue;
      INFO(fault->what());
      CHECK(fault->kind == "data race");
      CHECK(contains(fault->what(), "thread 41 (warp 1, lane 9)"));
    }
  }
}

enum class Store {
  one_value,
  one_value_again,
  one_value_as_vectors,
  one_value_in_a_loop,
  two_values,
  two_instructions,
  two_warps,
  read_by_a_neighbour
};

__global__ void store_kernel(Store what) {
  auto& x = shared_storage<SharedVector<float, 64>>();
  const int thread = int(threadIdx.x), lane = thread % 32;
  switch (what) {
    case Store::one_value:
      if (thread < 32) x.store(lane / 4, float(lane / 4));
      __syncthreads();
      x.load(lane / 4);
      __syncthreads();
      x.store(thread, 1.0f);
      break;
    case Store::one_value_again:
      for (int i = 0; i < 3; ++i) {
        if (thread < 32) x.store(i % 2, 7.0f);
        __syncthreads();
      }
      break;
    case Store::one_value_as_vectors:
      if (thread < 32)
        shared_storage<SharedTile<float, 4, 16>>().store_vector(lane / 8, 4, Vector<float, 4>{1, 2, 3, 4});
      break;
    case Store::one_value_in_a_loop:
      for (int i = 0; i < 3; ++i) {
        if (thread < 32) x.store(5, 7.0f);
      }
      break;
    case Store::two_values:
      if (thread < 32) x.store(lane / 4, lane == 13 ? -1.0f : 1.0f);
      break;
    case Store::two_instructions:
      if (lane < 2 && thread < 32) {
        if (lane == 0) x.store(9, 1.0f);
        if (lane == 1) x.store(9, 1.0f);
      }
      break;
    case Store::two_warps:
      if (lane == 0) x.store(9, 1.0f);
      break;
    case Store::read_by_a_neighbour:
      if (thread < 32) x.store(9, 1.0f);
      warp_sum(1.0f);
      if (lane == 31 && thread < 32) x.load(9);
      break;
  }
}

TEST_CASE("lanes of one store that write the same value to one place are no race; other values and stores are") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    INFO("schedule seed " << seed);
    Machine machine(seed, 1);
    for (const Store what :
         {Store::one_value, Store::one_value_again, Store::one_value_as_vectors, Store::one_value_in_a_loop}) {
      INFO("store " << int(what));
      const auto fault = fault_of(machine, {"probe", {2}, 64, 256}, store_kernel, what);
      if (fault) FAIL_CHECK(fault->what());
    }
    for (const Store what :
         {Store::two_values, Store::two_instructions, Store::two_warps, Store::read_by_a_neighbour}) {
      INFO("store " << int(what));
      const auto fault = fault_of(machine, {"probe", {2}, 64, 256}, store_kernel, what);
      REQUIRE(fault.has_value());
      CHECK(fault->kind == "data race");
      CHECK(contains(fault->what(), "no barrier between it and the write of byte"));
    }
  }
}

}  // namespace
}  // namespace flash::sim
