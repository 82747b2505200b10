// Reports of runs: aligned text for people, JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/program/run.hpp"

namespace flash {

/// The report of one chapter. `before` is the chapter before it on the same problem, for the comparison; may be null.
/// `input` says where the tensors came from.
std::string text_report(const Chapter& chapter, const ChapterRun& run, const std::string& input,
                        const std::optional<Ceilings>& ceilings, const ChapterRun* before);

/// The stages side by side, one line each.
std::string text_comparison(const std::vector<ChapterRun>& runs, const std::optional<Ceilings>& ceilings);

nlohmann::json to_json(const ChapterRun& run);
nlohmann::json to_json(const Ceilings& ceilings);
nlohmann::json to_json(const Problem& problem);

/// Writes the JSON to a file that appears whole (common/program/file.hpp).
void write_json(const std::string& path, const nlohmann::json& json);

/// "16.8 MB"; powers of ten.
std::string bytes_text(double bytes);

}  // namespace flash
