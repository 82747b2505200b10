// What a warpgroup does when, written to memory by a kernel that is compiled for it: notes cost time, so the kernel
// that is timed has none.
#pragma once

#include "common/base/timeline_notes.hpp"
#include "common/kernel/kernel.hpp"

namespace flash::MACHINE {

/// Notes of warpgroup `number`, by its first thread, in its row of the tensor that ChapterInfo::timeline describes.
/// Nothing where `On` is false, and nothing in registers but the count: kernels have none to spare.
template <bool On>
class Track {
 public:
  __device__ __forceinline__ Track(const GlobalTensor<unsigned>& timeline, int number)
      : timeline_(timeline), number_(number) {}

  /// From now on the warpgroup does what ChapterInfo::timeline names with this number.
  __device__ __forceinline__ void mark(int doing) {
    if constexpr (On) {
      if (threadIdx.x % 128 != 0 || blockIdx.x >= TimelineBlocks || count_ >= TimelineNotes) return;
      constexpr unsigned Time = (1u << TimelineTimeBits) - 1;
      timeline_.head(0, int(blockIdx.x))
          .store(number_, count_++, unsigned(doing) << TimelineTimeBits | (clock_stamp() & Time));
    }
  }

 private:
  const GlobalTensor<unsigned>& timeline_;
  int number_;
  unsigned count_ = 0;
};

}  // namespace flash::MACHINE
