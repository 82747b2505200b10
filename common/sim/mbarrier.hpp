// mbarriers of the simulated GPU: barriers in shared memory that also count the bytes of asynchronous copies; the twin
// of common/ptx/mbarrier.hpp.
#pragma once

#include "common/sim/capability.hpp"
#include "common/sim/copy_engine.hpp"

namespace flash::sim {

/// 8 bytes of shared memory. Works in phases, which are numbered from 0: one completes when as many arrivals have come
/// as init() said and as many bytes as were expected, and the next begins.
class Mbarrier {
 public:
  /// For so many arrivals in each phase. By one thread; the others must not use it before a barrier after that.
  void init(int arrivals, Site site = Site::here()) {
    require_capability(80, "mbarrier.init", site);
    this_block().copy_engine().init(this, arrivals, site);
    state_ = std::uint64_t(arrivals);
  }
  /// One arrival. What the thread did so far comes before what those do who wait for the phase.
  void arrive(Site site = Site::here()) {
    require_capability(80, "mbarrier.arrive", site);
    this_block().copy_engine().arrive(this, 0, "mbarrier.arrive", site);
  }
  /// The same, and the phase waits for `bytes` bytes more.
  void arrive_expect_tx(int bytes, Site site = Site::here()) {
    require_capability(90, "mbarrier.arrive.expect_tx", site);
    this_block().copy_engine().arrive(this, bytes, "mbarrier.arrive.expect_tx", site);
  }
  /// Returns when the phase of this parity (0 for the first, 1 for the second, 0 for the third, ...) has completed: at
  /// once where the current phase has the other parity.
  void wait(unsigned parity, Site site = Site::here()) {
    require_capability(90, "mbarrier.try_wait", site);
    this_block().copy_engine().wait(this, parity, site);
  }
  /// Whether it has; asks once.
  bool try_wait(unsigned parity, Site site = Site::here()) {
    require_capability(90, "mbarrier.try_wait", site);
    return this_block().copy_engine().try_wait(this, parity, site);
  }

 private:
  std::uint64_t state_;  // the simulation keeps what matters elsewhere
};

/// fence.mbarrier_init.release.cluster: makes this thread's initialisations known to the copy engine; before the
/// barrier that lets others use the mbarriers.
inline void mbarrier_init_fence(Site site = Site::here()) {
  require_capability(90, "fence.mbarrier_init", site);
  this_block().copy_engine().fence_inits();
}

}  // namespace flash::sim
