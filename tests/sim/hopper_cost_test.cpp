// What Hopper's instructions cost on the simulated GPU: prints the table of docs/pages/simulated_gpu.md, with
//   build/sim/tests/tests_sim --filenames-as-tags "[#hopper_cost_test]"
// Times are those of one host thread. What is tested is that each kernel did what is timed.
#include <chrono>
#include <cstdio>

#include "tests/sim/hopper.hpp"

using flash::Swizzle;
using flash::test::map_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

struct CostStorage {
  SharedTile<half, 64, 64, Swizzle128> a;
  SharedTile<half, 256, 64, Swizzle128> b;
  Mbarrier full, empty;
  SHARED_MEMBERS(a, b, full, empty);
};

enum class Cost {
  syncthreads,
  registers,
  mbarrier,
  load,
  store,
  elect,
  fence,
  mma,
  wgmma64,
  wgmma128,
  wgmma256,
  wgmma128_registers
};

template <int N, bool AInRegisters = false>
void products(CostStorage& shared, int repeats) {
  AccumulatorRegister d[N / 8][4] = {};
  const std::uint32_t p[4] = {0x3c00b400u, 0x34003555u, 0xb8003a00u, 0x3e003d11u};
  const auto a = matrix_descriptor(shared.a.address(0, 0), 16, 1024, Swizzle::bytes128);
  const auto b = matrix_descriptor(shared.b.address(0, 0), 16, 1024, Swizzle::bytes128);
  for (int i = 0; i < repeats; ++i) {
    wgmma_fence();
    for (int k = 0; k < 4; ++k) {
      if constexpr (AInRegisters) {
        wgmma<half, N, Major::k>(d, p, advance(b, 32 * k), true);
      } else {
        wgmma<half, N, Major::k, Major::k>(d, advance(a, 32 * k), advance(b, 32 * k), true);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
}

__global__ void cost_kernel(const __grid_constant__ TensorMap map, Cost what, int repeats) {
  auto& shared = shared_storage<CostStorage>();
  for (int i = int(threadIdx.x); i < 64 * 8; i += 128) {
    Vector<half, 8> values;
    for (int e = 0; e < 8; ++e) values[e] = from_float<half>(float((i * 8 + e) % 31) / 16.0f - 1.0f);
    shared.a.store_vector<8>(i / 8, i % 8 * 8, values);
    for (int r = 0; r < 4; ++r) shared.b.store_vector<8>(r * 64 + i / 8, i % 8 * 8, values);
  }
  if (threadIdx.x == 0) {
    shared.full.init(1);
    shared.empty.init(128);
  }
  async_proxy_fence();
  __syncthreads();
  const int at[2] = {0, 0};
  if (what == Cost::wgmma64) return products<64>(shared, repeats);
  if (what == Cost::wgmma128) return products<128>(shared, repeats);
  if (what == Cost::wgmma256) return products<256>(shared, repeats);
  if (what == Cost::wgmma128_registers) return products<128, true>(shared, repeats);
  AccumulatorRegister d[4] = {};
  const std::uint32_t a[4] = {0x3c00b400u, 0x34003555u, 0xb8003a00u, 0x3e003d11u}, b[2] = {0xb8003a00u, 0x34003555u};
  for (int i = 0; i < repeats; ++i) {
    switch (what) {
      case Cost::syncthreads:
        __syncthreads();
        break;
      case Cost::registers:
        decrease_registers<24>();
        increase_registers<256>();
        break;
      case Cost::mbarrier:
        shared.empty.arrive();
        shared.empty.wait(unsigned(i % 2));
        break;
      case Cost::load:
        if (threadIdx.x == 0) {
          shared.full.arrive_expect_tx(64 * 64 * 2);
          tma_load(shared.a.address(0, 0), map, at, shared.full);
        }
        shared.full.wait(unsigned(i % 2));
        __syncthreads();
        break;
      case Cost::store:
        if (threadIdx.x == 0) {
          tma_store(map, at, shared.a.address(0, 0));
          tma_store_commit();
          tma_store_wait<0>();
        }
        break;
      case Cost::elect:
        elect_one();
        break;
      case Cost::fence:
        async_proxy_fence();
        break;
      default:
        for (int k = 0; k < 4 * 16; ++k) mma_m16n8k16<half>(d, a, b);  // what four wgmma m64n128k16 compute
    }
  }
}

double microseconds(Cost what, int repeats, Counters& counters) {
  Tensor<half> x("X", 64, 64);
  const TensorMap map = map_of(x, 64, 64, Swizzle::bytes128);
  Machine machine(0, 1);
  const auto run = [&](int times) {
    const auto start = std::chrono::steady_clock::now();
    machine.launch({"cost", {1}, 128, sizeof(CostStorage)}, cost_kernel, map, what, times);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  };
  double nothing = run(0), all = run(repeats);
  counters = machine.counters();
  for (int i = 0; i < 4; ++i) nothing = std::min(nothing, run(0)), all = std::min(all, run(repeats));
  return (all - nothing) / repeats;
}

TEST_CASE("what Hopper's instructions cost in the simulation is printed") {
  struct Row {
    const char* name;
    Cost what;
    int instructions;  // in one repeat
  };
  const Row rows[] = {
      {"__syncthreads, 128 threads", Cost::syncthreads, 1},
      {"mbarrier, 128 arrivals and waits", Cost::mbarrier, 1},
      {"TMA load of 8 KB, 128 waits and __syncthreads", Cost::load, 1},
      {"TMA store of 8 KB and its wait", Cost::store, 1},
      {"elect_one in 4 warps", Cost::elect, 1},
      {"decrease_registers, increase_registers", Cost::registers, 2},
      {"async_proxy_fence in 128 threads", Cost::fence, 1},
      {"wgmma m64n64k16", Cost::wgmma64, 4},
      {"wgmma m64n128k16", Cost::wgmma128, 4},
      {"wgmma m64n256k16", Cost::wgmma256, 4},
      {"wgmma m64n128k16, a in registers", Cost::wgmma128_registers, 4},
      {"mma.sync, 64 of m16n8k16 (as m64n128k16)", Cost::mma, 4},
  };
  constexpr int repeats = 20;
  for (const Row& row : rows) {
    Counters counters;
    const double time = microseconds(row.what, repeats, counters) / row.instructions;
    std::printf("| %-45s | %7.0f |\n", row.name, time);
    const auto of = [&](SharedAccess kind) { return counters.shared_of(kind).accesses; };
    const std::int64_t products = row.what >= Cost::wgmma64 ? 4 : 0;
    CHECK(of(SharedAccess::wgmma) == products * repeats);
    CHECK(of(SharedAccess::tma_load) == (row.what == Cost::load) * repeats);
    CHECK(of(SharedAccess::tma_store) == (row.what == Cost::store) * repeats);
    CHECK((counters.matrix_flops > 0) == (row.what >= Cost::mma));
  }
}

}  // namespace
}  // namespace flash::sim
