// Copies of whole boxes between global and shared memory by the copy engine (TMA, cp.async.bulk.tensor) of the
// simulated GPU; the twin of common/ptx/tma.hpp. Each is called by one thread. Coordinates are those of the box's first
// element, the innermost first; what lies outside the tensor is zero where it is loaded and left out where it is
// stored. What hardware does at coordinates that it does not take, and where a row ends within 16 bytes, was measured
// and stands in common/ptx/tma.hpp; here the first is the fault "bad coordinates", and the second is done, or is "out
// of bounds" where those 16 bytes reach beyond the memory that the tensor lies in.
#pragma once

#include "common/sim/mbarrier.hpp"
#include "common/sim/views.hpp"

namespace flash::sim {

/// What L2 should keep; of no effect here.
enum class L2Hint { none, evict_first, evict_last };

/// Copies a box to shared memory, at a multiple of 128 bytes; `barrier` counts its bytes when they are there, all of
/// the box's, whether inside the tensor or not.
template <int Rank>
void tma_load(SharedAddress to, const TensorMap& map, const int (&coordinates)[Rank], Mbarrier& barrier,
              [[maybe_unused]] L2Hint hint = L2Hint::none, Site site = Site::here()) {
  require_capability(90, "cp.async.bulk.tensor", site);
  this_block().copy_engine().load(to.data, map, coordinates, Rank, &barrier, site);
}

/// Copies a box from shared memory, at a multiple of 128 bytes, with the elements outside that share 16 bytes with one
/// inside. What plain stores wrote there needs an async_proxy_fence() before.
template <int Rank>
void tma_store(const TensorMap& map, const int (&coordinates)[Rank], SharedAddress from, Site site = Site::here()) {
  require_capability(90, "cp.async.bulk.tensor", site);
  this_block().copy_engine().store(map, coordinates, Rank, from.data, site);
}

/// Closes the group of stores that this thread issued since the last commit.
inline void tma_store_commit(Site site = Site::here()) {
  require_capability(90, "cp.async.bulk.commit_group", site);
  this_block().copy_engine().commit_stores();
}

/// Waits until all but the newest `Pending` groups of this thread's stores have read their sources, which may then be
/// overwritten. A thread must do so before it ends.
template <int Pending>
void tma_store_wait_read(Site site = Site::here()) {
  require_capability(90, "cp.async.bulk.wait_group.read", site);
  this_block().copy_engine().wait_stores(Pending, false, site);
}

/// The same until they have written to global memory too.
template <int Pending>
void tma_store_wait(Site site = Site::here()) {
  require_capability(90, "cp.async.bulk.wait_group", site);
  this_block().copy_engine().wait_stores(Pending, true, site);
}

/// Fetches the map itself ahead of its first use; of no effect here.
inline void tma_prefetch_map(const TensorMap&, Site site = Site::here()) {
  require_capability(90, "prefetch.tensormap", site);
}

/// fence.proxy.async.shared::cta: what this thread wrote to shared memory, or knows to have been written, is there for
/// TMA stores and wgmma that come after.
inline void async_proxy_fence(Site site = Site::here()) {
  require_capability(90, "fence.proxy.async", site);
  this_block().fence_proxy();
}

}  // namespace flash::sim
