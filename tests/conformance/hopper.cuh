// What Hopper's chapters use: what the copy engine brings and takes, matrices that a warp stores, votes at named
// barriers, and products of a warpgroup, over all swizzles, majors and the numbers of columns that chapters use.
// Operands are read from shared memory that is full of random numbers, so that a product is right only if each element
// of it was read from where hardware reads it.
#pragma once

#include <algorithm>

#include "common/kernel/fragments.hpp"
#include "tests/conformance/array.cuh"

namespace flash::MACHINE::conformance {

// -- The copy engine: a box of a tensor of `Rank` dimensions into shared memory, and another box out of it

constexpr int BoxWords = 2048;  // room for a box
constexpr int Guard = 0x5a5a;   // what stands in shared memory before

struct BoxStorage {
  SharedTile<unsigned short, BoxWords / 32, 64, RowMajor> box;
  Mbarrier full;
  SHARED_MEMBERS(box, full);
};

struct Coordinates {
  int load[5], store[5];
};

/// The box as it lies in shared memory goes to `left`; then numbers go through the same box to the tensor behind
/// store_map.
template <int Rank>
__global__ void box_kernel(const __grid_constant__ TensorMap load_map, const __grid_constant__ TensorMap store_map,
                           Coordinates at, int bytes, GlobalTensor<unsigned short> left) {
  auto& smem = shared_storage<BoxStorage>();
  const int thread = int(threadIdx.x);
  for (int i = thread; i < 2 * BoxWords; i += 128) smem.box.store(i / 64, i % 64, (unsigned short)Guard);
  async_proxy_fence();
  if (thread == 0) {
    smem.full.init(1);
    mbarrier_init_fence();
  }
  __syncthreads();
  int load[Rank], store[Rank];
  for (int i = 0; i < Rank; ++i) load[i] = at.load[i], store[i] = at.store[i];
  if (thread == 0) {
    smem.full.arrive_expect_tx(bytes);
    tma_load(smem.box.address(0, 0), load_map, load, smem.full);
  }
  smem.full.wait(0);
  const auto out = left.head(0, 0);
  for (int i = thread; i < 2 * BoxWords; i += 128) out.store(0, i, smem.box.load(i / 64, i % 64));
  __syncthreads();
  for (int i = thread; i < 2 * BoxWords; i += 128) smem.box.store(i / 64, i % 64, (unsigned short)(i * 7 + 1));
  async_proxy_fence();
  __syncthreads();
  if (thread == 0) {
    tma_store(store_map, store, smem.box.address(0, 0));
    tma_store_commit();
    tma_store_wait<0>();
  }
}

/// Boxes inside the tensor, over each of its edges and wholly outside, at the coordinates that hardware takes
/// (common/ptx/tma.hpp).
template <int Rank>
void run_boxes(Machine& machine, std::vector<Output>& outputs) {
  constexpr int Extent[5] = {88, 6, 5, 3, 3}, Box[5] = {0, 4, 3, 2, 2};
  constexpr int Places = 8, Piece = 8;  // elements of 16 bytes
  for (const Swizzle swizzle : {Swizzle::none, Swizzle::bytes32, Swizzle::bytes64, Swizzle::bytes128}) {
    TensorMapSpec spec;
    spec.tensor = "boxes";
    spec.rank = Rank;
    spec.swizzle = swizzle;
    spec.element_bytes = 2;
    std::int64_t elements = 1;
    for (int i = 0; i < Rank; ++i) {
      spec.extent[i] = Extent[i] - (i == 0 ? 3 : 0);  // rows that end within the memory of the next
      spec.stride[i] = i == 0 ? 2 : 2 * elements;
      spec.box[i] = i > 0 ? Box[i] : swizzle == Swizzle::none ? 40 : swizzle_bytes(swizzle) / 2;
      elements *= Extent[i];
    }
    std::vector<std::uint16_t> source(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::uint16_t(test::hash(20, i));
    Output all{"tma rank " + std::to_string(Rank) + " swizzle " + std::to_string(int(swizzle)), {}};
    for (int place = 0; place < Places; ++place) {
      Coordinates at = {};
      for (int i = 0; i < Rank; ++i) {
        const int step = i == 0 ? Piece : 1;
        const int extent = Extent[i] / step, box = spec.box[i] / step;  // in steps; the last piece is not whole
        const bool outside = i == int(swizzle) % Rank;
        const auto random = [&](int salt) {
          return int(test::hash(21, std::uint64_t(salt * 8 + i)) % std::uint64_t(extent + box)) - box + 1;
        };
        // Inside, over the near edge, over the far edge, at its last step, outside in one dimension, and at random.
        const int places[Places] = {1,         -1,        extent - box + 1, extent - 1, outside ? extent : 0,
                                    random(0), random(1), random(2)};
        at.load[i] = step * places[place];
        at.store[i] = step * std::max(places[Places - 1 - place], 0);
      }
      const Array<unsigned short> in(machine, "in", 1, elements, source.data());
      Array<unsigned short> left(machine, "left", 1, 2 * BoxWords), written(machine, "written", 1, elements);
      TensorMapSpec load = spec, store = spec;
      load.data = in.data();
      store.data = written.data();
      machine.launch({"box", {1}, 128, sizeof(BoxStorage)}, box_kernel<Rank>, machine.tensor_map(load),
                     machine.tensor_map(store), at, spec.box_bytes(), left.out());
      for (const Array<unsigned short>* array : {&left, &written}) {
        const Output output = array->output("");
        all.words.insert(all.words.end(), output.words.begin(), output.words.end());
      }
    }
    outputs.push_back(all);
  }
}

// -- stmatrix: four matrices of random numbers, their rows in another order than the lanes', into a tile

template <typename Layout>
struct MatricesStorage {
  SharedTile<half, 16, 64, Layout> tile;
  SHARED_MEMBERS(tile);
};

template <typename Layout>
__global__ void stmatrix_kernel(GlobalTensor<const unsigned> in, GlobalTensor<half> out) {
  auto& tile = shared_storage<MatricesStorage<Layout>>().tile;
  const int lane = int(threadIdx.x);
  for (int i = lane; i < 16 * 64; i += 32) tile.store(i / 64, i % 64, from_float<half>(float(i)));
  __syncwarp();
  std::uint32_t matrices[4];
  for (int i = 0; i < 4; ++i) matrices[i] = in.head(0, 0).load(i, lane);
  stmatrix_x4(tile.address(lane * 5 % 16, 24 + lane / 16 * 16), matrices);
  __syncwarp();
  for (int i = lane; i < 16 * 64; i += 32) out.head(0, 0).store(i / 64, i % 64, tile.load(i / 64, i % 64));
}

template <typename Layout>
void run_stmatrix(Machine& machine, const std::string& name, std::vector<Output>& outputs) {
  std::vector<std::uint32_t> numbers(4 * 32);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::uint32_t(test::hash(31, i));
  const Array<unsigned> in(machine, "in", 4, 32, numbers.data());
  Array<half> out(machine, "out", 16, 64);
  machine.launch({"stmatrix", {1}, 32, sizeof(MatricesStorage<Layout>)}, stmatrix_kernel<Layout>, in.in(), out.out());
  outputs.push_back(out.output("stmatrix " + name));
}

// -- Votes at a named barrier: of all four warps and of two pairs of them, each in turn with a thread that is for it

constexpr int VoteRounds = 24;

__global__ void barrier_vote_kernel(GlobalTensor<unsigned> out) {
  const int thread = int(threadIdx.x), pair = thread / 64;
  const auto result = out.head(0, 0);  // [2 * VoteRounds, 128]
  for (int round = 0; round < VoteRounds; ++round) {
    const int voter = round * 37 % 160;  // in some rounds nobody
    result.store(2 * round, thread, named_barrier_any(1, 128, thread == voter) ? 1u : 0u);
    result.store(2 * round + 1, thread, named_barrier_any(2 + pair, 64, thread == voter) ? 1u : 0u);
  }
}

inline void run_barrier_votes(Machine& machine, std::vector<Output>& outputs) {
  Array<unsigned> out(machine, "out", 2 * VoteRounds, 128);
  machine.launch({"barrier_vote", {1}, 128}, barrier_vote_kernel, out.out());
  outputs.push_back(out.output("votes at named barriers"));
}

// -- wgmma

enum class Left { registers, k, mn };  // where the left operand comes from, and its major

template <typename Element>
struct OperandStorage {
  SharedTile<Element, 512, 64, RowMajor> a;
  SharedTile<Element, 1024, 64, RowMajor> b;
  SHARED_MEMBERS(a, b);
};

/// Where the operands lie, in bytes from the beginning of a and b.
struct Operands {
  int a_start, a_leading, a_stride, b_start, b_leading, b_stride;
  Swizzle swizzle;
};

/// Two products after each other into the same sums: the second begins 32 bytes further on and adds.
template <typename Element, int N, Left LeftOperand, Major MajorB>
__global__ void wgmma_kernel(GlobalTensor<const Element> numbers, Operands where, GlobalTensor<float> out) {
  auto& smem = shared_storage<OperandStorage<Element>>();
  const int thread = int(threadIdx.x);
  const auto source = numbers.head(0, 0);
  for (int i = thread; i < 512 * 8; i += 128)
    smem.a.store_vector(i / 8, i % 8 * 8, load_vector<8>(source, i / 8, i % 8 * 8));
  for (int i = thread; i < 1024 * 8; i += 128) {
    smem.b.store_vector(i / 8, i % 8 * 8, load_vector<8>(source, 512 + i / 8, i % 8 * 8));
  }
  async_proxy_fence();
  __syncthreads();
  AccumulatorRegister d[N / 8][4];
  std::uint32_t a[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto pair = load_vector<2>(source, thread, 2 * i);
    a[i] = pack<Element>(to_float(pair[0]), to_float(pair[1]));
  }
  const MatrixDescriptor left =
      advance(matrix_descriptor(smem.a.address(0, 0), where.a_leading, where.a_stride, where.swizzle), where.a_start);
  const MatrixDescriptor right =
      advance(matrix_descriptor(smem.b.address(0, 0), where.b_leading, where.b_stride, where.swizzle), where.b_start);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    if constexpr (LeftOperand == Left::registers) {
      wgmma<Element, N, MajorB>(d, a, advance(right, 32 * step), step > 0);
    } else {
      constexpr Major MajorA = LeftOperand == Left::k ? Major::k : Major::mn;
      wgmma<Element, N, MajorA, MajorB>(d, advance(left, 32 * step), advance(right, 32 * step), step > 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  const auto sums = out.head(0, 0);
#pragma unroll
  for (int c = 0; c < N / 8; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.store(thread, 4 * c + i, d[c][i]);
  }
}

template <typename Element, int N, Left LeftOperand, Major MajorB>
void run_wgmma(Machine& machine, DType dtype, Output& all) {
  std::vector<std::uint16_t> numbers(1536 * 64);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const float value = test::normal(30, i);
    numbers[i] = dtype == DType::fp16 ? to_float16(value).bits : to_bfloat16(value).bits;
  }
  const Array<Element> in(machine, "numbers", 1536, 64, numbers.data());
  for (const Swizzle swizzle : {Swizzle::none, Swizzle::bytes32, Swizzle::bytes64, Swizzle::bytes128}) {
    // Distances that no two of them share; a swizzle's pattern repeats after 8 times its width.
    for (const Operands& where :
         {Operands{0, 2048, 1024, 0, 1024, 2048, swizzle}, Operands{1024, 1024, 3072, 2048, 4096, 1024, swizzle}}) {
      Array<float> sums(machine, "sums", 128, N / 2);
      machine.launch({"wgmma", {1}, 128, sizeof(OperandStorage<Element>)},
                     wgmma_kernel<Element, N, LeftOperand, MajorB>, in.in(), where, sums.out());
      const Output output = sums.output("");
      all.words.insert(all.words.end(), output.words.begin(), output.words.end());
    }
  }
}

template <Left LeftOperand, Major MajorB>
void run_wgmmas(Machine& machine, const char* name, std::vector<Output>& outputs) {
  Output all{name, {}};
  run_wgmma<half, 64, LeftOperand, MajorB>(machine, DType::fp16, all);
  run_wgmma<half, 128, LeftOperand, MajorB>(machine, DType::fp16, all);
  run_wgmma<half, 256, LeftOperand, MajorB>(machine, DType::fp16, all);
  run_wgmma<bfloat16, 64, LeftOperand, MajorB>(machine, DType::bf16, all);
  run_wgmma<bfloat16, 128, LeftOperand, MajorB>(machine, DType::bf16, all);
  run_wgmma<bfloat16, 256, LeftOperand, MajorB>(machine, DType::bf16, all);
  outputs.push_back(all);
}

inline std::vector<Output> run_hopper(Machine& machine) {
  std::vector<Output> outputs;
  run_boxes<1>(machine, outputs);
  run_boxes<2>(machine, outputs);
  run_boxes<3>(machine, outputs);
  run_boxes<4>(machine, outputs);
  run_boxes<5>(machine, outputs);
  run_stmatrix<RowMajor>(machine, "RowMajor", outputs);
  run_stmatrix<Padded16>(machine, "Padded16", outputs);
  run_stmatrix<Swizzle128>(machine, "Swizzle128", outputs);
  run_barrier_votes(machine, outputs);
  run_wgmmas<Left::registers, Major::k>(machine, "wgmma registers, k", outputs);
  run_wgmmas<Left::registers, Major::mn>(machine, "wgmma registers, mn", outputs);
  run_wgmmas<Left::k, Major::k>(machine, "wgmma k, k", outputs);
  run_wgmmas<Left::k, Major::mn>(machine, "wgmma k, mn", outputs);
  run_wgmmas<Left::mn, Major::k>(machine, "wgmma mn, k", outputs);
  run_wgmmas<Left::mn, Major::mn>(machine, "wgmma mn, mn", outputs);
  return outputs;
}

}  // namespace flash::MACHINE::conformance
