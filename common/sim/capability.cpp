#include "common/sim/capability.hpp"

#include <fmt/format.h>

namespace flash::sim {

void missing_instruction(int needed, bool exactly, const char* instruction, Site site) {
  Block& block = this_block();
  block.fault(
      "missing instruction",
      fmt::format("{} needs compute capability {}{}; this GPU, the {}, has {}", instruction, capability_text(needed),
                  exactly ? " exactly" : "", block.gpu().title, capability_text(block.gpu().limits.capability)),
      site);
}

}  // namespace flash::sim
