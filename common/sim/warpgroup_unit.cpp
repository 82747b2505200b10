#include "common/sim/warpgroup_unit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/tensor_map.hpp"
#include "common/sim/block.hpp"
#include "common/sim/tensor_core.hpp"

namespace flash::sim {

namespace {

constexpr int kRegisters = 65536;  // of a multiprocessor
constexpr int kPieceBytes = 16, kPieceElements = 8;

/// The fields of a matrix descriptor (PTX manual, "Matrix descriptor").
struct Descriptor {
  unsigned start, leading, stride, base_offset;
  Swizzle swizzle;

  explicit Descriptor(std::uint64_t bits)
      : start(unsigned(bits & 0x3fff) << 4),
        leading(unsigned(bits >> 16 & 0x3fff) << 4),
        stride(unsigned(bits >> 32 & 0x3fff) << 4),
        base_offset(unsigned(bits >> 49 & 7)),
        swizzle(std::array{Swizzle::none, Swizzle::bytes128, Swizzle::bytes64, Swizzle::bytes32}[bits >> 62]) {}

  /// Where the 16 bytes lie that hold 8 elements along the contiguous index. K-major: `outer` is the index of the row,
  /// `piece` the first or second 8 of its depth. MN-major: `outer` is the depth, `piece` counts eights of rows.
  unsigned address(bool mn_major, int outer, int piece) const {
    const int width = std::max(swizzle_bytes(swizzle), kPieceBytes);  // bytes of a row of the swizzle's pattern
    const int pieces = width / kPieceBytes;
    const auto row = unsigned(outer), column = unsigned(piece);
    unsigned at = start + row % 8 * unsigned(width);
    if (!mn_major) {
      at += row / 8 * stride + column * (swizzle == Swizzle::none ? leading : unsigned(kPieceBytes));
    } else if (swizzle == Swizzle::none) {
      at += row / 8 * leading + column * stride;
    } else {
      at += row / 8 * stride + column / unsigned(pieces) * leading + column % unsigned(pieces) * kPieceBytes;
    }
    // The pattern starts base_offset rows of 128 bytes after a multiple of 1024.
    const unsigned shift = base_offset << 7;
    return swizzle_offset(swizzle, at - shift) + shift;
  }
};

template <typename Element>
void multiply(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b, int n, std::vector<float>& d) {
  const auto decode = [](const std::vector<std::uint16_t>& bits) {
    std::vector<TensorCoreOperand> operands(bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) operands[i] = tensor_core_operand(Element{bits[i]});
    return operands;
  };
  const auto terms_of_rows = [](const std::vector<TensorCoreOperand>& operands) {
    std::vector<Terms> terms(operands.size() / kWgmmaDepth);
    for (std::size_t row = 0; row < terms.size(); ++row) terms[row] = terms_of(&operands[row * kWgmmaDepth]);
    return terms;
  };
  const std::vector<TensorCoreOperand> rows = decode(a), columns = decode(b);
  const std::vector<Terms> in_row = terms_of_rows(rows), in_column = terms_of_rows(columns);
  for (std::size_t row = 0; row < kWgmmaRows; ++row) {
    for (std::size_t column = 0; column < std::size_t(n); ++column) {
      float& sum = d[row * std::size_t(n) + column];
      sum = tensor_core_step<Element>(&rows[row * kWgmmaDepth], &columns[column * kWgmmaDepth], sum, in_row[row],
                                      in_column[column]);
    }
  }
}

std::string warp_list(std::uint32_t warps) {
  std::string text;
  for (int warp = 0; warp < kMaxWarps; ++warp) {
    if (warps >> warp & 1u) text += fmt::format("{}{}", text.empty() ? "" : ", ", warp);
  }
  return text;
}

/// Row and column of register d[tile][i] of a thread of the warpgroup.
int row_of(int thread, int i) { return thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8; }
int column_of(int thread, int tile, int i) { return tile * 8 + thread % 4 * 2 + i % 2; }

}  // namespace

void AccumulatorRegister::in_flight() const {
  if (running_thread != nullptr) this_block().warpgroup_unit().check_register(this);
}

void WarpgroupUnit::begin_block() {
  const int warps = (block_.threads() + 31) / 32;
  groups_.clear();
  groups_.resize(std::size_t(warps + 3) / 4);
  // As where the launch bounds let a thread have its share of all registers, which setmaxnreg presupposes.
  const int share = std::min(256, kRegisters / (warps * 32) / 8 * 8);
  for (Warpgroup& group : groups_) group.registers = share;
  free_registers_ = kRegisters - share * warps * 32;
}

// -- A warpgroup comes together

WarpgroupUnit::Warpgroup& WarpgroupUnit::group_of_running(const char* operation, Site site) {
  const int group = running_thread->warp / 4;
  if ((group + 1) * 128 > block_.threads()) {
    block_.fault(
        "diverged warp",
        fmt::format("a warpgroup of four warps comes to {}; the block has {} threads", operation, block_.threads()),
        site);
  }
  return groups_[std::size_t(group)];
}

bool WarpgroupUnit::gather(Warpgroup& group, const char* operation, const void* operand, Site site) {
  Thread& self = *running_thread;
  Gathering& gathering = group.gathering;
  const SiteId at = block_.here(site);
  if (gathering.arrived == 0) {
    gathering = {};
    gathering.operation = operation;
    gathering.site = at;
  } else if (std::strcmp(gathering.operation, operation) != 0 || gathering.site != at) {
    block_.fault("diverged warp",
                 fmt::format("a warpgroup comes to {} as a whole, but {} of its threads are at {} ({})", operation,
                             gathering.arrived, gathering.operation, block_.describe(gathering.site)),
                 site);
  }
  gathering.lanes[self.warp % 4] |= 1u << self.lane;
  gathering.operands[self.linear % 128] = operand;
  if (++gathering.arrived == 128) return true;
  self.wait = {operation, at, 0, -1, -1, self.warp / 4};
  block_.suspend(self);
  return false;
}

void WarpgroupUnit::release(Warpgroup& group) {
  const auto first = std::size_t(&group - groups_.data()) * 4;
  for (std::size_t w = 0; w < 4; ++w) block_.warps_[first + w].ready |= block_.warps_[first + w].lanes;
  if (running_thread->warp / 4 == int(first / 4)) {
    block_.warps_[std::size_t(running_thread->warp)].ready &= ~(1u << running_thread->lane);
  }
  group.gathering = {};
  block_.count_event();
}

std::string WarpgroupUnit::wait_text(int warpgroup) const {
  const Warpgroup& group = groups_[std::size_t(warpgroup)];
  if (group.wanted != 0) return fmt::format(" for {} registers a thread", group.wanted);
  return fmt::format(" ({} of 128 threads are there)", group.gathering.arrived);
}

std::string WarpgroupUnit::diverged() const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Gathering& gathering = groups_[g].gathering;
    if (gathering.arrived == 0 || gathering.arrived == 128) continue;
    std::uint32_t there = 0, missing = 0;
    for (std::size_t w = 0; w < 4; ++w) {
      const auto warp = g * 4 + w;
      const std::uint32_t all = block_.warps_[warp].lanes & ~block_.at_mbarriers(warp);
      there |= gathering.lanes[w] != 0 ? 1u << warp : 0u;
      missing |= (all & ~gathering.lanes[w]) != 0 ? 1u << warp : 0u;
    }
    if (missing == 0) continue;
    return fmt::format(
        "a warpgroup comes to {} as a whole: {} threads of warps {} are there, threads of warps {} are "
        "not",
        gathering.operation, gathering.arrived, warp_list(there), warp_list(missing));
  }
  return "";
}

// -- Products

void WarpgroupUnit::fence(Site site) {
  Warpgroup& group = group_of_running("wgmma_fence", site);
  Thread& self = *running_thread;
  const auto side = std::size_t(self.warp % 4);
  self.packed = false;
  block_.meet_aligned("wgmma_fence", group, site, [&](Warpgroup**) {
    group.sides[side].fenced = true;
    for (Accumulators& accumulators : group.accumulators) accumulators.fenced[side] = true;
  });
}

void WarpgroupUnit::issue(const WgmmaShape& shape, const WgmmaOperands& mine, Site site) {
  Warpgroup& group = group_of_running("wgmma", site);
  if (!gather(group, "wgmma", &mine, site)) return;
  issue_gathered(group, shape, site);
  release(group);
}

/// The accumulators that the threads have brought, as the products issued so far leave them.
std::size_t WarpgroupUnit::accumulators_of(Warpgroup& group, int number, const WgmmaShape& shape, bool accumulate,
                                           Site site) {
  std::array<const WgmmaOperands*, 128> operands;
  for (std::size_t t = 0; t < 128; ++t) operands[t] = static_cast<const WgmmaOperands*>(group.gathering.operands[t]);
  auto known = std::find_if(group.accumulators.begin(), group.accumulators.end(),
                            [&](const Accumulators& other) { return other.of_thread[0] == operands[0]->d; });
  const auto busy = [](const Accumulators& a) {
    return std::any_of(a.in_flight.begin(), a.in_flight.end(), [](int products) { return products != 0; });
  };
  bool same = known != group.accumulators.end() && known->n == shape.n;
  for (std::size_t t = 0; t < 128 && same; ++t) same = known->of_thread[t] == operands[t]->d;
  if (!same && known != group.accumulators.end()) {
    if (busy(*known)) {
      block_.fault("accumulator in flight",
                   fmt::format("a wgmma of another shape works on these registers\n  issued at {}",
                               block_.describe(known->site, "\n  in ")),
                   site);
    }
    *known = {};
  }
  if (known == group.accumulators.end()) known = group.accumulators.insert(known, Accumulators{});
  const bool first_use = !same;
  if (first_use) {
    for (std::size_t t = 0; t < 128; ++t) known->of_thread[t] = operands[t]->d;
    known->n = shape.n;
    known->values.assign(std::size_t(kWgmmaRows * shape.n), 0.0f);
    known->fenced.fill(true);
  }
  for (std::size_t t = 0; t < 128; ++t) {
    const std::size_t side = t / 32;
    const Thread& thread = *block_.threads_[std::size_t(number) * 128 + t];
    const auto missing = [&](const std::string& why) {
      block_.fault("missing wgmma_fence", fmt::format("{}, {}", block_.thread_name(thread.linear), why), site);
    };
    if (!group.sides[side].fenced) missing("before the first wgmma of a warpgroup");
    if (shape.a_in_registers && thread.packed) missing("which has packed operand registers since its last wgmma_fence");
    if (known->in_flight[side] != 0) continue;  // the values are those of the product before
    if (!known->fenced[side] && !accumulate)
      missing("which has waited for these accumulators since its last wgmma_fence");
    for (int tile = 0; tile < shape.n / 8; ++tile) {
      for (int i = 0; i < 4; ++i) {
        AccumulatorRegister& accumulator = known->of_thread[t][tile * 4 + i];
        if (accumulator.bits_ == AccumulatorRegister::kInFlight) {
          for (const Accumulators& other : group.accumulators) {
            if (&other != &*known && busy(other) && &accumulator >= other.of_thread[t] &&
                &accumulator < other.of_thread[t] + other.n / 2) {
              block_.fault("accumulator in flight",
                           fmt::format("another wgmma works on some of these registers\n  issued at {}",
                                       block_.describe(other.site, "\n  in ")),
                           site);
            }
          }
        }
        float& value = known->values[std::size_t(row_of(int(t), i) * shape.n + column_of(int(t), tile, i))];
        const float now = std::bit_cast<float>(accumulator.bits_);
        if (!known->fenced[side] && std::bit_cast<std::uint32_t>(value) != accumulator.bits_) {
          missing("which has written its accumulators since its last wgmma_fence");
        }
        value = now;
        accumulator.bits_ = AccumulatorRegister::kInFlight;
      }
    }
  }
  for (int& products : known->in_flight) products += 1;
  known->site = block_.here(site);
  return std::size_t(known - group.accumulators.begin());
}

void WarpgroupUnit::locate(const WgmmaShape& shape, std::uint64_t a, std::uint64_t b, Product& product, Site site) {
  const auto pieces = [&](std::uint64_t bits, bool mn_major, int rows, const char* name) {
    const Descriptor descriptor(bits);
    std::vector<int> list;
    const int outer = mn_major ? kWgmmaDepth : rows, across = (mn_major ? rows : kWgmmaDepth) / kPieceElements;
    for (int i = 0; i < outer; ++i) {
      for (int piece = 0; piece < across; ++piece) {
        const unsigned at = descriptor.address(mn_major, i, piece);
        if (at + kPieceBytes > unsigned(block_.shared_bytes())) {
          block_.fault("out of bounds",
                       fmt::format("operand {} of wgmma reaches byte {} of shared memory; the launch gave {}", name, at,
                                   block_.shared_bytes()),
                       site);
        }
        list.push_back(int(at));
      }
    }
    return list;
  };
  if (!shape.a_in_registers) product.a_pieces = pieces(a, shape.a_is_m_major, kWgmmaRows, "a");
  product.b_pieces = pieces(b, shape.b_is_n_major, shape.n, "b");
}

namespace {

/// Which of the four warps reads piece i of `a`: rows 16w to 16w + 15.
int warp_of_piece(bool m_major, std::size_t i) {
  constexpr int across = kWgmmaRows / kPieceElements;
  return m_major ? int(i) % across / 2 : int(i) / (kWgmmaDepth / kPieceElements) / 16;
}

}  // namespace

void WarpgroupUnit::check_operands(int warpgroup, const Product& product, Site site) {
  for (int w = 0; w < 4; ++w) {
    const Issuer issuer = block_.shadow_.issuer_of_warp(warpgroup * 4 + w);
    const auto check = [&](int offset, const char* what) {
      const Conflict conflict = block_.shadow_.check_operand(issuer, offset, kPieceBytes);
      if (conflict.kind != Conflict::none) block_.check(conflict, what, block_.place_of(offset), site);
    };
    for (std::size_t i = 0; i < product.a_pieces.size(); ++i) {
      if (warp_of_piece(product.shape.a_is_m_major, i) == w) check(product.a_pieces[i], "wgmma's operand a");
    }
    for (const int offset : product.b_pieces) check(offset, "wgmma's operand b");
  }
}

void WarpgroupUnit::issue_gathered(Warpgroup& group, const WgmmaShape& shape, Site site) {
  const int number = int(&group - groups_.data());
  const auto& mine = *static_cast<const WgmmaOperands*>(group.gathering.operands[0]);
  for (std::size_t t = 1; t < 128; ++t) {
    const auto& other = *static_cast<const WgmmaOperands*>(group.gathering.operands[t]);
    if (other.b != mine.b || other.a != mine.a || other.accumulate != mine.accumulate) {
      block_.fault("bad descriptor",
                   fmt::format("all threads of a warpgroup give wgmma the same descriptors: {} gives others than {}",
                               block_.thread_name(number * 128 + int(t)), block_.thread_name(number * 128)),
                   site);
    }
  }
  Product product{shape, 0, mine.accumulate, block_.here(site), false, false, {}, {}, {}, {}};
  locate(shape, mine.a, mine.b, product, site);
  check_operands(number, product, site);
  product.accumulators = accumulators_of(group, number, shape, mine.accumulate, site);
  if (shape.a_in_registers) {
    product.a.resize(kWgmmaRows * kWgmmaDepth);
    for (int t = 0; t < 128; ++t) {
      const std::uint32_t* const a = static_cast<const WgmmaOperands*>(group.gathering.operands[t])->a_registers;
      for (int i = 0; i < 8; ++i) {  // as for mma.m16n8k16: rows and columns of registers 0 to 3, two elements each
        const int row = row_of(t, i / 2 % 2 * 2), column = t % 4 * 2 + i % 2 + i / 4 * 8;
        product.a[std::size_t(row * kWgmmaDepth + column)] = std::uint16_t(a[i / 2] >> i % 2 * 16);
      }
    }
  }
  for (const int offset : product.a_pieces) block_.shadow_.begin_operand(offset, kPieceBytes);
  for (const int offset : product.b_pieces) block_.shadow_.begin_operand(offset, kPieceBytes);
  if (block_.kernel_->schedule_seed != 0 && block_.random() % 2 == 0) read_operands(product);
  group.products.push_back(std::move(product));
  group.issued += 1;
  block_.counters_->matrix_flops += 2 * kWgmmaRows * shape.n * kWgmmaDepth;
  SharedCounters& shared = block_.counters_->shared_of(SharedAccess::wgmma);
  shared.accesses += 1;
  shared.bytes +=
      kPieceBytes * std::int64_t(group.products.back().a_pieces.size() + group.products.back().b_pieces.size());
}

void WarpgroupUnit::read_operands(Product& product) {
  const auto read = [&](const std::vector<int>& pieces, bool mn_major, int rows) {
    std::vector<std::uint16_t> values(std::size_t(rows * kWgmmaDepth));
    const std::size_t across = std::size_t(mn_major ? rows : kWgmmaDepth) / kPieceElements;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::uint16_t piece[kPieceElements];
      std::memcpy(piece, block_.shared_memory() + pieces[i], kPieceBytes);
      for (std::size_t e = 0; e < kPieceElements; ++e) {
        const std::size_t outer = i / across, inner = i % across * kPieceElements + e;
        values[mn_major ? inner * kWgmmaDepth + outer : outer * kWgmmaDepth + inner] = piece[e];
      }
    }
    return values;
  };
  if (!product.shape.a_in_registers) product.a = read(product.a_pieces, product.shape.a_is_m_major, kWgmmaRows);
  product.b = read(product.b_pieces, product.shape.b_is_n_major, product.shape.n);
  product.read = true;
}

void WarpgroupUnit::compute(Warpgroup& group, int warpgroup, Product& product) {
  if (!product.read) read_operands(product);  // the latest legal moment is now
  std::vector<float>& values = group.accumulators[product.accumulators].values;
  if (!product.accumulate) std::fill(values.begin(), values.end(), 0.0f);
  if (product.shape.bf16) {
    multiply<bfloat16>(product.a, product.b, product.shape.n, values);
  } else {
    multiply<float16>(product.a, product.b, product.shape.n, values);
  }
  product.computed = true;
  const int reader = tensor_cores(warpgroup) / 32;
  for (std::size_t i = 0; i < product.a_pieces.size(); ++i) {
    const std::uint32_t lanes = tensor_core_lanes(warp_of_piece(product.shape.a_is_m_major, i));
    block_.shadow_.end_operand(product.a_pieces[i], kPieceBytes);
    block_.shadow_.note_read(reader, lanes, product.a_pieces[i], kPieceBytes, product.site);
  }
  for (const int offset : product.b_pieces) {
    block_.shadow_.end_operand(offset, kPieceBytes);
    block_.shadow_.note_read(reader, 0xffffffffu, offset, kPieceBytes, product.site);
  }
}

void WarpgroupUnit::commit(Site site) {
  Warpgroup& group = group_of_running("wgmma_commit", site);
  Side& side = group.sides[std::size_t(running_thread->warp % 4)];
  block_.meet_aligned("wgmma_commit", group, site, [&](Warpgroup**) {
    side.groups.push_back(group.issued);
    side.committed = group.issued;
  });
}

void WarpgroupUnit::wait(int pending, Site site) {
  Warpgroup& group = group_of_running("wgmma_wait", site);
  const int warp = running_thread->warp;
  Side& side = group.sides[std::size_t(warp % 4)];
  block_.meet_aligned("wgmma_wait", group, site, [&](Warpgroup**) {
    if (side.committed < group.issued) {
      const Product& product = group.products[side.committed - group.first];
      block_.fault("missing commit",
                   fmt::format("the wait covers only committed groups; no wgmma_commit() since the wgmma\n  at {}",
                               block_.describe(product.site, "\n  in ")),
                   site);
    }
    std::size_t to = side.delivered;
    for (; side.groups.size() > std::size_t(pending); side.groups.pop_front()) to = side.groups.front();
    deliver(group, warp, to);
  });
}

void WarpgroupUnit::deliver(Warpgroup& group, int warp, std::size_t to) {
  const int number = warp / 4;
  const auto side = std::size_t(warp % 4);
  if (group.sides[side].delivered >= to) return;
  for (std::size_t i = group.sides[side].delivered; i < to; ++i) {
    Product& product = group.products[i - group.first];
    if (!product.computed) compute(group, number, product);
    Accumulators& accumulators = group.accumulators[product.accumulators];
    if (--accumulators.in_flight[side] != 0) continue;
    accumulators.fenced[side] = false;
    for (std::size_t t = side * 32; t < side * 32 + 32; ++t) {
      for (int tile = 0; tile < accumulators.n / 8; ++tile) {
        for (int r = 0; r < 4; ++r) {
          AccumulatorRegister& accumulator = accumulators.of_thread[t][tile * 4 + r];
          if (accumulator.bits_ != AccumulatorRegister::kInFlight) {
            block_.fault_at("accumulator in flight",
                            "the registers were overwritten, or their array has ended, before the wait",
                            block_.thread_name(number * 128 + int(t)), product.site);
          }
          const int at = row_of(int(t), r) * accumulators.n + column_of(int(t), tile, r);
          accumulator.bits_ = std::bit_cast<std::uint32_t>(accumulators.values[std::size_t(at)]);
        }
      }
    }
  }
  group.sides[side].delivered = to;
  Clock clock;
  block_.shadow_.release_lanes_of_unit(tensor_cores(number), tensor_core_lanes(warp % 4), clock);
  block_.shadow_.acquire(warp, block_.warps_[std::size_t(warp)].lanes, clock);
  const auto done = [&](const Side& other) { return other.delivered > group.first; };
  while (!group.products.empty() && std::all_of(group.sides.begin(), group.sides.end(), done)) {
    group.products.pop_front();
    group.first += 1;
  }
}

void WarpgroupUnit::check_register(const AccumulatorRegister* accumulator) {
  const Thread& self = *running_thread;
  const auto group = std::size_t(self.warp / 4), thread = std::size_t(self.linear % 128);
  for (const Accumulators& accumulators : groups_[group].accumulators) {
    const AccumulatorRegister* const first = accumulators.of_thread[thread];
    if (accumulators.in_flight[thread / 32] == 0 || accumulator < first || accumulator >= first + accumulators.n / 2) {
      continue;
    }
    // A register has no place in the source; the function of common/kernel that runs does.
    const std::string where =
        self.caller == 0 ? "" : fmt::format("\n  in a function called at {}", block_.describe(self.caller, "\n  in "));
    block_.fault_at("accumulator in flight",
                    fmt::format("a read or write of accumulator [{}][{}], on which this wgmma works: no wgmma_wait() "
                                "that covers it{}",
                                (accumulator - first) / 4, (accumulator - first) % 4, where),
                    "", accumulators.site);
  }
}

void WarpgroupUnit::thread_exits(const Thread& thread) {
  const auto number = std::size_t(thread.warp / 4);
  const Warpgroup& group = groups_[number];
  const Side& side = group.sides[std::size_t(thread.warp % 4)];
  if (side.delivered == group.issued) return;
  const bool committed = side.committed == group.issued;
  const Product& product = group.products[(committed ? side.delivered : side.committed) - group.first];
  block_.fault_at(committed ? "missing wgmma_wait" : "missing commit",
                  fmt::format("the thread ends, and no {} has come since this wgmma",
                              committed ? "wgmma_wait() that covers it" : "wgmma_commit()"),
                  "", product.site);
}

std::string WarpgroupUnit::reader_of(int offset) const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Warpgroup& group = groups_[g];
    for (std::size_t i = 0; i < group.products.size(); ++i) {
      const Product& product = group.products[i];
      const auto covers = [offset](int piece) { return offset >= piece && offset < piece + kPieceBytes; };
      const bool waited = running_thread == nullptr || running_thread->warp / 4 != int(g) ||
                          group.sides[std::size_t(running_thread->warp % 4)].delivered > group.first + i;
      if (product.computed && waited) continue;
      if (std::any_of(product.a_pieces.begin(), product.a_pieces.end(), covers) ||
          std::any_of(product.b_pieces.begin(), product.b_pieces.end(), covers)) {
        return fmt::format("the wgmma of warps {} to {}\n  issued at {}", 4 * g, 4 * g + 3,
                           block_.describe(product.site, "\n  in "));
      }
    }
  }
  return "";
}

// -- Registers

void WarpgroupUnit::set_registers(int count, bool increase, Site site) {
  const char* const name = increase ? "increase_registers" : "decrease_registers";
  Warpgroup& group = group_of_running(name, site);
  if (count % 8 != 0 || count < 24 || count > 256) {
    block_.fault("bad register count", fmt::format("{}<{}>: multiples of 8 from 24 to 256 are possible", name, count),
                 site);
  }
  if (increase ? count < group.registers : count > group.registers) {
    block_.fault("bad register count",
                 fmt::format("{}<{}>, but a thread of this warpgroup has {}", name, count, group.registers), site);
  }
  if (!gather(group, name, &group, site)) return;
  if (increase) {
    group.wanted = count;
    group.wanted_site = block_.here(site);
    grant_registers();
    if (group.wanted == 0) return;
    Thread& self = *running_thread;
    self.wait = {name, group.wanted_site, 0, -1, -1, self.warp / 4};
    block_.suspend(self);
    return;
  }
  free_registers_ += (group.registers - count) * 128;
  group.registers = count;
  release(group);
  grant_registers();
}

void WarpgroupUnit::grant_registers() {
  for (Warpgroup& group : groups_) {
    const int more = (group.wanted - group.registers) * 128;
    if (group.wanted == 0 || more > free_registers_) continue;
    free_registers_ -= more;
    group.registers = group.wanted;
    group.wanted = 0;
    release(group);
  }
}

std::string WarpgroupUnit::register_report() const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Warpgroup& group = groups_[g];
    if (group.wanted == 0) continue;
    return fmt::format(
        "warps {} to {} wait for {} registers a thread, {} more than they have: {} of the {} are free\n"
        "  at {}",
        4 * g, 4 * g + 3, group.wanted, (group.wanted - group.registers) * 128, free_registers_, kRegisters,
        block_.describe(group.wanted_site, "\n  in "));
  }
  return "";
}

}  // namespace flash::sim
