#include "common/sim/capability.hpp"

#include <fmt/format.h>

namespace flash::sim {

void missing_instruction(int needed, bool exactly, const char* instruction, Site site) {
  Block& block = this_block();
  const int has = block.gpu().limits.capability;
  block.fault("missing instruction",
              fmt::format("{} needs compute capability {}.{}{}; this GPU, the {}, has {}.{}", instruction, needed / 10,
                          needed % 10, exactly ? " exactly" : "", block.gpu().title, has / 10, has % 10),
              site);
}

}  // namespace flash::sim
