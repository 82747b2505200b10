// Asynchronous copies (cp.async) of the simulated GPU; the twin of common/ptx/cp_async.hpp. Issuing a copy only
// records it: the block's scheduler decides when it happens.
#pragma once

#include "common/sim/capability.hpp"
#include "common/sim/views.hpp"

namespace flash::sim {

/// Copies 16 bytes from global to shared memory, past L1 (cp.async.cg).
inline void cp_async_16(SharedAddress to, GlobalAddress from, Site site = Site::here()) {
  require_capability(80, "cp.async", site);
  this_block().read_global(from.place, from.data, 16, site);
  this_block().issue_copy(to.data, from.data, 16, 16, to.place, site);
}

/// Zeroes 16 bytes of shared memory in the same stream of copies (cp.async.cg with a source size of 0).
inline void cp_async_zero_16(SharedAddress to, Site site = Site::here()) {
  require_capability(80, "cp.async", site);
  this_block().issue_copy(to.data, nullptr, 0, 16, to.place, site);
}

/// Closes the group of copies that this thread issued since the last commit.
inline void cp_async_commit(Site site = Site::here()) {
  require_capability(80, "cp.async.commit_group", site);
  this_block().commit_copies();
}

/// Waits until at most `Pending` of this thread's newest groups are incomplete. Says nothing about other threads'
/// copies: a barrier must follow before their data is read.
template <int Pending>
inline void cp_async_wait(Site site = Site::here()) {
  require_capability(80, "cp.async.wait_group", site);
  this_block().wait_copies(Pending);
}

}  // namespace flash::sim
