#include "common/sim/access_log.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace flash::sim {

namespace {

/// One warp-wide access: `count` lanes' entries from one place.
void count_one(const Access* const* lanes, int count, Counters& counters) {
  const Access& first = *lanes[0];
  if (first.kind <= AccessKind::global_atomic) {
    std::uintptr_t sectors[64 * 2];
    int touched = 0;
    std::int64_t useful = 0;
    bool ascending = true;
    for (int i = 0; i < count; ++i) {
      const std::uintptr_t from = lanes[i]->address / 32, to = (lanes[i]->address + lanes[i]->bytes - 1) / 32;
      for (std::uintptr_t sector = from; sector <= to; ++sector) {
        if (touched > 0 && sectors[touched - 1] == sector) continue;
        if (touched > 0 && sectors[touched - 1] > sector) ascending = false;
        sectors[touched++] = sector;
      }
      useful += lanes[i]->bytes;
    }
    if (!ascending) {
      std::sort(sectors, sectors + touched);
      touched = int(std::unique(sectors, sectors + touched) - sectors);
    }
    TensorCounters& tensor = counters.tensors[std::size_t(first.tensor)];
    if (first.kind == AccessKind::global_read) {
      tensor.read_sectors += touched;
      tensor.read_requests += 1;
      tensor.useful_bytes_read += useful;
    } else if (first.kind == AccessKind::global_write) {
      tensor.written_sectors += touched;
      tensor.written_requests += 1;
      tensor.useful_bytes_written += useful;
    } else {
      tensor.atomic_sectors += touched;
    }
    return;
  }
  std::uintptr_t offsets[32];
  SharedCounters& shared = counters.shared[std::size_t(first.kind) - std::size_t(AccessKind::shared_load)];
  for (int i = 0; i < count; ++i) {
    offsets[i] = lanes[i]->address;
    shared.bytes += lanes[i]->bytes;
  }
  shared.accesses += 1;
  shared.bank_conflicts += bank_conflicts(offsets, count, first.bytes);
}

}  // namespace

int bank_conflicts(const std::uintptr_t* offsets, int lanes, int bytes) {
  const int words_each = std::max(1, bytes / 4);
  const int lanes_at_once = 32 / words_each;
  int conflicts = 0;
  for (int start = 0; start < lanes; start += lanes_at_once) {
    const int end = std::min(lanes, start + lanes_at_once);
    std::uintptr_t words[32];
    int count = 0;
    for (int lane = start; lane < end; ++lane) {
      for (int w = 0; w < words_each; ++w) words[count++] = offsets[lane] / 4 + std::uintptr_t(w);
    }
    std::sort(words, words + count);
    count = int(std::unique(words, words + count) - words);
    int per_bank[32] = {}, most = 0;
    for (int i = 0; i < count; ++i) most = std::max(most, ++per_bank[words[i] % 32]);
    conflicts += most - 1;
  }
  return conflicts;
}

SiteTable::SiteTable() : sites_(1), table_(1024) {}

std::size_t SiteTable::slot(Site site, SiteId caller) const {
  const std::uintptr_t key = reinterpret_cast<std::uintptr_t>(site.file) / 8 + std::uintptr_t(site.line) +
                             std::uintptr_t(caller) * 0x9e3779b1u;
  for (std::size_t at = key;; ++at) {
    at &= table_.size() - 1;
    const SiteId id = table_[at];
    if (id == 0 || (sites_[id].caller == caller && sites_[id].site == site)) return at;
  }
}

SiteId SiteTable::id(Site site, SiteId caller) {
  const std::size_t at = slot(site, caller);
  if (table_[at] != 0) return table_[at];
  if (sites_.size() > kCapacity) throw std::length_error("too many source places in one kernel");
  const auto id = SiteId(sites_.size());
  sites_.push_back({site, caller, caller == 0 ? id : sites_[caller].outermost, sites_[caller].depth + 1});
  table_[at] = id;
  if (sites_.size() > table_.size() / 2) {
    table_.assign(table_.size() * 2, 0);
    for (std::size_t i = 1; i < sites_.size(); ++i) table_[slot(sites_[i].site, sites_[i].caller)] = SiteId(i);
  }
  return id;
}

bool SiteTable::before(SiteId a, SiteId b) const {
  while (sites_[a].depth > sites_[b].depth) a = sites_[a].caller;
  while (sites_[b].depth > sites_[a].depth) b = sites_[b].caller;
  while (sites_[a].caller != sites_[b].caller) a = sites_[a].caller, b = sites_[b].caller;
  const Site &x = sites_[a].site, &y = sites_[b].site;
  if (x.file != y.file) {
    if (const int order = std::strcmp(x.file, y.file); order != 0) return order < 0;
  }
  return x.line < y.line;
}

namespace {

bool same_instruction(const Access& a, const Access& b) {
  return a.site == b.site && a.kind == b.kind && a.tensor == b.tensor;
}

/// Whether a lane whose log goes on from `next` to `end` comes to the instruction of `place`.
bool comes_to(const Access& place, const Access* next, const Access* end) {
  return std::any_of(next, end, [&](const Access& a) { return same_instruction(a, place); });
}

}  // namespace

void count_accesses(AccessLog* const (&logs)[32], std::uint32_t open, const SiteTable& sites, Counters& counters) {
  const Access* next[32];
  const Access* end[32];
  int active[32], lanes = 0;  // lanes with something left
  bool open_lane_used_up = false;
  for (int lane = 0; lane < 32; ++lane) {
    next[lane] = end[lane] = nullptr;
    if (logs[lane] == nullptr) continue;
    next[lane] = logs[lane]->entries.data();
    end[lane] = next[lane] + logs[lane]->entries.size();
    if (next[lane] != end[lane]) {
      active[lanes++] = lane;
    } else if (open >> lane & 1u) {
      open_lane_used_up = true;
    }
  }
  const Access* group[32] = {};
  while (lanes > 0 && !open_lane_used_up) {
    int leading = active[0];
    for (int i = 1; i < lanes; ++i) {
      const int lane = active[i];
      if (next[lane]->site == next[leading]->site) continue;
      // A lane that skipped something waits for those that come to where it is. Where each comes to the other's place,
      // or neither does, the order is that of the source.
      const bool comes = comes_to(*next[leading], next[lane], end[lane]);
      const bool awaited = comes_to(*next[lane], next[leading], end[leading]);
      if (comes != awaited ? comes : sites.before(next[lane]->site, next[leading]->site)) leading = lane;
    }
    const Access* leader = next[leading];
    int count = 0, left = 0;
    for (int i = 0; i < lanes; ++i) {
      const int lane = active[i];
      const Access* mine = next[lane];
      if (same_instruction(*mine, *leader)) {
        group[count++] = mine;
        ++next[lane];
      }
      if (next[lane] != end[lane]) {
        active[left++] = lane;
      } else if (open >> lane & 1u) {
        open_lane_used_up = true;
      }
    }
    lanes = left;
    count_one(group, count, counters);
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (logs[lane] == nullptr) continue;
    std::vector<Access>& entries = logs[lane]->entries;
    if (next[lane] == end[lane]) {
      entries.clear();
    } else {
      entries.erase(entries.begin(), entries.begin() + (next[lane] - entries.data()));
    }
  }
}

}  // namespace flash::sim
