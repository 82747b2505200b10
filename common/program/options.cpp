#include "common/program/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <type_traits>

#include "common/base/error.hpp"
#include "common/base/quote.hpp"
#include "common/program/file.hpp"

namespace flash {

namespace {

/// CLI11 reports some errors in several lines, and repeats what was given; a user gets one line of some length.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return shortened(text, 200);
}

/// Where a path leads: two paths to one place are the same text.
std::string place_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path place = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? path : place.string();
}

/// Matches a word among a few, with the choices in the help and in the error.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, T& value,
                        std::vector<std::pair<std::string, T>> choices, const std::string& help) {
  std::string names;
  for (const auto& [name, _] : choices) names += (names.empty() ? "" : "|") + name;
  return app
      .add_option_function<std::string>(
          flag,
          [&value, choices, flag, names](const std::string& word) {
            for (const auto& [name, choice] : choices) {
              if (name == word) {
                value = choice;
                return;
              }
            }
            throw UsageError(fmt::format("{} {}: use one of {}", flag, in_quotes(word), names));
          },
          help)
      ->type_name(names);
}

template <typename T>
struct NumberOf {
  using Type = T;
};
template <typename T>
struct NumberOf<std::optional<T>> {
  using Type = T;
};

/// A whole number in decimal. CLI11's own conversion takes -1 for an unsigned number and the nearest for one too large.
template <typename T>
CLI::Option* add_number(CLI::App& app, const std::string& flag, T& value, const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag,
          [&value, flag](const std::string& text) {
            typename NumberOf<T>::Type number{};
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, number);
            if (error == std::errc::result_out_of_range) {
              throw UsageError(fmt::format("{} {}: the number is too large", flag, in_quotes(text)));
            }
            if (error != std::errc() || stop != end) {
              throw UsageError(fmt::format("{} {}: use a whole number{}", flag, in_quotes(text),
                                           std::is_unsigned_v<decltype(number)> ? ", 0 or more" : ""));
            }
            value = number;
          },
          help)
      ->type_name("N");
}

}  // namespace

bool parse_command_line(CLI::App& app, const std::string& program, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{}; {} --help lists the options", one_line(error.what()), program));
  }
}

std::optional<Options> parse_options(const Program& program, int argc, const char* const* argv) {
  Options options;
  for (int i = 1; i < argc; ++i) options.arguments.emplace_back(argv[i]);
  CLI::App app{program.summary, program.name};
  app.get_formatter()->column_width(30);
  app.set_help_flag("-h,--help", "print this and exit");

  constexpr const char* kProblem = "Problem";
  const auto in_problem = [&](CLI::Option* option) { option->group(kProblem); };
  in_problem(add_number(app, "--batch", options.batch, "sequences (1)"));
  in_problem(add_number(app, "--heads", options.heads, "query heads (simulation 2, GPU 16)"));
  in_problem(add_number(app, "--kv-heads", options.kv_heads, "key/value heads, a divisor of --heads (as many)"));
  in_problem(add_number(app, "--seq", options.seq, "queries of a sequence (simulation 256, GPU 4096)"));
  in_problem(add_number(app, "--seq-kv", options.seq_kv, "keys of a sequence (as many as queries)"));
  in_problem(add_number(app, "--head-dim", options.head_dim, "elements of a head (simulation 64, GPU 128)"));
  in_problem(app.add_flag("--causal", options.causal,
                          "query i sees key j only when j <= i + keys - queries (aligned bottom-right)"));
  DType dtype = DType::fp16;
  CLI::Option* dtype_option =
      add_choice<DType>(app, "--dtype", dtype, {{"fp16", DType::fp16}, {"bf16", DType::bf16}}, "element type (fp16)");
  in_problem(dtype_option);
  in_problem(add_choice<Distribution>(app, "--distribution", options.distribution,
                                      {{"normal", Distribution::normal}, {"outliers", Distribution::outliers}},
                                      "random input: N(0,1), or with outliers as in FlashAttention-3 (normal)"));
  in_problem(add_number(app, "--seed", options.seed, "of the random input (0)"));
  const std::string file_help =
      ".npy file, [batch, seq, heads, dim], f2, f4, f8, or with --dtype bf16 the V2 that JAX saves; all three or none";
  in_problem(app.add_option("--q", options.q_path, file_help)->type_name("FILE"));
  in_problem(app.add_option("--k", options.k_path, "the same with --kv-heads heads")->type_name("FILE"));
  in_problem(app.add_option("--v", options.v_path, "the same as --k")->type_name("FILE"));

  constexpr const char* kRun = "Run";
  const auto in_run = [&](CLI::Option* option) { option->group(kRun); };
  if (program.chapter != nullptr) {
    const ChapterInfo& info = program.chapter->info;
    std::string variants;
    for (const Variant& variant : info.variants) {
      variants += fmt::format("\n{}: {}{}", variant.name, variant.summary, variant.gpu_only ? " (GPU only)" : "");
    }
    in_run(app.add_option("--variant", options.launch.variant,
                          fmt::format("which kernel ({}):{}", info.variants[0].name, variants))
               ->type_name("NAME"));
    if (!info.tiles.empty()) {
      std::string tiles;
      for (const TileShape& tile : info.tiles) tiles += fmt::format(" {}x{}", tile.block_q, tile.block_kv);
      in_run(add_number(app, "--block-q", options.launch.block_q,
                        fmt::format("queries of a tile; compiled (queries x keys):{}", tiles)));
      in_run(add_number(app, "--block-kv", options.launch.block_kv, "keys of a tile"));
    }
  }
  in_run(add_choice<DeviceChoice>(
      app, "--device", options.device,
      {{"auto", DeviceChoice::automatic}, {"gpu", DeviceChoice::gpu}, {"sim", DeviceChoice::sim}},
      "auto takes the GPU where there is one that can run this (auto)"));
  std::vector<std::pair<std::string, const GpuProfile*>> profiles;
  for (const GpuProfile& profile : gpu_profiles()) profiles.emplace_back(profile.name, &profile);
  in_run(add_choice<const GpuProfile*>(
      app, "--sim-gpu", options.sim_gpu, profiles,
      fmt::format("simulation: the GPU whose limits and instructions it has ({})", gpu_profiles()[0].name)));
  in_run(add_number(app, "--schedule-seed", options.schedule_seed,
                    "simulation: interleaves warps and completes asynchronous work by this seed; 0 in order (0)"));
  in_run(add_number(app, "--repeat", options.repeat, "timed launches on a GPU (30, fewer if slow)"));

  constexpr const char* kReport = "Report";
  const auto in_report = [&](CLI::Option* option) { option->group(kReport); };
  in_report(add_choice<CheckMode>(
      app, "--check", options.check,
      {{"sample", CheckMode::sample}, {"full", CheckMode::full}, {"off", CheckMode::off}},
      "rows compared with the fp64 reference; small problems are checked in full anyway (sample)"));
  in_report(add_choice<bool>(app, "--traffic", options.traffic, {{"on", true}, {"off", false}},
                             "read the GPU's byte counters (on)"));
  in_report(add_choice<bool>(app, "--ceilings", options.ceilings, {{"on", true}, {"off", false}},
                             "measure the GPU's copy and matrix rates for the roofline (on)"));
  if (program.chapter != nullptr) {
    in_report(
        app.add_option("--out", options.out_path, ".npy file for O: f2 for fp16, f4 for bf16")->type_name("FILE"));
    in_report(
        app.add_option("--lse", options.lse_path, ".npy file for LSE: f4 [batch, heads, seq]")->type_name("FILE"));
    if (!program.chapter->info.timeline.doing.empty()) {
      in_report(
          app.add_option("--timeline", options.timeline_path,
                         "file for what the warpgroups of a few blocks did when, by a launch of its own: Chrome's "
                         "trace format, for ui.perfetto.dev")
              ->type_name("FILE"));
    }
  }
  in_report(app.add_option("--json", options.json_path, "file for the report as JSON")->type_name("FILE"));

  if (!parse_command_line(app, program.name, argc, argv)) return std::nullopt;
  if (dtype_option->count() > 0) options.dtype = dtype;
  const auto at_least_one = [](const char* flag, const std::optional<std::int64_t>& value) {
    if (value && *value < 1) throw UsageError(fmt::format("{} {}: use 1 or more", flag, *value));
  };
  at_least_one("--batch", options.batch);
  at_least_one("--heads", options.heads);
  at_least_one("--kv-heads", options.kv_heads);
  at_least_one("--seq", options.seq);
  at_least_one("--seq-kv", options.seq_kv);
  at_least_one("--head-dim", options.head_dim);
  if (options.repeat && *options.repeat < 1)
    throw UsageError(fmt::format("--repeat {}: use 1 or more", *options.repeat));
  for (const char* flag : {"--q", "--k", "--v", "--out", "--lse", "--json", "--timeline"}) {
    const CLI::Option* option = app.get_option_no_throw(flag);
    if (option != nullptr && option->count() > 0 && option->as<std::string>().empty()) {
      throw UsageError(fmt::format("{}: the name of the file is empty", flag));
    }
  }
  // Each output is a file of its own, and none replaces an input.
  std::map<std::string, const char*> places;
  for (const auto& [flag, path] : {std::pair<const char*, const std::string&>{"--q", options.q_path},
                                   {"--k", options.k_path},
                                   {"--v", options.v_path}}) {
    if (!path.empty()) places.emplace(place_of(path), flag);
  }
  for (const auto& [flag, path] : {std::pair<const char*, const std::string&>{"--out", options.out_path},
                                   {"--lse", options.lse_path},
                                   {"--json", options.json_path},
                                   {"--timeline", options.timeline_path}}) {
    if (path.empty()) continue;
    const auto [before, is_new] = places.emplace(place_of(path), flag);
    if (!is_new) throw UsageError(fmt::format("{} and {} are the same file {}", before->second, flag, file_name(path)));
  }
  const int files = int(!options.q_path.empty()) + int(!options.k_path.empty()) + int(!options.v_path.empty());
  if (files != 0 && files != 3) throw UsageError("--q, --k and --v go together: give all three or none");
  return options;
}

}  // namespace flash
