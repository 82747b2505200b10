// Which instructions the simulated GPU's architecture has. The numbers are the "Target ISA Notes" of the PTX manual;
// ptxas refuses the same ones.
#pragma once

#include "common/sim/block.hpp"

namespace flash::sim {

/// Ends the run: see require_capability.
[[noreturn]] void missing_instruction(int needed, bool exactly, const char* instruction, Site site);

/// An instruction of GPUs from compute capability `needed` (10·major + minor) on. Others end the run with the fault
/// "missing instruction".
inline void require_capability(int needed, const char* instruction, Site site) {
  if (this_block().gpu().limits.capability < needed) [[unlikely]]
    missing_instruction(needed, false, instruction, site);
}

/// An instruction of GPUs of this compute capability alone, as Hopper's wgmma is.
inline void require_exact_capability(int needed, const char* instruction, Site site) {
  if (this_block().gpu().limits.capability != needed) [[unlikely]]
    missing_instruction(needed, true, instruction, site);
}

}  // namespace flash::sim
