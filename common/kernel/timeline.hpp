// What a warpgroup does when, written to memory by a kernel that is compiled for it: stamps cost time, so the kernel
// that is timed has none.
#pragma once

#include "common/kernel/kernel.hpp"

namespace flash::MACHINE {

/// Notes of one warpgroup, by one of its threads, in a row of the tensor that ChapterInfo::timeline describes. Nothing
/// where `On` is false.
template <bool On>
class Track {
 public:
  /// `number` is the track's, `notes` whether this thread writes it. Of the grid, as many blocks write as the tensor
  /// has room for.
  __device__ __forceinline__ Track(const GlobalTensor<unsigned long long>& timeline, int blocks, int number, bool notes)
      : timeline_(timeline), number_(number), notes_(On && notes && int(blockIdx.x) < blocks) {}

  /// From now on the warpgroup does what ChapterInfo::timeline names with this number.
  __device__ __forceinline__ void mark(int doing) {
    if constexpr (On) {
      if (!notes_) return;
      const auto row = timeline_.head(0, int(blockIdx.x));
      if (count_ < row.cols())
        row.store(number_, count_++, (unsigned long long)doing << 56 | (clock_stamp() & TimeMask));
    }
  }

  static constexpr unsigned long long TimeMask = (1ull << 56) - 1;

 private:
  const GlobalTensor<unsigned long long>& timeline_;
  int number_;
  bool notes_;
  int count_ = 0;
};

}  // namespace flash::MACHINE
