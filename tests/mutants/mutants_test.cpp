// Each mutant is caught by what its file names, and the kernel without the bug is not.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "common/base/error.hpp"
#include "common/sim/machine.hpp"
#include "reference/check.hpp"
#include "tests/catch.hpp"
#include "tests/mutants/mutant.hpp"
#include "tests/support/attention.hpp"

using namespace flash;
using namespace flash::test;

namespace {

struct Setting {
  Case c;
  LaunchOptions options;
  std::uint64_t schedule_seed = 0;
  GpuProfile gpu = gpu_profiles()[0];
};

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' '), last = text.find_last_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

Scores scores_named(const std::string& name) {
  for (const Scores scores : kSpecialScores) {
    if (name == to_string(scores)) return scores;
  }
  throw std::runtime_error("no kind of scores is named '" + name + "'");
}

/// Reads "seq 77, causal, scores growing".
Setting parse_problem(const Mutant& mutant) {
  Setting setting;
  setting.options.variant = mutant.variant;
  Problem& p = setting.c.problem;
  p.seq_q = p.seq_kv = 0;
  std::istringstream items(mutant.problem);
  for (std::string item; std::getline(items, item, ',');) {
    item = trimmed(item);
    if (item.empty()) continue;
    const std::string key = item.substr(0, item.find(' ')), value = trimmed(item.substr(key.size()));
    const auto number = [&] {
      std::size_t used = 0;
      const long long n = value.empty() ? 0 : std::stoll(value, &used);
      if (value.empty() || used != value.size()) throw std::runtime_error("'" + item + "' needs a number");
      return std::int64_t(n);
    };
    if (key == "batch") {
      p.batch = number();
    } else if (key == "heads") {
      p.heads = number();
      p.kv_heads = std::max<std::int64_t>(p.kv_heads, 1);
    } else if (key == "kv-heads") {
      p.kv_heads = number();
    } else if (key == "seq") {
      p.seq_q = number();
    } else if (key == "seq-kv") {
      p.seq_kv = number();
    } else if (key == "head-dim") {
      p.head_dim = number();
    } else if (key == "causal") {
      p.causal = true;
    } else if (key == "scores") {
      setting.c.scores = scores_named(value);
    } else if (key == "block-q") {
      setting.options.block_q = int(number());
    } else if (key == "block-kv") {
      setting.options.block_kv = int(number());
    } else if (key == "processors") {
      setting.gpu.processors = int(number());
    } else if (key == "schedule-seed") {
      setting.schedule_seed = std::uint64_t(number());
    } else {
      throw std::runtime_error("'" + item + "' is nothing that a problem has");
    }
  }
  if (p.seq_q == 0) p.seq_q = 64;
  if (p.seq_kv == 0) p.seq_kv = p.seq_q;
  return setting;
}

/// What caught the kernel: "check", "traffic", "conflicts", "fault: <kind>", or nothing. `report` receives the first
/// line of it.
std::string caught_by(const Chapter& chapter, LaunchFunction launch, const Setting& setting, std::string* report) {
  sim::Machine machine(setting.schedule_seed, 0, setting.gpu);
  const LaunchOptions options = resolve(chapter, setting.c.problem, setting.options);
  const Input input = make_case_input(setting.c);
  try {
    for (const auto& [name, what] : {std::pair<const char*, Expectations>{"check", {true, false, false}},
                                     {"traffic", {false, true, false}},
                                     {"conflicts", {false, false, true}}}) {
      const Outcome outcome = run_case(chapter, launch, options, machine, input, setting.c.placement, what);
      *report = outcome.failure;
      if (!outcome.failure.empty()) return name;
    }
  } catch (const Fault& fault) {
    *report = fault.what();
    return "fault: " + fault.kind;
  }
  return "";
}

}  // namespace

TEST_CASE("every seeded bug is caught by what must catch it", "[mutants]") {
  std::vector<Mutant> list = mutants();
  std::sort(list.begin(), list.end(), [](const Mutant& a, const Mutant& b) { return a.file < b.file; });
  for (const Chapter* chapter : chapters_under_test()) {
    int tried = 0;
    for (const Mutant& mutant : list) {
      if (mutant.chapter != chapter->name) continue;
      INFO(mutant.file << ": " << mutant.what);
      ++tried;
      CHECK(mutant.not_applied == "");
      if (!mutant.not_applied.empty()) continue;
      const Setting setting = parse_problem(mutant);
      {
        sim::Machine machine(setting.schedule_seed, 0, setting.gpu);
        const LaunchOptions options = resolve(*chapter, setting.c.problem, setting.options);
        CHECK(run_case(*chapter, launch_of(*chapter, machine), options, machine, make_case_input(setting.c),
                       setting.c.placement)
                  .failure == "");
      }
      std::string report;
      const std::string caught = caught_by(*chapter, mutant.launch, setting, &report);
      INFO(report);
      CHECK(caught == mutant.expect);
      fmt::print("{}: {} ({})\n", mutant.file, caught, report.substr(0, report.find('\n')));
    }
    fmt::print("{}: {} mutants\n", chapter->name, tried);
  }
}
