// wgmma on the simulated GPU: operands in every layout that a matrix descriptor can say, against sums in order; and
// what happens to those who forget a fence, a commit or a wait, or touch what is in use.
#include <cmath>

#include "common/kernel/fragments.hpp"
#include "tests/sim/hopper.hpp"

using flash::Fault;
using flash::Swizzle;
using flash::swizzle_bytes;
using flash::swizzle_offset;
using flash::test::contains;
using flash::test::expect_clean;
using flash::test::expect_fault;
using flash::test::expect_one_of;
using flash::test::fault_of;
using flash::test::Tensor;

namespace flash::sim {
namespace {

// -- Layouts

constexpr int kOperandBytes = 48 * 1024;

struct LayoutStorage {
  alignas(1024) SharedTile<std::uint16_t, 1, kOperandBytes / 2> a, b;
  SHARED_MEMBERS(a, b);
};

/// How an operand lies: where 8 neighbours along its contiguous index are, and what the descriptor says of it.
struct Placement {
  Major major;
  Swizzle swizzle;
  int rows, depth;  // rows: of a, or columns of b
  int start = 0;    // of the operand in bytes
  int leading = 0, stride = 0;
  unsigned base_offset = 0;  // so many 128 bytes after a multiple of 1024 the pattern starts

  Placement(Major m, Swizzle s, int r, int d) : major(m), swizzle(s), rows(r), depth(d) {
    const int width = std::max(16, swizzle_bytes(s));
    if (m == Major::k) {
      stride = s == Swizzle::none ? 128 : 8 * width;          // 8 rows
      leading = s == Swizzle::none ? rows / 8 * stride : 16;  // the next 8 of the depth
    } else if (s == Swizzle::none) {
      stride = 128;                 // 8 rows
      leading = rows / 8 * stride;  // the next 8 of the depth
    } else {
      leading = 8 * width * (depth / 8);  // the next `width` of rows
      stride = 8 * width;                 // the next 8 of the depth
    }
  }
  /// The byte of element (row, k), written from the shapes of the PTX manual's figures: cores of 8 rows of 16 bytes;
  /// with a swizzle, atoms of 8 rows of its width.
  unsigned place(int row, int k) const {
    const int width = std::max(16, swizzle_bytes(swizzle)), elements = width / 2;
    int at = 0;
    if (major == Major::k) {
      const int atom = k / elements;
      at = swizzle == Swizzle::none ? atom * leading : atom * (rows / 8 * stride);
      at += row / 8 * stride + row % 8 * width + k % elements * 2;
    } else {
      const int atom = row / elements;
      at = swizzle == Swizzle::none ? atom * stride + k / 8 * leading : atom * leading + k / 8 * stride;
      at += k % 8 * width + row % elements * 2;
    }
    return swizzle_offset(swizzle, unsigned(start + at) - base_offset * 128) + base_offset * 128;
  }
  /// From one step of 16 of the depth to the next.
  int step(int k) const {
    const int elements = std::max(16, swizzle_bytes(swizzle)) / 2;
    if (major == Major::mn) return swizzle == Swizzle::none ? k / 8 * leading : k / 8 * stride;
    if (swizzle == Swizzle::none) return k / 8 * leading;
    return k / elements * (rows / 8 * stride) + k % elements * 2;
  }
};

template <typename Element, int N, Major MajorA, Major MajorB, bool AInRegisters>
__global__ void layout_kernel(GlobalTensor<const std::uint16_t> a, GlobalTensor<const std::uint16_t> b,
                              GlobalTensor<const std::uint16_t> a_plain, GlobalTensor<float> out, Placement at_a,
                              Placement at_b) {
  auto& shared = shared_storage<LayoutStorage>();
  const auto A = a.head(0, 0), B = b.head(0, 0);
  for (int i = int(threadIdx.x) * 8; i < kOperandBytes / 2; i += 128 * 8) {
    shared.a.template store_vector<8>(0, i, load_vector<8>(A, 0, i));
    shared.b.template store_vector<8>(0, i, load_vector<8>(B, 0, i));
  }
  async_proxy_fence();
  __syncthreads();
  AccumulatorRegister d[N / 8][4];
  const int row = int(threadIdx.x) / 32 * 16 + int(threadIdx.x) % 32 / 4, column = int(threadIdx.x) % 4 * 2;
  const auto O = out.head(0, 0);
  for (int c = 0; c < N / 8; ++c) {
    for (int i = 0; i < 4; ++i) d[c][i] = O.load(row + i / 2 * 8, c * 8 + column + i % 2);
  }
  std::uint32_t fragments[4][4];
  if constexpr (AInRegisters) {
    const auto plain = a_plain.head(0, 0);
    for (int k = 0; k < at_b.depth; k += 16) {
      for (int i = 0; i < 4; ++i) {
        const auto pair = load_vector<2>(plain, row + i % 2 * 8, k + column + i / 2 * 8);
        fragments[k / 16][i] = std::uint32_t(pair[0]) | std::uint32_t(pair[1]) << 16;
      }
    }
  }
  wgmma_fence();
  MatrixDescriptor da = matrix_descriptor(shared.a.address(0, at_a.start / 2), at_a.leading, at_a.stride, at_a.swizzle);
  MatrixDescriptor db = matrix_descriptor(shared.b.address(0, at_b.start / 2), at_b.leading, at_b.stride, at_b.swizzle);
  da.bits |= std::uint64_t(at_a.base_offset) << 49;
  db.bits |= std::uint64_t(at_b.base_offset) << 49;
  for (int k = 0; k < at_b.depth; k += 16) {
    if constexpr (AInRegisters) {
      wgmma<Element, N, MajorB>(d, fragments[k / 16], advance(db, at_b.step(k)), true);
    } else {
      wgmma<Element, N, MajorA, MajorB>(d, advance(da, at_a.step(k)), advance(db, at_b.step(k)), true);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  for (int c = 0; c < N / 8; ++c) {
    for (int i = 0; i < 4; ++i) O.store(row + i / 2 * 8, c * 8 + column + i % 2, d[c][i]);
  }
}

/// Small whole numbers: their sums are exact in any order.
template <typename Element>
std::uint16_t element(int i) {
  return from_float<Element>(float((i * 37 + i / 7) % 17 - 8)).bits;
}

/// How many of d's 64·N elements differ from what the operands give.
template <typename Element, int N, Major MajorA, Major MajorB, bool AInRegisters>
int differences(const Placement& at_a, const Placement& at_b, const Placement& said_a, const Placement& said_b,
                std::uint64_t seed = 0) {
  const int depth = at_b.depth;
  Tensor<std::uint16_t> a("A", 1, kOperandBytes / 2), b("B", 1, kOperandBytes / 2), a_plain("A plain", 64, 64);
  Tensor<float> out("D", 64, N);
  for (int i = 0; i < kOperandBytes / 2; ++i) a[i] = b[i] = element<Element>(i + 3);
  for (int row = 0; row < 64; ++row) {
    for (int k = 0; k < depth; ++k) {
      a_plain[row * 64 + k] = element<Element>(row * depth + k);
      a[at_a.place(row, k) / 2] = element<Element>(row * depth + k);
    }
  }
  for (int column = 0; column < N; ++column) {
    for (int k = 0; k < depth; ++k) b[at_b.place(column, k) / 2] = element<Element>(5 * column * depth + 3 * k + 1);
  }
  for (int i = 0; i < 64 * N; ++i) out[i] = float(i % 5);
  Machine machine(seed, 1);
  machine.launch({"layouts", {1}, 128, sizeof(LayoutStorage)}, layout_kernel<Element, N, MajorA, MajorB, AInRegisters>,
                 GlobalTensor<const std::uint16_t>(a.ref()), GlobalTensor<const std::uint16_t>(b.ref()),
                 GlobalTensor<const std::uint16_t>(a_plain.ref()), GlobalTensor<float>(out.ref()), said_a, said_b);
  CHECK(machine.counters().matrix_flops == 2 * 64 * N * depth);
  CHECK(machine.counters().shared_of(SharedAccess::wgmma).accesses == depth / 16);
  CHECK(machine.counters().shared_of(SharedAccess::wgmma).bytes == ((AInRegisters ? 0 : 64) + N) * depth * 2);
  int wrong = 0;
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < N; ++column) {
      float sum = float((row * N + column) % 5);
      for (int k = 0; k < depth; ++k) {
        sum += to_float(Element{element<Element>(row * depth + k)}) *
               to_float(Element{element<Element>(5 * column * depth + 3 * k + 1)});
      }
      wrong += out[row * N + column] != sum;
    }
  }
  return wrong;
}

template <typename Element, int N, Major MajorA, Major MajorB, bool AInRegisters = false>
void expect_product(Swizzle swizzle_a, Swizzle swizzle_b, int depth, std::uint64_t seed = 0) {
  INFO("N " << N << ", a " << swizzle_bytes(swizzle_a) << ", b " << swizzle_bytes(swizzle_b) << ", depth " << depth);
  const Placement a(MajorA, swizzle_a, 64, depth), b(MajorB, swizzle_b, N, depth);
  CHECK(differences<Element, N, MajorA, MajorB, AInRegisters>(a, b, a, b, seed) == 0);
}

constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes32, Swizzle::bytes64, Swizzle::bytes128};

TEST_CASE("wgmma multiplies operands in all majors and swizzles") {
  for (const Swizzle swizzle : kSwizzles) {
    const int depth = std::max(16, swizzle_bytes(swizzle) / 2);
    expect_product<float16, 64, Major::k, Major::k>(swizzle, swizzle, depth);
    expect_product<float16, 64, Major::k, Major::mn>(swizzle, swizzle, depth);
    expect_product<float16, 64, Major::mn, Major::k>(swizzle, swizzle, depth);
    expect_product<float16, 64, Major::mn, Major::mn>(swizzle, swizzle, depth);
    expect_product<bfloat16, 128, Major::k, Major::mn>(swizzle, swizzle, depth);
    expect_product<float16, 64, Major::k, Major::mn, true>(swizzle, swizzle, depth);
    expect_product<bfloat16, 64, Major::k, Major::k, true>(swizzle, swizzle, depth);
  }
}

TEST_CASE("wgmma steps through a depth of several swizzle widths") {
  expect_product<float16, 64, Major::k, Major::k>(Swizzle::bytes128, Swizzle::bytes64, 64);
  expect_product<float16, 64, Major::k, Major::k>(Swizzle::bytes32, Swizzle::none, 64);
  expect_product<float16, 64, Major::mn, Major::mn>(Swizzle::bytes128, Swizzle::none, 64);
}

TEST_CASE("wgmma takes widths from 8 to 256") {
  expect_product<float16, 8, Major::k, Major::k>(Swizzle::bytes128, Swizzle::bytes128, 64);
  expect_product<float16, 24, Major::k, Major::k>(Swizzle::bytes128, Swizzle::bytes128, 64);
  expect_product<float16, 176, Major::k, Major::k>(Swizzle::bytes128, Swizzle::bytes128, 64, 4);
  expect_product<float16, 256, Major::k, Major::mn>(Swizzle::bytes128, Swizzle::bytes128, 64, 5);
}

TEST_CASE("wgmma honours the base offset of a pattern that starts elsewhere than at a multiple of its size") {
  Placement a(Major::k, Swizzle::bytes128, 64, 64), b(Major::k, Swizzle::bytes128, 64, 64);
  a.start = 1024 + 3 * 128, a.base_offset = 3;
  b.start = 7 * 128, b.base_offset = 7;
  CHECK(differences<float16, 64, Major::k, Major::k, false>(a, b, a, b) == 0);
  Placement unsaid = b;
  unsaid.base_offset = 0;
  CHECK(differences<float16, 64, Major::k, Major::k, false>(a, b, a, unsaid) > 1000);
}

TEST_CASE("a wrong offset or a swizzle on one side only gives other numbers") {
  const Placement k128(Major::k, Swizzle::bytes128, 64, 64), mn128(Major::mn, Swizzle::bytes128, 128, 64);
  Placement wrong = k128;
  wrong.stride = 512;
  CHECK(differences<float16, 64, Major::k, Major::k, false>(k128, k128, k128, wrong) > 1000);
  Placement leading = mn128;
  leading.leading = 2048;
  CHECK(differences<float16, 128, Major::k, Major::mn, false>(k128, mn128, k128, leading) > 1000);
  Placement plain = k128;
  plain.swizzle = Swizzle::none;
  CHECK(differences<float16, 64, Major::k, Major::k, false>(plain, k128, k128, k128) > 1000);
  CHECK(differences<float16, 64, Major::k, Major::k, false>(k128, plain, k128, k128) > 1000);
}

TEST_CASE("wgmma adds as mma.sync does, also with what is not finite") {
  // One row of operands through both: 1 + 2^-24 + ... is cut off in the same way, infinities and NaNs come out.
  std::array<TensorCoreOperand, 16> a{}, b{};
  for (int i = 0; i < 16; ++i) a[std::size_t(i)] = b[std::size_t(i)] = tensor_core_operand(to_float16(1.0f));
  a[3] = tensor_core_operand(to_float16(INFINITY));
  CHECK(tensor_core_step<float16>(a.data(), b.data(), 1.0f, terms_of(a.data()), terms_of(b.data())) == INFINITY);
  for (TensorCoreOperand& x : b) x = tensor_core_operand(to_float16(0.0f));  // zeros do not hide an infinity
  CHECK(std::isnan(tensor_core_step<float16>(a.data(), b.data(), 1.0f, terms_of(a.data()), terms_of(b.data()))));
}

TEST_CASE("a row of zeros leaves each sum as the whole addition would, and a zero without a sign") {
  std::array<TensorCoreOperand, 16> zeros, others;
  for (std::size_t i = 0; i < 16; ++i) {
    zeros[i] = tensor_core_operand(to_float16(i % 2 == 0 ? 0.0f : -0.0f));
    others[i] = tensor_core_operand(to_float16(float(i) - 7.5f));
  }
  REQUIRE(terms_of(zeros.data()) == Terms::zeros);
  REQUIRE(terms_of(others.data()) == Terms::finite);
  for (const float c : {0.0f, -0.0f, 1.0f, -1.0f / 3.0f, 0x1p-149f, -0x1.8p-140f, 0x1.fffffep127f, 6.02e23f}) {
    const float whole = tensor_core_sum<float16>(zeros.data(), others.data(), c);
    const float left = tensor_core_step<float16>(zeros.data(), others.data(), c, Terms::zeros, Terms::finite);
    const float right = tensor_core_step<float16>(others.data(), zeros.data(), c, Terms::finite, Terms::zeros);
    INFO(c);
    CHECK(std::bit_cast<std::uint32_t>(left) == std::bit_cast<std::uint32_t>(whole));
    CHECK(std::bit_cast<std::uint32_t>(right) == std::bit_cast<std::uint32_t>(whole));
  }
}

// -- What goes wrong

struct ProductStorage {
  SharedTile<half, 64, 64, Swizzle128> a, b[2];
  Mbarrier done;
  SHARED_MEMBERS(a, b, done);
};

enum class Product {
  right,
  chain,
  two_groups,
  no_proxy_fence,
  no_fence,
  no_fence_after_write,
  no_fence_after_wait,
  no_fence_after_pack,
  no_commit,
  no_wait,
  no_commit_at_end,
  read_in_flight,
  write_in_flight,
  read_in_flight_by_function,
  wait_of_older,
  overwritten,
  overwritten_after_wait,
  overwritten_after_a_warps_wait,
  another_shape,
  overlap,
  other_descriptor,
  three_warps,
  one_lane_less,
  unwritten,
  no_barrier,
  beyond,
  misaligned,
};

__global__ void product_kernel(GlobalTensor<float> out, Product what) {
  auto& shared = shared_storage<ProductStorage>();
  const int thread = int(threadIdx.x);
  if (thread == 0) shared.done.init(1);
  for (int i = thread; i < 64 * 64; i += 128) {
    if (what == Product::unwritten && i == 19 * 64 + 3) continue;
    shared.a.store(i / 64, i % 64, from_float<half>(float(i % 7)));
    shared.b[0].store(i / 64, i % 64, from_float<half>(float(i % 5)));
    shared.b[1].store(i / 64, i % 64, from_float<half>(float(i % 3)));
  }
  if (what != Product::no_proxy_fence) async_proxy_fence();
  if (what != Product::no_barrier) __syncthreads();
  if (what == Product::misaligned) matrix_descriptor(shared.a.address(0, 0), 8, 1024, Swizzle::bytes128);
  const auto a = matrix_descriptor(shared.a.address(0, 0), 16, 1024, Swizzle::bytes128);
  auto b = matrix_descriptor(shared.b[0].address(0, 0), 16, 1024, Swizzle::bytes128);
  if (what == Product::beyond) b = matrix_descriptor(shared.b[1].address(56, 0), 16, 1024, Swizzle::bytes128);
  AccumulatorRegister d[9][4] = {}, e[8][4] = {};
  auto& first = reinterpret_cast<AccumulatorRegister(&)[8][4]>(d);
  if (what != Product::no_fence) wgmma_fence();
  if (what == Product::three_warps && thread / 32 == 2) return;
  if (what == Product::one_lane_less && thread == 77) {
    __syncthreads();
    return;
  }
  if (what == Product::other_descriptor && thread == 99) b = advance(b, 32);
  wgmma<half, 64, Major::k, Major::k>(first, a, b, false);
  if (what == Product::chain) wgmma<half, 64, Major::k, Major::k>(first, advance(a, 32), advance(b, 32), true);
  if (what == Product::another_shape) {
    wgmma<half, 32, Major::k, Major::k>(reinterpret_cast<AccumulatorRegister(&)[4][4]>(d), a, b, true);
  }
  if (what == Product::overlap) {
    wgmma<half, 64, Major::k, Major::k>(reinterpret_cast<AccumulatorRegister(&)[8][4]>(d[1]), a, b, true);
  }
  if (what == Product::no_commit_at_end) return;
  if (what != Product::no_commit) wgmma_commit();
  if (what == Product::no_wait) return;
  if (what == Product::read_in_flight && d[3][2] > 5.0f) return;
  if (what == Product::write_in_flight) d[3][2] = 0.0f;
  if (what == Product::read_in_flight_by_function) {
    store_accumulators(shared.b[1], 0, 0, reinterpret_cast<Accumulator(&)[1][8]>(d));
  }
  if (what == Product::overwritten && thread == 5) shared.b[0].store(2, 3, from_float<half>(1.0f));
  if (what == Product::wait_of_older || what == Product::two_groups) {
    const auto b1 = matrix_descriptor(shared.b[1].address(0, 0), 16, 1024, Swizzle::bytes128);
    wgmma<half, 64, Major::k, Major::k>(e, a, b1, false);
    wgmma_commit();
    wgmma_wait<1>();
    if (what == Product::wait_of_older && e[0][0] > 3.0f) return;
    for (int c = 0; c < 8; ++c) {
      for (int i = 0; i < 4; ++i) d[c][i] *= 2.0f;
    }
  }
  wgmma_wait<0>();
  if (what == Product::no_fence_after_write) d[1][1] += 1.0f;
  if (what == Product::no_fence_after_write || what == Product::no_fence_after_wait) {
    wgmma<half, 64, Major::k, Major::k>(first, a, b, what == Product::no_fence_after_write);
  }
  if (what == Product::no_fence_after_pack) {
    wgmma_fence();
    const std::uint32_t p[4] = {pack<half>(1.0f, 2.0f)};
    wgmma<half, 64, Major::k>(first, p, b, true);
  }
  if (what == Product::overwritten_after_wait) {
    __syncthreads();
    shared.b[0].store(thread / 2, thread % 2, from_float<half>(1.0f));
  }
  if (what == Product::overwritten_after_a_warps_wait) {  // warp 1 alone says that it is done
    if (thread == 32) shared.done.arrive();
    if (thread == 0) {
      shared.done.wait(0);
      shared.b[0].store(0, 0, from_float<half>(1.0f));
    }
  }
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  for (int c = 0; c < 8; ++c) {
    for (int i = 0; i < 4; ++i) out.head(0, 0).store(row + i / 2 * 8, 8 * c + column + i % 2, d[c][i] + e[c][i]);
  }
}

const LaunchConfig kProduct{"probe", {1}, 128, sizeof(ProductStorage)};

void expect_product_fault(Product what, const std::vector<std::string>& kinds, std::vector<std::string> texts) {
  Tensor<float> out("out", 64, 64);
  texts.push_back("tests/sim/hopper_wgmma_test.cpp:");
  expect_one_of(kinds, texts, kProduct, product_kernel, GlobalTensor<float>(out.ref()), what);
}

TEST_CASE("products in order, in chains and in two groups are no fault") {
  const auto element = [](int row, int col, int modulus) { return float((row * 64 + col) % modulus); };
  for (const Product what : {Product::right, Product::chain, Product::two_groups, Product::overwritten_after_wait}) {
    Tensor<float> out("out", 64, 64);
    expect_clean(kProduct, product_kernel, GlobalTensor<float>(out.ref()), what);
    int wrong = 0;
    for (int row = 0; row < 64; ++row) {
      for (int column = 0; column < 64; ++column) {
        float d = 0, e = 0;
        for (int k = 0; k < (what == Product::chain ? 32 : 16); ++k) d += element(row, k, 7) * element(column, k, 5);
        for (int k = 0; k < 16; ++k) e += element(row, k, 7) * element(column, k, 3);
        wrong += out[row * 64 + column] != (what == Product::two_groups ? 2 * d + e : d);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("plain writes that wgmma reads without a proxy fence are a fault") {
  expect_product_fault(Product::no_proxy_fence, {"missing proxy fence"},
                       {"wgmma's operand a of a at byte", "written by"});
}

TEST_CASE("operands that are not written, or not for the warp that reads them, are a fault") {
  expect_product_fault(Product::unwritten, {"unwritten shared memory"}, {"wgmma's operand", "at byte"});
  expect_product_fault(Product::no_barrier, {"data race", "unwritten shared memory", "mbarrier not initialised"},
                       {"wgmma's operand"});
  expect_product_fault(Product::beyond, {"out of bounds", "unwritten shared memory"}, {"operand b"});
  expect_product_fault(Product::misaligned, {"misaligned"}, {"a matrix descriptor of row 0", "8 and 1024 bytes"});
}

TEST_CASE("a wgmma_fence that is missing is a fault") {
  expect_product_fault(Product::no_fence, {"missing wgmma_fence"}, {"before the first wgmma"});
  expect_product_fault(Product::no_fence_after_write, {"missing wgmma_fence"}, {"has written its accumulators"});
  expect_product_fault(Product::no_fence_after_wait, {"missing wgmma_fence"}, {"has waited for these accumulators"});
  expect_product_fault(Product::no_fence_after_pack, {"missing wgmma_fence"}, {"has packed operand registers"});
}

TEST_CASE("a commit or a wait that is missing is a fault") {
  expect_product_fault(Product::no_commit, {"missing commit"}, {"no wgmma_commit() since the wgmma"});
  expect_product_fault(Product::no_commit_at_end, {"missing commit"}, {"the thread ends"});
  expect_product_fault(Product::no_wait, {"missing wgmma_wait"}, {"the thread ends"});
}

TEST_CASE("accumulators that are touched before the wait are a fault that names the product") {
  expect_product_fault(Product::read_in_flight, {"accumulator in flight"}, {"accumulator [3][2]", "no wgmma_wait()"});
  expect_product_fault(Product::write_in_flight, {"accumulator in flight"}, {"accumulator [3][2]"});
  expect_product_fault(
      Product::read_in_flight_by_function, {"accumulator in flight"},
      {"in a function called at tests/sim/hopper_wgmma_test.cpp", "store_accumulators(shared.b[1], 0, 0"});
  expect_product_fault(Product::wait_of_older, {"accumulator in flight"},
                       {"accumulator [0][0]", "wgmma<half, 64, Major::k, Major::k>(e, a, b1"});
  expect_product_fault(Product::another_shape, {"accumulator in flight"}, {"of another shape"});
  expect_product_fault(Product::overlap, {"accumulator in flight"}, {"works on some of these registers"});
}

TEST_CASE("an operand that is overwritten before the wait is a fault") {
  expect_product_fault(Product::overwritten, {"operand in use"},
                       {"write of row 2, column 3 of b[0]", "is being read by the wgmma of warps 0 to 3"});
}

TEST_CASE("the wait of one warp says nothing about what the others have read") {
  expect_product_fault(Product::overwritten_after_a_warps_wait, {"data race", "operand in use"},
                       {"row 0, column 0 of b[0]"});
}

TEST_CASE("a warpgroup comes to wgmma as a whole and with one descriptor") {
  expect_product_fault(
      Product::three_warps, {"diverged warp", "missing wgmma_wait"},
      {"a warpgroup comes to wgmma as a whole: 96 threads of warps 0, 1, 3 are there, threads of warps 2 are not"});
  expect_product_fault(Product::one_lane_less, {"diverged warp"}, {"127 of 128 threads are there"});
  expect_product_fault(Product::other_descriptor, {"bad descriptor"}, {"thread 99"});
}

__global__ void two_warps_kernel() {
  AccumulatorRegister d[1][4] = {};
  wgmma<half, 8, Major::k, Major::k>(d, {0}, {0}, false);
}

TEST_CASE("wgmma in a block of less than four warps is a fault") {
  expect_fault("diverged warp", {"a warpgroup of four warps comes to wgmma; the block has 64 threads"},
               {"probe", {1}, 64, 1024}, two_warps_kernel);
}

}  // namespace
}  // namespace flash::sim
