// What the simulated GPU counted beside what a chapter predicts.
#pragma once

#include <string>
#include <vector>

#include "common/base/chapter.hpp"
#include "common/device/counters.hpp"

namespace flash {

/// Where the counted bytes are not the predicted ones, a line for each tensor and direction: sums could hide two
/// errors.
std::vector<std::string> differences(const sim::Counters& counted, const Traffic& predicted);

/// The same for bank conflicts, by kind of access.
std::vector<std::string> differences(const sim::Counters& counted, const BankConflicts& predicted);

/// What the chapter predicts for the launch.
BankConflicts predicted_bank_conflicts(const ChapterInfo& chapter, const Problem& problem,
                                       const LaunchOptions& options);

}  // namespace flash
