// Turns the accesses of single threads back into the warp-wide accesses that hardware performs.
//
// The lanes of a warp run one after another here, so each keeps a short log; when the whole warp waits, the logs are
// matched: accesses of different lanes from the same source line, the n-th with the n-th, are one warp-wide
// instruction. Where lanes have diverged, those go first that come to where the others wait, which is how a GPU
// reconverges structured code; in a loop both come to each other's place, and the earlier source line goes first.
#pragma once

#include <cstdint>
#include <vector>

#include "common/device/counters.hpp"
#include "common/sim/site.hpp"

namespace flash::sim {

enum class AccessKind : std::uint8_t {
  global_read,
  global_write,
  global_atomic,
  shared_load,
  shared_store,
  shared_ldmatrix,
  shared_stmatrix,
  shared_cp_async,
};

constexpr AccessKind access_kind(SharedAccess kind) {
  return AccessKind(std::uint8_t(AccessKind::shared_load) + std::uint8_t(kind));
}

struct Access {
  std::uintptr_t address;  // global: the address; shared: the byte offset
  SiteId site;
  AccessKind kind;
  std::uint8_t bytes;
  std::int32_t tensor;  // tensor_slot of a global access
};

struct AccessLog {
  static constexpr std::size_t kCapacity = 256;
  std::vector<Access> entries;
};

/// Numbers the source places that a block has seen, each with the chain of places from which it was called.
class SiteTable {
 public:
  SiteTable();
  SiteId id(Site site, SiteId caller);
  Site site(SiteId id) const { return sites_[id].site; }
  /// The first of the chain: where the chapter called what led to the place, or the place itself.
  Site outermost(SiteId id) const { return sites_[sites_[id].outermost].site; }
  /// Whether the program comes to `a` before `b`, as far as lines tell.
  bool before(SiteId a, SiteId b) const;
  /// So many can be told apart.
  static constexpr std::size_t kCapacity = 65535;
  std::size_t size() const { return sites_.size(); }

 private:
  struct Called {
    Site site;
    SiteId caller = 0, outermost = 0;
    int depth = 0;
  };
  std::size_t slot(Site site, SiteId caller) const;

  std::vector<Called> sites_;  // sites_[0] is "unknown"
  std::vector<SiteId> table_;  // of a power of two, by a hash of place and caller
};

/// Matches the logs of one warp's lanes (null for lanes without one), counts, and empties them. The lanes of `open` are
/// in the middle of what they do: what the others have left in their logs when one of these is used up stays there,
/// because the lane's next access may belong to it.
void count_accesses(AccessLog* const (&logs)[32], std::uint32_t open, const SiteTable& sites, Counters& counters);

/// Wavefronts that one warp-wide shared access needs beyond the fewest possible: lane i accesses bytes[i] at
/// offset[i]; accesses of 16 bytes are answered eight lanes at a time, of 8 bytes sixteen at a time.
int bank_conflicts(const std::uintptr_t* offsets, int lanes, int bytes);

}  // namespace flash::sim
