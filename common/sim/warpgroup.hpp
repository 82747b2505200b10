// What warps of Hopper have beside products: registers that warpgroups pass on, one lane for a job, a clock; the twin
// of common/ptx/warpgroup.hpp.
#pragma once

#include <fmt/format.h>

#include "common/sim/capability.hpp"
#include "common/sim/warpgroup_unit.hpp"

namespace flash::sim {

/// setmaxnreg.inc: each thread of this warpgroup may use `Count` registers, a multiple of 8 from 24 to 256 and no less
/// than it has. Waits until others have given up enough.
template <int Count>
void increase_registers(Site site = Site::here()) {
  require_exact_capability(90, "setmaxnreg", site);
  this_block().warpgroup_unit().set_registers(Count, true, site);
}

/// setmaxnreg.dec: gives up what a thread has beyond `Count`, a multiple of 8 from 24 to 256 and no more than it has.
template <int Count>
void decrease_registers(Site site = Site::here()) {
  require_exact_capability(90, "setmaxnreg", site);
  this_block().warpgroup_unit().set_registers(Count, false, site);
}

/// elect.sync over the whole warp: true in one of its lanes; here the first.
inline bool elect_one(Site site = Site::here()) {
  require_capability(90, "elect.sync", site);
  bool mine = false;
  this_block().meet_aligned("elect_one", mine, site, [](bool** lanes) { *lanes[0] = true; });
  return mine;
}

/// `value`, which must be the same in all lanes: a promise that lets a GPU's compiler keep what follows from it in
/// uniform registers.
inline int uniform(int value, Site site = Site::here()) {
  int mine = value;
  this_block().meet_aligned("uniform", mine, site, [&](int** lanes) {
    for (int lane = 1; lane < 32; ++lane) {
      if (lanes[lane] != nullptr && *lanes[lane] != *lanes[0]) {
        this_block().fault("not uniform",
                           fmt::format("lane 0 has {} and lane {} has {}", *lanes[0], lane, *lanes[lane]), site);
      }
    }
  });
  return value;
}

/// Clocks of the SM on a GPU; here a number that grows with each event of the block.
inline std::uint32_t clock_stamp() { return this_block().clock_stamp(); }

}  // namespace flash::sim
