#include "common/base/chapter.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.hpp"
#include "common/base/quote.hpp"

namespace flash {
namespace {

/// "a", "a or b", "a, b or c".
std::string join_choices(const std::vector<std::string>& choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += choices[i];
  }
  return text;
}

std::string refusal_of(const Chapter& chapter, const Problem& problem, const LaunchOptions& options) {
  return chapter.info.refusal ? chapter.info.refusal(problem, options) : std::string();
}

/// Empty if a block finds the shared memory that it takes.
std::string shared_refusal(const Chapter& chapter, const Problem& problem, const LaunchOptions& options,
                           const DeviceLimits& limits) {
  if (!chapter.info.shared_bytes) return "";
  const std::size_t needed = chapter.info.shared_bytes(problem, options);
  if (needed <= limits.shared_bytes) return "";
  const std::string tile =
      options.block_q == 0 ? "" : fmt::format(" with tiles of {} by {}", options.block_q, options.block_kv);
  return fmt::format("{} {}{} takes {:.1f} KB of shared memory for a block at head-dim {}; this device has {:.1f}",
                     chapter.name, options.variant, tile, double(needed) / 1024, problem.head_dim,
                     double(limits.shared_bytes) / 1024);
}

/// The first compiled tile that has the extents asked for (0 stands for any) and that the chapter takes for the
/// problem.
///
/// Throws UsageError where there is none, DeviceError where it is the device that has no room for it.
LaunchOptions with_tile(const Chapter& chapter, const Problem& problem, LaunchOptions options,
                        const DeviceLimits& limits) {
  std::vector<TileShape> tiles = chapter.info.tiles;
  if (chapter.info.preferred_tile) {
    const TileShape preferred = chapter.info.preferred_tile(problem);
    std::stable_partition(tiles.begin(), tiles.end(), [&](const TileShape& t) {
      return t.block_q == preferred.block_q && t.block_kv == preferred.block_kv;
    });
  }
  if (tiles.empty()) {
    if (options.block_q == 0 && options.block_kv == 0) {
      const std::string no_room = shared_refusal(chapter, problem, options, limits);
      if (!no_room.empty()) throw DeviceError(no_room);
      return options;
    }
    throw UsageError(fmt::format("{} has no tiles to choose: leave --block-q and --block-kv out", chapter.name));
  }
  std::string refusal;  // of the first tile asked for, or else of the first
  std::string no_room;  // of the last tile asked for that the chapter takes: the smallest
  bool asked_for = false;
  std::vector<std::string> taken;
  for (const TileShape& t : tiles) {
    LaunchOptions candidate = options;
    candidate.block_q = t.block_q;
    candidate.block_kv = t.block_kv;
    const bool matches = (options.block_q == 0 || options.block_q == t.block_q) &&
                         (options.block_kv == 0 || options.block_kv == t.block_kv);
    const std::string tile_refusal = refusal_of(chapter, problem, candidate);
    if (matches && tile_refusal.empty()) {
      no_room = shared_refusal(chapter, problem, candidate, limits);
      if (no_room.empty()) return candidate;
    }
    if (tile_refusal.empty()) taken.push_back(fmt::format("{}x{}", t.block_q, t.block_kv));
    if (refusal.empty() || (matches && !asked_for)) refusal = tile_refusal;
    asked_for |= matches;
  }
  if (!no_room.empty()) throw DeviceError(no_room);
  if (asked_for || taken.empty()) throw UsageError(refusal);
  std::string asked;
  if (options.block_q != 0) asked += fmt::format(" --block-q {}", options.block_q);
  if (options.block_kv != 0) asked += fmt::format(" --block-kv {}", options.block_kv);
  throw UsageError(
      fmt::format("{} has no tile with{}: use {} (block-q x block-kv)", chapter.name, asked, join_choices(taken)));
}

}  // namespace

std::int64_t Traffic::read() const {
  std::int64_t bytes = 0;
  for (const TensorTraffic& tensor : tensors) bytes += tensor.read;
  return bytes;
}

std::int64_t Traffic::written() const {
  std::int64_t bytes = 0;
  for (const TensorTraffic& tensor : tensors) bytes += tensor.written;
  return bytes;
}

void Traffic::add(const std::string& tensor, std::int64_t read, std::int64_t written) {
  const auto line =
      std::find_if(tensors.begin(), tensors.end(), [&](const TensorTraffic& t) { return t.tensor == tensor; });
  if (line == tensors.end()) {
    tensors.push_back({tensor, read, written});
  } else {
    line->read += read;
    line->written += written;
  }
}

const Variant& Chapter::variant(const std::string& variant_name) const {
  for (const Variant& v : info.variants) {
    if (v.name == variant_name) return v;
  }
  std::vector<std::string> names;
  for (const Variant& v : info.variants) names.push_back(v.name);
  throw UsageError(
      fmt::format("{} has no variant {}: use --variant {}", name, in_quotes(variant_name), join_choices(names)));
}

std::string needs_text(const Needs& needs) {
  return fmt::format("compute capability {}{}{}", capability_text(needs.capability),
                     needs.exactly ? " exactly" : " or higher",
                     needs.why.empty() ? "" : fmt::format(" ({})", needs.why));
}

std::string capability_refusal(const Chapter& chapter, const DeviceLimits& limits) {
  const Needs& needs = chapter.info.needs;
  if (limits.capability == needs.capability || (!needs.exactly && limits.capability > needs.capability)) return "";
  return fmt::format("{} needs a GPU of {}; this one has {}", chapter.name, needs_text(needs),
                     capability_text(limits.capability));
}

LaunchOptions resolve(const Chapter& chapter, const Problem& problem, LaunchOptions options,
                      const DeviceLimits& limits) {
  problem.validate();
  if (options.variant.empty()) options.variant = chapter.info.variants.at(0).name;
  chapter.variant(options.variant);
  const std::string wrong_gpu = capability_refusal(chapter, limits);
  if (!wrong_gpu.empty()) throw DeviceError(wrong_gpu);
  options = with_tile(chapter, problem, options, limits);
  const std::string refusal = refusal_of(chapter, problem, options);
  if (!refusal.empty()) throw UsageError(refusal);
  return options;
}

}  // namespace flash
