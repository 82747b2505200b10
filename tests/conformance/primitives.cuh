// Kernels that run each primitive once and store what it gave. No `#if` by machine stands here: the suite shows that
// one source means the same on both.
#include <cstring>

#include "common/kernel/kernel.hpp"
#include "tests/conformance/array.cuh"
#include "tests/conformance/primitives.hpp"

namespace flash::MACHINE::conformance {

constexpr unsigned Full = 0xffffffffu;

// -- Shuffles and votes: one warp, a row of the output for each operation

constexpr int ShuffleWidths = 6;  // 1, 2, 4, .. 32
constexpr int ShufflesOfWidth = 16;
constexpr int ShuffleRows = ShuffleWidths * ShufflesOfWidth + 3;

__global__ void shuffle_kernel(GlobalTensor<const unsigned> in, GlobalTensor<unsigned> out) {
  const int lane = int(threadIdx.x);
  const unsigned value = in.head(0, 0).load(0, lane);
  const auto result = out.head(0, 0);
  int row = 0;
  for (int width = 1; width <= 32; width *= 2) {
    result.store(row++, lane, __shfl_sync(Full, value, 0, width));
    result.store(row++, lane, __shfl_sync(Full, value, 5, width));
    result.store(row++, lane, __shfl_sync(Full, value, 31, width));
    result.store(row++, lane, __shfl_sync(Full, value, (lane * 7 + 3) % 40 - 4, width));
    result.store(row++, lane, __shfl_xor_sync(Full, value, 1, width));
    result.store(row++, lane, __shfl_xor_sync(Full, value, 6, width));
    result.store(row++, lane, __shfl_xor_sync(Full, value, 16, width));
    result.store(row++, lane, __shfl_xor_sync(Full, value, lane & 3, width));
    result.store(row++, lane, __shfl_up_sync(Full, value, 0, width));
    result.store(row++, lane, __shfl_up_sync(Full, value, 1, width));
    result.store(row++, lane, __shfl_up_sync(Full, value, 7, width));
    result.store(row++, lane, __shfl_up_sync(Full, value, unsigned(lane % 5), width));
    result.store(row++, lane, __shfl_down_sync(Full, value, 1, width));
    result.store(row++, lane, __shfl_down_sync(Full, value, 16, width));
    result.store(row++, lane, __shfl_down_sync(Full, value, 31, width));
    result.store(row++, lane, __shfl_down_sync(Full, value, unsigned(lane % 5), width));
  }
  const float number = float(int(value >> 8)) - 5e6f;
  result.store(row++, lane, unsigned(int(warp_max(number))));
  result.store(row++, lane, unsigned(int(warp_sum(float(value % 1000u)))));
  unsigned low = 0;
  if (lane < 16) low = __shfl_xor_sync(0x0000ffffu, value, 3);
  result.store(row++, lane, low);
}

constexpr int VoteRows = 9;

__global__ void vote_kernel(GlobalTensor<const unsigned> in, GlobalTensor<unsigned> out) {
  const int lane = int(threadIdx.x);
  const unsigned value = in.head(0, 0).load(0, lane);
  const auto result = out.head(0, 0);
  result.store(0, lane, __ballot_sync(Full, value % 3u == 0u));
  result.store(1, lane, __ballot_sync(Full, false));
  result.store(2, lane, unsigned(__any_sync(Full, lane == 17) ? 1 : 0));
  result.store(3, lane, unsigned(__any_sync(Full, lane > 31) ? 1 : 0));
  result.store(4, lane, unsigned(__all_sync(Full, lane < 32) ? 1 : 0));
  result.store(5, lane, unsigned(__all_sync(Full, lane != 17) ? 1 : 0));
  unsigned ballot = 7, any = 7, all = 7;
  if (lane % 2 == 1) {
    ballot = __ballot_sync(0xaaaaaaaau, value % 5u < 2u);
    any = __any_sync(0xaaaaaaaau, lane == 16) ? 1u : 0u;
    all = __all_sync(0xaaaaaaaau, lane % 2 == 1) ? 1u : 0u;
  }
  result.store(6, lane, ballot);
  result.store(7, lane, any);
  result.store(8, lane, all);
}

// -- ldmatrix and vector accesses, by layout of the tile

constexpr int LdmatrixRows = 4 + 2 + 4 + 2;

/// Element (row, col) of the tile is the number 64 row + col, which both 16-bit types... fp16 represents exactly.
template <typename Layout>
struct TileStorage {
  SharedTile<half, 16, 64, Layout> tile;
};

template <typename Layout>
__device__ __forceinline__ void fill_tile(SharedTile<half, 16, 64, Layout>& tile) {
  for (int i = int(threadIdx.x); i < 16 * 64; i += 32) tile.store(i / 64, i % 64, from_float<half>(float(i)));
  __syncwarp();
}

template <typename Layout>
__global__ void ldmatrix_kernel(GlobalTensor<unsigned> out) {
  auto& tile = shared_storage<TileStorage<Layout>>().tile;
  fill_tile(tile);
  const int lane = int(threadIdx.x);
  const auto result = out.head(0, 0);
  const auto at = tile.address(lane % 16, 24 + lane / 16 * 8);
  std::uint32_t r4[4], r2[2];
  int row = 0;
  ldmatrix_x4(r4, at);
  for (int i = 0; i < 4; ++i) result.store(row++, lane, r4[i]);
  ldmatrix_x2(r2, at);
  for (int i = 0; i < 2; ++i) result.store(row++, lane, r2[i]);
  ldmatrix_x4_trans(r4, at);
  for (int i = 0; i < 4; ++i) result.store(row++, lane, r4[i]);
  ldmatrix_x2_trans(r2, at);
  for (int i = 0; i < 2; ++i) result.store(row++, lane, r2[i]);
}

/// Rows 0 to 31: all elements by vectors of 8; then 4 vectors of 4, 2 and 1.
template <typename Layout>
__global__ void tile_kernel(GlobalTensor<half> out) {
  auto& tile = shared_storage<TileStorage<Layout>>().tile;
  fill_tile(tile);
  const int lane = int(threadIdx.x);
  const auto result = out.head(0, 0);  // [16 + 3, 64]
  for (int i = lane; i < 16 * 8; i += 32) {
    const auto v = load_vector<8>(tile, i / 8, i % 8 * 8);
    result.store_vector(i / 8, i % 8 * 8, v);
  }
  __syncwarp();
  if (lane < 16) tile.store_vector(3, 4 * lane, load_vector<4>(tile, 5, 4 * lane));
  tile.store_vector(4, 2 * lane, load_vector<2>(tile, 6, 2 * lane));
  tile.store(7, lane, tile.load(8, 63 - lane));
  __syncwarp();
  for (int i = lane; i < 64; i += 32) {
    result.store(16, i, tile.load(3, i));
    result.store(17, i, tile.load(4, i));
    result.store(18, i, tile.load(7, i));
  }
}

// -- Products: one warp for each case; rows of the operands are [lane][register]

template <typename Element>
__global__ void mma_kernel(GlobalTensor<const unsigned> a, GlobalTensor<const unsigned> b, GlobalTensor<const float> c,
                           GlobalTensor<float> d) {
  const int lane = int(threadIdx.x), index = int(blockIdx.x);
  std::uint32_t fragment_a[4], fragment_b[2];
  float sum[4];
  for (int i = 0; i < 4; ++i) fragment_a[i] = a.head(0, 0).load(index, 4 * lane + i);
  for (int i = 0; i < 2; ++i) fragment_b[i] = b.head(0, 0).load(index, 2 * lane + i);
  for (int i = 0; i < 4; ++i) sum[i] = c.head(0, 0).load(index, 4 * lane + i);
  mma_m16n8k16<Element>(sum, fragment_a, fragment_b);
  for (int i = 0; i < 4; ++i) d.head(0, 0).store(index, 4 * lane + i, sum[i]);
}

// -- cp.async: three groups, the middle one zeroes; a warp reads after each wait what the others copied

constexpr int CopyThreads = 128;

struct CopyStorage {
  SharedTile<unsigned, 3, 4 * CopyThreads, Swizzle128> tile;
};

__global__ void copy_kernel(GlobalTensor<const unsigned> in, GlobalTensor<unsigned> out) {
  auto& tile = shared_storage<CopyStorage>().tile;
  const auto source = in.head(0, 0), unused = in.head(0, 0);  // [3, 4 * CopyThreads]
  const auto result = out.head(0, 0);
  const int thread = int(threadIdx.x), other = (thread + 45) % CopyThreads;
  cp_async_16(tile.address(0, 4 * thread), source.address(0, 4 * thread));
  cp_async_commit();
  if (thread % 3 == 0) {
    cp_async_zero_16(tile.address(1, 4 * thread));
  } else {
    cp_async_16(tile.address(1, 4 * thread), source.address(1, 4 * other));
  }
  cp_async_commit();
  cp_async_16(tile.address(2, 4 * thread), unused.address(2, 4 * thread));
  cp_async_commit();

  cp_async_wait<2>();
  __syncthreads();
  for (int i = 0; i < 4; ++i) result.store(0, 4 * thread + i, tile.load(0, 4 * other + i));
  cp_async_wait<1>();
  __syncthreads();
  for (int i = 0; i < 4; ++i) result.store(1, 4 * thread + i, tile.load(1, 4 * other + i));
  cp_async_wait<0>();
  __syncthreads();
  for (int i = 0; i < 4; ++i) result.store(2, 4 * thread + i, tile.load(2, 4 * other + i));
}

// -- Named barriers: warp 0 fills two buffers in turn, warp 1 empties them; meanwhile warps 2 and 3 meet at another

constexpr int Rounds = 20;

struct BarrierStorage {
  SharedTile<unsigned, 2, 32> buffer;
  SharedTile<unsigned, 2, 32> exchange;
};

__global__ void barrier_kernel(GlobalTensor<unsigned> out) {
  auto& shared = shared_storage<BarrierStorage>();
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const auto result = out.head(0, 0);  // [3 * Rounds, 32]
  constexpr int full = 1, empty = 3, meeting = 5;
  for (int round = 0; round < Rounds; ++round) {
    const int b = round % 2;
    if (warp == 0) {
      if (round >= 2) named_barrier_sync(empty + b, 64);
      shared.buffer.store(b, lane, unsigned(1000 * round + lane));
      named_barrier_arrive(full + b, 64);
    } else if (warp == 1) {
      named_barrier_sync(full + b, 64);
      result.store(round, lane, shared.buffer.load(b, 31 - lane));
      if (round + 2 < Rounds) named_barrier_arrive(empty + b, 64);
    } else {
      shared.exchange.store(warp - 2, lane, unsigned(100000 * warp + 100 * round + lane));
      named_barrier_sync(meeting, 64);
      result.store(Rounds * (warp - 1) + round, lane, shared.exchange.load(3 - warp, lane ^ 1));
      named_barrier_sync(meeting, 64);
    }
  }
  __syncthreads();
}

// -- Atomics: many blocks on few elements; sums of small integers, so that the order does not show

__global__ void atomic_kernel(GlobalTensor<int> integers, GlobalTensor<float> floats) {
  const int thread = int(threadIdx.x), index = int(blockIdx.x) * 64 + thread;
  const auto i = integers.head(0, 0);  // [1, 66]
  const auto f = floats.head(0, 0);    // [1, 16]
  atomic_add(i, 0, thread % 8, index);
  atomic_max(i, 0, 8 + thread % 4, (index * 37) % 1009);
  atomic_add(f, 0, thread % 8, float(index % 16));
  // What was there before: a place of its own for each thread.
  if (blockIdx.x == 0) {
    const int first = atomic_add(i, 0, 12 + thread % 32, 0);
    (void)first;
    if (thread < 8) f.store(0, 8 + thread, float(atomic_max(i, 0, 44 + thread, 1000 + thread)));
  }
}

// -- Conversions and arithmetic, a thread for each element

template <typename Element>
__global__ void round_kernel(GlobalTensor<const float> in, GlobalTensor<Element> out) {
  const int i = int(blockIdx.x) * 128 + int(threadIdx.x);
  if (i >= in.head(0, 0).cols()) return;
  out.head(0, 0).store(0, i, from_float<Element>(in.head(0, 0).load(0, i)));
}

template <typename Element>
__global__ void widen_kernel(GlobalTensor<const Element> in, GlobalTensor<float> out) {
  const int i = int(blockIdx.x) * 128 + int(threadIdx.x);
  out.head(0, 0).store(0, i, to_float(in.head(0, 0).load(0, i)));
}

template <typename Element>
__global__ void pack_kernel(GlobalTensor<const float> in, GlobalTensor<unsigned> out) {
  const int i = int(blockIdx.x) * 128 + int(threadIdx.x), count = in.head(0, 0).cols();
  if (i >= count) return;
  out.head(0, 0).store(0, i, pack<Element>(in.head(0, 0).load(0, i), in.head(0, 0).load(0, count - 1 - i)));
}

__global__ void exp2_kernel(GlobalTensor<const float> in, GlobalTensor<float> out) {
  const int i = int(blockIdx.x) * 128 + int(threadIdx.x);
  if (i >= in.head(0, 0).cols()) return;
  out.head(0, 0).store(0, i, exp2_approx(in.head(0, 0).load(0, i)));
}

__global__ void arithmetic_kernel(GlobalTensor<const float> in, GlobalTensor<float> out) {
  const int i = int(blockIdx.x) * 128 + int(threadIdx.x), count = in.head(0, 0).cols();
  if (i >= count) return;
  const auto x = in.head(0, 0);
  const auto y = out.head(0, 0);
  const float a = x.load(0, i), b = x.load(0, count - 1 - i), c = x.load(0, (i * 7 + 5) % count);
  y.store(0, i, fmaxf(a, b));
  y.store(1, i, fminf(a, b));
  y.store(2, i, fmaf(a, b, c));
  y.store(3, i, a + b);
  y.store(4, i, a * b);
  y.store(5, i, a / b);
}

// -- The suite

template <typename Layout>
void run_layout(Machine& machine, const std::string& name, std::vector<Output>& outputs) {
  Array<unsigned> fragments(machine, "out", LdmatrixRows, 32);
  machine.launch({"ldmatrix", {1}, 32, sizeof(TileStorage<Layout>)}, ldmatrix_kernel<Layout>, fragments.out());
  outputs.push_back(fragments.output("ldmatrix " + name));
  Array<half> elements(machine, "out", 19, 64);
  machine.launch({"tile", {1}, 32, sizeof(TileStorage<Layout>)}, tile_kernel<Layout>, elements.out());
  outputs.push_back(elements.output("tile " + name));
}

template <typename Element>
void run_element(Machine& machine, DType dtype, std::vector<Output>& outputs) {
  const std::string name = to_string(dtype);
  const std::vector<float> floats = test::float_inputs();
  const auto count = std::int64_t(floats.size());
  const std::int64_t blocks = (count + 127) / 128;
  const Array<float> in(machine, "in", 1, count, floats.data());

  Array<Element> rounded(machine, "out", 1, count);
  machine.launch({"round", {blocks}, 128}, round_kernel<Element>, in.in(), rounded.out());
  outputs.push_back(rounded.output("round to " + name));
  Array<unsigned> packed(machine, "out", 1, count);
  machine.launch({"pack", {blocks}, 128}, pack_kernel<Element>, in.in(), packed.out());
  outputs.push_back(packed.output("pack " + name));

  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::uint16_t(i);
  const Array<Element> narrow(machine, "in", 1, 65536, all.data());
  Array<float> widened(machine, "out", 1, 65536);
  machine.launch({"widen", {512}, 128}, widen_kernel<Element>, narrow.in(), widened.out());
  outputs.push_back(widened.output("widen " + name));

  for (int set = 0; set < test::kMmaSetCount; ++set) {
    const std::vector<test::MmaCase> cases = test::mma_cases(set, dtype);
    const auto size = std::int64_t(cases.size());
    std::vector<std::uint32_t> a, b;
    std::vector<float> c;
    for (const test::MmaCase& one : cases) {
      const test::Fragments fragments = test::to_fragments(one);
      for (int lane = 0; lane < 32; ++lane) {
        a.insert(a.end(), fragments.a[lane], fragments.a[lane] + 4);
        b.insert(b.end(), fragments.b[lane], fragments.b[lane] + 2);
        c.insert(c.end(), fragments.c[lane], fragments.c[lane] + 4);
      }
    }
    const Array<unsigned> device_a(machine, "a", size, 128, a.data()), device_b(machine, "b", size, 64, b.data());
    const Array<float> device_c(machine, "c", size, 128, c.data());
    Array<float> d(machine, "d", size, 128);
    machine.launch({"mma", {size}, 32}, mma_kernel<Element>, device_a.in(), device_b.in(), device_c.in(), d.out());
    outputs.push_back(d.output("mma " + name + " " + test::kMmaSets[set]));
  }
}

inline std::vector<Output> run(Machine& machine) {
  std::vector<Output> outputs;
  std::vector<std::uint32_t> values(32);
  for (int lane = 0; lane < 32; ++lane) values[std::size_t(lane)] = test::lane_value(lane);
  const Array<unsigned> lanes(machine, "in", 1, 32, values.data());
  {
    Array<unsigned> out(machine, "out", ShuffleRows, 32);
    machine.launch({"shuffle", {1}, 32}, shuffle_kernel, lanes.in(), out.out());
    outputs.push_back(out.output("shuffles"));
  }
  {
    Array<unsigned> out(machine, "out", VoteRows, 32);
    machine.launch({"vote", {1}, 32}, vote_kernel, lanes.in(), out.out());
    outputs.push_back(out.output("votes"));
  }
  run_layout<RowMajor>(machine, "RowMajor", outputs);
  run_layout<Padded16>(machine, "Padded16", outputs);
  run_layout<Swizzle128>(machine, "Swizzle128", outputs);
  {
    std::vector<std::uint32_t> source(3 * 4 * CopyThreads);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::uint32_t(test::hash(2, i));
    const Array<unsigned> in(machine, "in", 3, 4 * CopyThreads, source.data());
    Array<unsigned> out(machine, "out", 3, 4 * CopyThreads);
    machine.launch({"copy", {1}, CopyThreads, sizeof(CopyStorage)}, copy_kernel, in.in(), out.out());
    outputs.push_back(out.output("cp.async"));
  }
  {
    Array<unsigned> out(machine, "out", 3 * Rounds, 32);
    machine.launch({"barrier", {1}, 128, sizeof(BarrierStorage)}, barrier_kernel, out.out());
    outputs.push_back(out.output("named barriers"));
  }
  {
    const std::vector<int> zeros(66, 0);
    const std::vector<float> zero_floats(16, 0.0f);
    Array<int> integers(machine, "out", 1, 66, zeros.data());
    Array<float> floats(machine, "out", 1, 16, zero_floats.data());
    machine.launch({"atomic", {50}, 64}, atomic_kernel, integers.out(), floats.out());
    outputs.push_back(integers.output("atomics int"));
    outputs.push_back(floats.output("atomics float"));
  }
  {
    const std::vector<float> floats = test::float_inputs();
    const auto count = std::int64_t(floats.size());
    const Array<float> in(machine, "in", 1, count, floats.data());
    Array<float> out(machine, "out", 6, count);
    machine.launch({"arithmetic", {(count + 127) / 128}, 128}, arithmetic_kernel, in.in(), out.out());
    outputs.push_back(out.output("arithmetic"));
  }
  {
    const std::vector<float> floats = test::exp2_inputs();
    const auto count = std::int64_t(floats.size());
    const Array<float> in(machine, "in", 1, count, floats.data());
    Array<float> out(machine, "out", 1, count);
    machine.launch({"exp2", {(count + 127) / 128}, 128}, exp2_kernel, in.in(), out.out());
    outputs.push_back(out.output("exp2"));
  }
  run_element<half>(machine, DType::fp16, outputs);
  run_element<bfloat16>(machine, DType::bf16, outputs);
  return outputs;
}

}  // namespace flash::MACHINE::conformance
