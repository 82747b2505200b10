#include "tests/support/nonfinite.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "common/base/error.hpp"

namespace flash::test {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool may_leak(const Chapter& chapter, const LaunchOptions& options) {
  for (const NonfiniteException& e : kNonfiniteExceptions) {
    if (chapter.name == e.chapter && (*e.variant == '\0' || options.variant == e.variant)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> nonfinite_failures(const Chapter& chapter, const LaunchOptions& variant, Device& device) {
  std::vector<std::string> failures;
  for (const Problem& p :
       {Problem{2, 2, 1, 50, 70, 64, true, DType::fp16}, Problem{1, 2, 2, 21, 40, 64, false, DType::bf16},
        Problem{1, 1, 1, 90, 66, 128, true, DType::bf16},
        // Several tiles of keys, none of which but the last needs a mask.
        Problem{1, 1, 1, 9, 150, 64, false, DType::bf16}, Problem{1, 1, 1, 9, 270, 128, false, DType::fp16},
        Problem{1, 1, 1, 9, 150, 256, false, DType::bf16}}) {
    const LaunchOptions options = resolve(chapter, p, variant);
    const bool values_too = !(p.causal && may_leak(chapter, options));
    const Input clean = make_case_input({p, Placement::contiguous, Scores::normal, 11});
    const std::int64_t batch = p.batch - 1, kv_head = p.kv_heads - 1, dim = 5;
    const auto run = [&](const Input& input, const std::string& what) {
      // The check holds an output to be finite exactly where the reference is, and close to it there.
      const Outcome outcome =
          run_case(chapter, launch_of(chapter, device), options, device, input, Placement::contiguous);
      if (!outcome.failure.empty()) {
        failures.push_back(
            fmt::format("{}, {}, {}: {}", describe(chapter, options), p.describe(), what, outcome.failure));
      }
    };
    for (const std::int64_t key : {std::int64_t(0), std::int64_t(37), p.seq_kv - 1}) {
      for (const float bad : {kNan, kInfinity, -kInfinity}) {
        Input input = clean;
        input.k.set(batch, key, kv_head, dim, bad);  // infinity: a score of +inf or of -inf, by the query's sign
        run(input, fmt::format("{} in K row {}", bad, key));
        if (!values_too) continue;
        input = clean;
        input.v.set(batch, key, kv_head, dim, bad);
        run(input, fmt::format("{} in V row {}", bad, key));
      }
    }
    Input input = clean;
    if (values_too) {
      for (std::int64_t d = 0; d < p.head_dim; ++d) input.v.set(batch, p.seq_kv / 2, kv_head, d, kNan);
      run(input, "a V row of NaN");
      input = clean;
    }
    input.q.set(batch, p.seq_q - 3, p.heads - 1, dim, kNan);
    run(input, "NaN in a Q row");
    input = clean;
    input.q.set(batch, p.seq_q - 3, p.heads - 1, dim, kInfinity);
    run(input, "infinity in a Q row");
  }
  return failures;
}

}  // namespace flash::test
