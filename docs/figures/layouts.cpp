// Prints, as JSON, where the elements of tiles and operands lie: what docs/make_figures.py draws for
// docs/pages/swizzle_and_wgmma.md.
//
// Nothing is taken from the page. Places in shared memory come from the layouts of common/base, or from what the copy
// engine left there. What a wgmma reads and where its sums lie is asked of the instruction itself: an operand whose
// elements are their own places is multiplied by a matrix of ones and zeros, so that each sum is the place of one
// element. The products are those of the chapters (warpgroup_products.hpp).
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/kernel/tma_tile.hpp"
#include "common/kernel/warpgroup_products.hpp"

namespace flash::MACHINE {
namespace {

constexpr int Rows = 64, Cols = 128, Places = Rows * Cols;  // of the tile that the figures show
constexpr int Threads = 128;                                // a warpgroup
constexpr int SmallCols = 64, Sums = SmallCols / 2;         // of a product [64, 64], and how many a thread has

using Tile = SharedTile<half, Rows, Cols, Swizzle128>;
using SmallTile = SharedTile<half, Rows, SmallCols, Swizzle128>;

/// Where element (row, col) of the tile lies, in elements.
FLASH_HOST_DEVICE constexpr int place_of(int row, int col) { return Swizzle128::offset<2, Rows, Cols>(row, col); }

// -- What the copy engine leaves

struct CopiedStorage {
  SharedTile<std::uint16_t, Rows, Cols, Swizzle128> tile;
  Mbarrier full;
  SHARED_MEMBERS(tile, full);
};

/// out[0][p]: which element the tile holds at place p, after a copy of a tensor whose elements are numbered.
__global__ void copied_kernel(GlobalTensor<float> out, const __grid_constant__ TensorMap map) {
  auto& smem = shared_storage<CopiedStorage>();
  if (threadIdx.x == 0) {
    smem.full.init(1);
    mbarrier_init_fence();
    smem.full.arrive_expect_tx(int(sizeof(smem.tile)));
    load_tile_tma(smem.tile, map, 0, 0, 0, smem.full);
  }
  __syncthreads();
  smem.full.wait(0);
  const auto found = out.head(0, 0);
  for (int i = int(threadIdx.x); i < Places; i += Threads) {
    found.store(0, place_of(i / Cols, i % Cols), float(smem.tile.load(i / Cols, i % Cols)));
  }
}

// -- What a product reads

/// 1 at (i, first + i), 0 elsewhere: as a left operand it takes rows first .. of the right one.
template <int TileCols>
__device__ void fill_selection(SharedTile<half, Rows, TileCols, Swizzle128>& tile, int first) {
  for (int i = int(threadIdx.x); i < Rows * TileCols; i += Threads) {
    const int row = i / TileCols, col = i % TileCols;
    tile.store(row, col, from_float<half>(col == first + row ? 1.0f : 0.0f));
  }
}

/// An fp16 number counts places up to 2048 only: so they come in two parts, place % 128 and place / 128.
__device__ __forceinline__ void fill_places(Tile& tile, bool upper_part) {
  for (int i = int(threadIdx.x); i < Places; i += Threads) {
    const int row = i / Cols, col = i % Cols, place = place_of(row, col);
    tile.store(row, col, from_float<half>(float(upper_part ? place / 128 : place % 128)));
  }
}

/// Columns 0 to 8·Tiles - 1 of 64 sums, into rows first_row .. of `out`.
template <int Tiles>
__device__ void store_sums(GlobalMatrix<float> out, int first_row, const Accumulator (&sums)[Tiles]) {
  const int row = first_row + int(threadIdx.x) / 32 * 16;
#pragma unroll
  for (int c = 0; c < Tiles; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.store(row + Accumulator::row(i / 2), 8 * c + Accumulator::column(i % 2), sums[c].value[i]);
    }
  }
}

struct KeysStorage {
  Tile Q, K;
  SHARED_MEMBERS(Q, K);
};

/// out[c][r]: what Q·Kᵀ takes for column c of key r: one part of its place.
__global__ void keys_kernel(GlobalTensor<float> out, bool upper_part) {
  auto& smem = shared_storage<KeysStorage>();
  fill_places(smem.K, upper_part);
  for (int first = 0; first < Cols; first += Rows) {
    fill_selection(smem.Q, first);
    async_proxy_fence();
    __syncthreads();
    Accumulator S[Rows / 8];
    wgmma_fence();
    multiply_transposed_async<half, Rows, Cols>(S, k_major(smem.Q), k_major(smem.K));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(out.head(0, 0), first, S);
    __syncthreads();  // all have read Q
  }
}

struct ValuesStorage {
  SmallTile P;
  Tile V;
  SHARED_MEMBERS(P, V);
};

/// out[r][c]: what P·V takes for column c of key r: one part of its place.
__global__ void values_kernel(GlobalTensor<float> out, bool upper_part) {
  auto& smem = shared_storage<ValuesStorage>();
  fill_places(smem.V, upper_part);
  fill_selection(smem.P, 0);
  async_proxy_fence();
  __syncthreads();
  FragmentA P[1][Rows / 16];
  load_a_tiles(P, smem.P, int(threadIdx.x) / 32 * 16);
  Accumulator O[Cols / 8] = {};
  wgmma_fence();
  multiply_async<half, Rows, Cols>(O, P[0], mn_major(smem.V));
  wgmma_commit();
  wgmma_wait<0>();
  store_sums(out.head(0, 0), 0, O);
}

/// out[0]: the descriptors of K and of V above, in parts of 16 bits.
__global__ void descriptors_kernel(GlobalTensor<float> out) {
  auto& smem = shared_storage<ValuesStorage>();
  const MatrixDescriptor descriptors[] = {k_major(smem.V), mn_major(smem.V)};
  if (threadIdx.x != 0) return;
  for (int i = 0; i < 8; ++i) {
    out.head(0, 0).store(0, i, float(descriptors[i / 4].bits >> i % 4 * 16 & 0xffff));
  }
}

// -- Which thread has what

struct RegistersStorage {
  SmallTile left, right;
  SHARED_MEMBERS(left, right);
};

/// All registers of a product's sums, thread by thread, with none of the project's words about where they are.
template <int Tiles>
__device__ void store_registers(GlobalMatrix<float> out, const Accumulator (&sums)[Tiles]) {
#pragma unroll
  for (int c = 0; c < Tiles; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out.store(int(threadIdx.x), 4 * c + i, sums[c].value[i]);
  }
}

/// out[t][s]: 64·row + column of sum s of thread t in a product [64, 64].
__global__ void sums_kernel(GlobalTensor<float> out) {
  auto& smem = shared_storage<RegistersStorage>();
  for (int i = int(threadIdx.x); i < Rows * SmallCols; i += Threads) {
    const int row = i / SmallCols, col = i % SmallCols;
    smem.left.store(row, col, from_float<half>(col == 0 ? float(row) : col == 1 ? 1.0f : 0.0f));
    smem.right.store(row, col, from_float<half>(col == 0 ? float(SmallCols) : col == 1 ? float(row) : 0.0f));
  }
  async_proxy_fence();
  __syncthreads();
  Accumulator S[SmallCols / 8];
  wgmma_fence();
  multiply_transposed_async<half, SmallCols, SmallCols>(S, k_major(smem.left), k_major(smem.right));
  wgmma_commit();
  wgmma_wait<0>();
  store_registers(out.head(0, 0), S);
}

/// out[t][s]: which element of the register operand, 8·thread + 2·register + half, is multiplied into sum s of thread t
/// by a matrix with ones at (k, k).
__global__ void operand_kernel(GlobalTensor<float> out) {
  auto& smem = shared_storage<RegistersStorage>();
  fill_selection(smem.right, 0);
  async_proxy_fence();
  __syncthreads();
  FragmentA A[1];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto element = float(8 * threadIdx.x + 2 * unsigned(i));
    A[0].value[i] = pack<half>(element, element + 1);
  }
  Accumulator S[SmallCols / 8];
  wgmma_fence();
  multiply_transposed_async<half, SmallCols, 16>(S, A, k_major(smem.right));
  wgmma_commit();
  wgmma_wait<0>();
  store_registers(out.head(0, 0), S);
}

// -- The program

using Json = nlohmann::json;

TensorRef tensor(const char* name, const DeviceBuffer& memory, int rows, int cols, int element_bytes) {
  TensorRef ref = sequence_tensor(name, 1, rows, 1, cols, element_bytes);
  ref.data = memory.data();
  return ref;
}

/// The whole numbers that a kernel of one warpgroup leaves in [rows, cols].
template <typename Storage, typename... Parameters, typename... Arguments>
std::vector<int> result(Machine& machine, int rows, int cols, void (*kernel)(Parameters...),
                        const Arguments&... arguments) {
  std::vector<float> values(std::size_t(rows * cols));
  const std::size_t bytes = values.size() * sizeof(float);
  const DeviceBuffer memory(machine, bytes);
  machine.launch({"layouts", {1}, Threads, sizeof(Storage)}, kernel,
                 GlobalTensor<float>(tensor("out", memory, rows, cols, sizeof(float))), arguments...);
  machine.synchronize();
  machine.download(values.data(), memory.data(), bytes);
  return {values.begin(), values.end()};
}

/// The first byte of each 16-byte piece of rows 0 to 7, columns 0 to 63, of a tile.
template <typename Layout>
Json atom() {
  Json bytes;
  for (int row = 0; row < 8; ++row) {
    for (int piece = 0; piece < 8; ++piece) {
      bytes[std::size_t(row)].push_back(2 * Layout::template offset<2, Rows, Cols>(row, 8 * piece));
    }
  }
  return bytes;
}

/// The byte of each element [row][col] in the tile that load_tile_tma fills.
Json copied(Machine& machine) {
  std::vector<std::uint16_t> numbers(Places);
  for (std::size_t i = 0; i < Places; ++i) numbers[i] = std::uint16_t(i);
  const DeviceBuffer memory(machine, Places * 2);
  machine.upload(memory.data(), numbers.data(), Places * 2);
  const TensorMap map = machine.tensor_map(tile_map(tensor("numbers", memory, Rows, Cols, 2), Rows));
  const std::vector<int> element_at = result<CopiedStorage>(machine, 1, Places, copied_kernel, map);
  Json bytes;
  for (int place = 0; place < Places; ++place) {
    const int element = element_at[std::size_t(place)];
    bytes[std::size_t(element / Cols)][std::size_t(element % Cols)] = 2 * place;
  }
  return bytes;
}

/// The byte from which a product takes each element [row][col] of its right operand.
template <typename Storage>
Json read(Machine& machine, void (*kernel)(GlobalTensor<float>, bool), bool transposed) {
  const int rows = transposed ? Cols : Rows, cols = Places / rows;
  const std::vector<int> lower = result<Storage>(machine, rows, cols, kernel, false);
  const std::vector<int> upper = result<Storage>(machine, rows, cols, kernel, true);
  Json bytes;
  for (std::size_t row = 0; row < Rows; ++row) {
    for (std::size_t col = 0; col < Cols; ++col) {
      const std::size_t i = transposed ? col * Rows + row : row * Cols + col;
      bytes[row].push_back(2 * (lower[i] + 128 * upper[i]));
    }
  }
  return bytes;
}

/// The fields of the descriptors, offsets in bytes. Where the operand starts is left out.
Json descriptors(Machine& machine) {
  const std::vector<int> parts = result<ValuesStorage>(machine, 1, 8, descriptors_kernel);
  Json fields;
  for (std::size_t i = 0; i < 2; ++i) {
    const int* const part = &parts[4 * i];
    fields[i == 0 ? "keys" : "values"] = {{"leading", (part[1] & 0x3fff) * 16},
                                          {"stride", (part[2] & 0x3fff) * 16},
                                          {"base", part[3] >> 1 & 7},
                                          {"swizzle", part[3] >> 14}};
  }
  return fields;
}

/// [thread][i]: row and column of a sum; and [thread][register][half]: of an element of the register operand.
void registers(Machine& machine, Json& tables) {
  const std::vector<int> sums = result<RegistersStorage>(machine, Threads, Sums, sums_kernel);
  const std::vector<int> operand = result<RegistersStorage>(machine, Threads, Sums, operand_kernel);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const Json place = {sums[i] / SmallCols, sums[i] % SmallCols};
    tables["sums"][i / Sums][i % Sums] = place;
    const auto element = std::size_t(operand[i]);
    // Beyond column 15 the ones end, and the sums are 0.
    if (sums[i] % SmallCols < 16) tables["operand"][element / 8][element / 2 % 4][element % 2] = place;
  }
}

}  // namespace
}  // namespace flash::MACHINE

int main() try {
  using namespace flash;
  MACHINE::Machine machine;
  MACHINE::Json tables;
  tables["atom"] = {{"plain", MACHINE::atom<Panels128>()}, {"swizzled", MACHINE::atom<Swizzle128>()}};
  tables["copied"] = MACHINE::copied(machine);
  tables["descriptors"] = MACHINE::descriptors(machine);
  tables["keys"] = MACHINE::read<MACHINE::KeysStorage>(machine, MACHINE::keys_kernel, true);
  tables["values"] = MACHINE::read<MACHINE::ValuesStorage>(machine, MACHINE::values_kernel, false);
  MACHINE::registers(machine, tables);
  std::puts(tables.dump().c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "layouts: %s\n", error.what());
  return 1;
}
