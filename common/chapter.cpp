#include "common/chapter.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"

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

/// The first compiled tile that has the extents given; 0 stands for any.
TileShape choose_tile(const Chapter& chapter, const LaunchOptions& options) {
  const std::vector<TileShape>& tiles = chapter.info.tiles;
  if (tiles.empty()) {
    if (options.block_q == 0 && options.block_kv == 0) return {0, 0};
    throw UsageError(fmt::format("{} has no tiles to choose: leave --block-q and --block-kv out", chapter.name));
  }
  const auto tile = std::find_if(tiles.begin(), tiles.end(), [&](const TileShape& t) {
    return (options.block_q == 0 || options.block_q == t.block_q) &&
           (options.block_kv == 0 || options.block_kv == t.block_kv);
  });
  if (tile != tiles.end()) return *tile;
  std::string asked;
  if (options.block_q != 0) asked += fmt::format(" --block-q {}", options.block_q);
  if (options.block_kv != 0) asked += fmt::format(" --block-kv {}", options.block_kv);
  std::vector<std::string> compiled;
  for (const TileShape& t : tiles) compiled.push_back(fmt::format("{}x{}", t.block_q, t.block_kv));
  throw UsageError(
      fmt::format("{} has no tile with{}: use {} (block-q x block-kv)", chapter.name, asked, join_choices(compiled)));
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
  throw UsageError(fmt::format("{} has no variant '{}': use --variant {}", name, variant_name, join_choices(names)));
}

LaunchOptions resolve(const Chapter& chapter, const Problem& problem, LaunchOptions options) {
  problem.validate();
  if (options.variant.empty()) options.variant = chapter.info.variants.at(0).name;
  chapter.variant(options.variant);
  const TileShape tile = choose_tile(chapter, options);
  options.block_q = tile.block_q;
  options.block_kv = tile.block_kv;
  const std::string refusal = chapter.info.refusal ? chapter.info.refusal(problem, options) : std::string();
  if (!refusal.empty()) throw UsageError(refusal);
  return options;
}

}  // namespace flash
