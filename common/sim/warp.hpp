// Warp collectives of the simulated GPU, under CUDA's names and with CUDA's meaning.
#pragma once

#include <cstdint>

#include "common/sim/block.hpp"

namespace flash::sim {

namespace detail {

template <typename T, typename Source>
T shuffle(const char* operation, unsigned mask, T value, int width, Site site, Source source) {
  struct Operand {
    T value;
    T result;
  } mine{value, value};
  this_block().meet(operation, mask, mine, site, [&](Operand** lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      if (lanes[lane] == nullptr) continue;
      const int first = lane / width * width;
      const int from = source(lane, first, first + width);
      if (lanes[from] == nullptr) {
        this_block().fault("exited lanes",
                           fmt::format("{} reads lane {}, which its mask does not name", operation, from), site);
      }
      lanes[lane]->result = lanes[from]->value;
    }
  });
  return mine.result;
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

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, Site site = Site::here()) {
  // The source may differ from lane to lane, so each lane's choice travels with its value.
  struct Operand {
    T value;
    T result;
    int source;
  } mine{value, value, source};
  this_block().meet("__shfl_sync", mask, mine, site, [&](Operand** lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      if (lanes[lane] == nullptr) continue;
      const int from = lane / width * width + (lanes[lane]->source & (width - 1));
      if (lanes[from] == nullptr) {
        this_block().fault("exited lanes", fmt::format("__shfl_sync reads lane {}, which its mask does not name", from),
                           site);
      }
      lanes[lane]->result = lanes[from]->value;
    }
  });
  return mine.result;
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, Site site = Site::here()) {
  return detail::shuffle("__shfl_xor_sync", mask, value, width, site, [=](int lane, int, int end) {
    const int from = lane ^ lane_mask;
    return from < end ? from : lane;
  });
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, Site site = Site::here()) {
  return detail::shuffle("__shfl_down_sync", mask, value, width, site, [=](int lane, int, int end) {
    const int from = lane + int(delta);
    return from < end ? from : lane;
  });
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, Site site = Site::here()) {
  return detail::shuffle("__shfl_up_sync", mask, value, width, site, [=](int lane, int first, int) {
    const int from = lane - int(delta);
    return from >= first ? from : lane;
  });
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
  this_block().meet("__syncwarp", mask, mine, site, [](Nothing**) { this_block().order_lanes(running_thread->warp); });
}

}  // namespace flash::sim
