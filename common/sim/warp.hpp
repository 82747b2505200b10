// Warp collectives of the simulated GPU, under CUDA's names and with CUDA's meaning.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "common/sim/block.hpp"

namespace flash::sim {

namespace detail {

/// `from` is the lane that the calling one reads; each lane may have its own.
template <typename T>
T shuffle(const char* operation, unsigned mask, T value, int from, Site site) {
  struct Operand {
    T value;
    T result;
    int from;
  } mine{value, value, from};
  this_block().meet(operation, mask, mine, site, [&](Operand** lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      if (lanes[lane] == nullptr) continue;
      const Operand* source = lanes[lanes[lane]->from];
      if (source == nullptr) {
        this_block().fault("bad shuffle",
                           fmt::format("in {}, lane {} reads lane {}, which the mask {:#010x} does not name", operation,
                                       lane, lanes[lane]->from, mask),
                           site);
      }
      lanes[lane]->result = source->value;
    }
  });
  return mine.result;
}

/// The calling lane and the first lane of its part of the warp.
struct Part {
  int lane, first;
};

inline Part part_of_warp(const char* operation, int width, Site site) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    this_block().fault("bad shuffle", fmt::format("{} with width {}: use 1, 2, 4, 8, 16 or 32", operation, width),
                       site);
  }
  const int lane = running_thread->lane;
  return {lane, lane / width * width};
}

template <typename Result, typename Combine>
Result vote(const char* operation, unsigned mask, bool predicate, Site site, Combine combine) {
  struct Operand {
    bool predicate;
    Result result;
  } mine{predicate, {}};
  this_block().meet(operation, mask, mine, site, [&](Operand** lanes) {
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; ++lane) {
      if (lanes[lane] != nullptr && lanes[lane]->predicate) ballot |= 1u << lane;
    }
    for (int lane = 0; lane < 32; ++lane) {
      if (lanes[lane] != nullptr) lanes[lane]->result = combine(ballot);
    }
  });
  return mine.result;
}

}  // namespace detail

// The hardware takes lane numbers and distances modulo 32. A lane whose source lies outside its part reads itself.

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, Site site = Site::here()) {
  const detail::Part part = detail::part_of_warp("__shfl_sync", width, site);
  return detail::shuffle("__shfl_sync", mask, value, part.first + (source & (width - 1)), site);
}

/// Lanes of a later part than the own cannot be read, lanes of an earlier one can.
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, Site site = Site::here()) {
  const detail::Part part = detail::part_of_warp("__shfl_xor_sync", width, site);
  const int from = part.lane ^ (lane_mask & 31);
  return detail::shuffle("__shfl_xor_sync", mask, value, from < part.first + width ? from : part.lane, site);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, Site site = Site::here()) {
  const detail::Part part = detail::part_of_warp("__shfl_down_sync", width, site);
  const int from = part.lane + int(delta & 31);
  return detail::shuffle("__shfl_down_sync", mask, value, from < part.first + width ? from : part.lane, site);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, Site site = Site::here()) {
  const detail::Part part = detail::part_of_warp("__shfl_up_sync", width, site);
  const int from = part.lane - int(delta & 31);
  return detail::shuffle("__shfl_up_sync", mask, value, from >= part.first ? from : part.lane, site);
}

inline unsigned __ballot_sync(unsigned mask, bool predicate, Site site = Site::here()) {
  return detail::vote<unsigned>("__ballot_sync", mask, predicate, site, [](unsigned ballot) { return ballot; });
}

inline bool __any_sync(unsigned mask, bool predicate, Site site = Site::here()) {
  return detail::vote<bool>("__any_sync", mask, predicate, site, [](unsigned ballot) { return ballot != 0; });
}

inline bool __all_sync(unsigned mask, bool predicate, Site site = Site::here()) {
  return detail::vote<bool>("__all_sync", mask, predicate, site, [mask](unsigned ballot) { return ballot == mask; });
}

/// Orders the shared-memory accesses of the lanes in `mask`.
inline void __syncwarp(unsigned mask = 0xffffffffu, Site site = Site::here()) {
  struct Nothing {
  } mine;
  this_block().meet("__syncwarp", mask, mine, site, [mask](Nothing**) { this_block().order_lanes(mask); });
}

}  // namespace flash::sim
