// ldmatrix, stmatrix and mma.sync of the simulated GPU, with the fragment layouts of the PTX manual ("Warp-level matrix
// instructions"); the twin of common/ptx/matrix.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "common/base/dtype.hpp"
#include "common/sim/accumulator_register.hpp"
#include "common/sim/capability.hpp"
#include "common/sim/tensor_core.hpp"
#include "common/sim/views.hpp"

namespace flash::sim {

namespace detail {

template <int Count>
struct LdmatrixOperand {
  const std::byte* row;
  std::uint32_t* result;
};

/// Lane 8i + r gives the address of row r of matrix i; the lanes from 8·Count on give nothing.
template <int Count, bool Transposed>
void ldmatrix(const char* operation, std::uint32_t (&result)[Count], SharedAddress row, Site site) {
  require_capability(75, "ldmatrix", site);
  Block& block = this_block();
  LdmatrixOperand<Count> mine{row.data, result};
  if (running_thread->lane < 8 * Count) block.read_shared(row.data, 16, SharedAccess::ldmatrix, row.place, site);
  block.meet_aligned(operation, mine, site, [](LdmatrixOperand<Count>** lanes) {
    for (int matrix = 0; matrix < Count; ++matrix) {
      for (int lane = 0; lane < 32; ++lane) {
        std::uint16_t pair[2];
        for (int i = 0; i < 2; ++i) {
          const int row = Transposed ? lane % 4 * 2 + i : lane / 4;
          const int col = Transposed ? lane / 4 : lane % 4 * 2 + i;
          std::memcpy(&pair[i], lanes[matrix * 8 + row]->row + col * 2, 2);
        }
        std::memcpy(&lanes[lane]->result[matrix], pair, 4);
      }
    }
  });
}

struct StmatrixOperand {
  const std::uint32_t* matrices;
  std::uint16_t row[8];  // the one whose address the lane gave
};

template <typename Element>
TensorCoreOperand element_of(std::uint32_t pair, int i) {
  return tensor_core_operand(Element{std::uint16_t(i == 0 ? pair & 0xffffu : pair >> 16)});
}

/// d += a·b for one warp: a is [16, 16], b is [16, 8], d is [16, 8] in fp32.
template <typename Element, typename Register>
struct MmaOperand {
  Register* d;
  const std::uint32_t* a;
  const std::uint32_t* b;
};

template <typename Element, typename Register>
void mma_compute(MmaOperand<Element, Register>** lanes) {
  TensorCoreOperand a[16][16], b[8][16];  // a by rows, b by columns
  float d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      a[group][pair + i] = element_of<Element>(lanes[lane]->a[0], i);
      a[group + 8][pair + i] = element_of<Element>(lanes[lane]->a[1], i);
      a[group][pair + 8 + i] = element_of<Element>(lanes[lane]->a[2], i);
      a[group + 8][pair + 8 + i] = element_of<Element>(lanes[lane]->a[3], i);
      b[group][pair + i] = element_of<Element>(lanes[lane]->b[0], i);
      b[group][pair + 8 + i] = element_of<Element>(lanes[lane]->b[1], i);
      d[group][pair + i] = lanes[lane]->d[i];
      d[group + 8][pair + i] = lanes[lane]->d[2 + i];
    }
  }
  Terms in_row[16], in_col[8];
  for (int row = 0; row < 16; ++row) in_row[row] = terms_of(a[row]);
  for (int col = 0; col < 8; ++col) in_col[col] = terms_of(b[col]);
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 8; ++col) {
      d[row][col] = tensor_core_step<Element>(a[row], b[col], d[row][col], in_row[row], in_col[col]);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      lanes[lane]->d[i] = d[group][pair + i];
      lanes[lane]->d[2 + i] = d[group + 8][pair + i];
    }
  }
  this_block().counters().matrix_flops += 2 * 16 * 16 * 8;
}

}  // namespace detail

/// ldmatrix.sync.aligned.m8n8.xN.shared.b16: loads N matrices of 8 by 8 16-bit elements; see detail::ldmatrix.
inline void ldmatrix_x4(std::uint32_t (&result)[4], SharedAddress row, Site site = Site::here()) {
  detail::ldmatrix<4, false>("ldmatrix.x4", result, row, site);
}
inline void ldmatrix_x2(std::uint32_t (&result)[2], SharedAddress row, Site site = Site::here()) {
  detail::ldmatrix<2, false>("ldmatrix.x2", result, row, site);
}
/// As above, each matrix transposed.
inline void ldmatrix_x4_trans(std::uint32_t (&result)[4], SharedAddress row, Site site = Site::here()) {
  detail::ldmatrix<4, true>("ldmatrix.x4.trans", result, row, site);
}
inline void ldmatrix_x2_trans(std::uint32_t (&result)[2], SharedAddress row, Site site = Site::here()) {
  detail::ldmatrix<2, true>("ldmatrix.x2.trans", result, row, site);
}

/// stmatrix.sync.aligned.m8n8.x4.shared.b16: stores 4 matrices of 8 by 8 16-bit elements. Lane 8i + r gives the address
/// of row r of matrix i; of matrix i, lane l holds columns 2(l mod 4) and the next of row l/4 in matrices[i].
inline void stmatrix_x4(SharedAddress row, const std::uint32_t (&matrices)[4], Site site = Site::here()) {
  require_capability(90, "stmatrix", site);
  detail::StmatrixOperand mine{matrices, {}};
  Block& block = this_block();
  block.meet_aligned("stmatrix.x4", mine, site, [](detail::StmatrixOperand** lanes) {
    for (int to = 0; to < 32; ++to) {
      for (int pair = 0; pair < 4; ++pair) {
        std::memcpy(&lanes[to]->row[2 * pair], &lanes[to % 8 * 4 + pair]->matrices[to / 8], 4);
      }
    }
  });
  block.write_shared(row.data, 16, SharedAccess::stmatrix, row.place, mine.row, site);
  std::memcpy(row.data, mine.row, 16);
}

/// mma.sync.aligned.m16n8k16.row.col.f32: d += a·b with fp16 or bf16 operands and fp32 sums. Lane l holds rows l/4 and
/// l/4 + 8; of d, which is of floats or AccumulatorRegisters, columns 2(l mod 4) and the next.
template <typename Element, typename Register>
void mma_m16n8k16(Register (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  Site site = Site::here()) {
  require_capability(
      80, std::is_same_v<Element, bfloat16> ? "mma.sync with bf16 operands" : "mma.sync m16n8k16 with fp16 operands",
      site);
  detail::MmaOperand<Element, Register> mine{d, a, b};
  this_block().meet_aligned("mma.sync", mine, site, [](detail::MmaOperand<Element, Register>** lanes) {
    detail::mma_compute<Element, Register>(lanes);
  });
}

/// Two floats rounded to a pair of elements in one register, the first in the lower half.
template <typename Element>
std::uint32_t pack(float low, float high) {
  running_thread->packed = true;
  return std::uint32_t(from_float<Element>(low).bits) | std::uint32_t(from_float<Element>(high).bits) << 16;
}

}  // namespace flash::sim
