// Measures every chapter and variant over a list of sizes on a GPU and writes what docs/make_tables.py makes its tables
// from: check, times, bytes moved beside their predictions, and the circumstances (driver, clocks, commit).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "common/base/error.hpp"
#include "common/base/quote.hpp"
#include "common/program/file.hpp"
#include "common/program/options.hpp"
#include "common/program/report.hpp"
#include "common/program/run.hpp"

#ifndef FLASH_TOOLKIT  // the CUDA toolkit's version, from CMake
#define FLASH_TOOLKIT ""
#endif

namespace flash {
namespace {

using nlohmann::json;

struct Settings {
  std::vector<std::string> sizes;
  bool quick = false;
  bool print_sizes = false;
  std::string dtype = "fp16";
  std::string out;
  std::string commit;
  double limit_ms = 2000;
  std::int64_t traffic_up_to = 8192;
};

/// "b,h,hkv,nq,nk,d,causal", the last 0, 1, full or causal; docs/peers.py takes the same.
Problem parse_size(const std::string& text, DType dtype) {
  const auto malformed = [&]() -> UsageError {
    return UsageError("--sizes " + in_quotes(text) + ": use b,h,hkv,nq,nk,d,causal, as 1,16,16,4096,4096,128,full");
  };
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.size() != 7) throw malformed();
  std::array<std::int64_t, 6> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::string& word = words[i];
    const bool digits = std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (word.empty() || word.size() > 18 || !digits) throw malformed();
    numbers[i] = std::stoll(word);
  }
  const bool causal = words[6] == "1" || words[6] == "causal";
  if (!causal && words[6] != "0" && words[6] != "full") throw malformed();
  Problem p{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], causal, dtype};
  p.validate();
  return p;
}

std::string size_text(const Problem& p) {
  return fmt::format("{},{},{},{},{},{},{}", p.batch, p.heads, p.kv_heads, p.seq_q, p.seq_kv, p.head_dim,
                     p.causal ? "causal" : "full");
}

/// The sizes of the usual figures: batch·seq = 16384, heads·head_dim = 2048; two more for the traffic tables.
std::vector<Problem> default_sizes(bool quick, DType dtype) {
  std::vector<Problem> sizes;
  const std::vector<std::int64_t> seqs =
      quick ? std::vector<std::int64_t>{1024} : std::vector<std::int64_t>{512, 1024, 2048, 4096, 8192, 16384};
  for (const std::int64_t d : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t n : seqs) {
        sizes.push_back({16384 / n, 2048 / d, 2048 / d, n, n, d, causal, dtype});
      }
    }
  }
  if (!quick) {
    sizes.push_back({1, 16, 16, 4096, 4096, 128, false, dtype});
    sizes.push_back({16, 16, 16, 4096, 4096, 128, false, dtype});
  }
  return sizes;
}

/// What a command prints, without its last newline; empty if it fails.
std::string output_of(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 4096> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), n);
  if (pclose(pipe) != 0) return "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// Fields of nvidia-smi by name; null where it does not answer.
json ask_nvidia_smi(const std::vector<std::string>& fields) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string id = visible == nullptr ? "" : visible;
  id = id.substr(0, id.find(','));
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; };
  if (id.empty() || !std::all_of(id.begin(), id.end(), plain)) id = "0";
  std::string query;
  for (const std::string& field : fields) query += (query.empty() ? "" : ",") + field;
  const std::string line = output_of(fmt::format("nvidia-smi --id={} --query-gpu={} --format=csv,noheader", id, query));
  if (line.empty()) return nullptr;
  json values = json::object();
  std::size_t begin = 0;
  for (const std::string& field : fields) {
    const std::size_t end = line.find(", ", begin);
    values[field] = line.substr(begin, end == std::string::npos ? end : end - begin);
    if (end == std::string::npos) break;
    begin = end + 2;
  }
  return values;
}

json clocks() { return ask_nvidia_smi({"clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"}); }

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 32> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text.data();
}

/// "NVIDIA H200 (compute capability ...)" -> "nvidia-h200".
std::string file_stem(const std::string& device) {
  std::string stem;
  for (const char c : device.substr(0, device.find(" ("))) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      stem += char(std::tolower(static_cast<unsigned char>(c)));
    } else if (!stem.empty() && stem.back() != '-') {
      stem += '-';
    }
  }
  while (!stem.empty() && stem.back() == '-') stem.pop_back();
  return stem.empty() ? "gpu" : stem;
}

/// One chapter and variant on one size: a run, or why there is none.
struct Entry {
  std::string chapter, variant;
  Problem problem;
  std::string skipped;
  std::optional<ChapterRun> run;
};

json to_json(const Entry& entry, const Ceilings& ceilings) {
  if (!entry.run) {
    return {{"chapter", entry.chapter},
            {"variant", entry.variant},
            {"problem", flash::to_json(entry.problem)},
            {"skipped", entry.skipped}};
  }
  json out = flash::to_json(*entry.run);
  if (entry.run->timing && std::isfinite(ceilings.matrix_flops_per_second)) {
    out["share_of_matrix_ceiling"] = *entry.run->flops_per_second() / ceilings.matrix_flops_per_second;
  }
  return out;
}

/// Measures the chapters on sizes one after another, and learns from each how long the next will take.
class Measurement {
 public:
  explicit Measurement(const Settings& settings) : settings_(settings) {}

  std::vector<Entry> measure(const Problem& problem) {
    // A device for each size: while byte counters are open launches are slower, so that all variants are timed before
    // the first is counted, and the counters are closed with the device.
    const std::unique_ptr<Device> device = make_gpu();
    Options options;
    fmt::print("{}\n", problem.describe());
    std::vector<Entry> entries;
    std::optional<Input> input;
    std::optional<DeviceTensors> tensors;
    for (const Chapter& chapter : chapters()) {
      for (const Variant& variant : chapter.info.variants) {
        Entry entry{chapter.name, variant.name, problem, "", std::nullopt};
        try {
          LaunchOptions asked;
          asked.variant = variant.name;
          std::string why_not;
          const std::optional<LaunchOptions> launch = try_resolve(chapter, problem, asked, device->limits(), &why_not);
          if (!launch) throw UsageError(why_not);
          const std::optional<double> expected_ms = expect(entry);
          if (expected_ms && *expected_ms > settings_.limit_ms) {
            throw UsageError(
                fmt::format("about {:.0f} ms expected, more than --limit-ms {:.0f}", *expected_ms, settings_.limit_ms));
          }
          if (!input) {
            require_memory(*device, problem, {});
            input = make_input(options, problem);
            tensors.emplace(*device, *input);
          }
          RunSettings settings{CheckMode::sample, true, std::nullopt};
          if (expected_ms) settings.repeat = std::clamp(int(kBudgetMs / *expected_ms), 3, 30);
          entry.run = run_chapter(chapter, *launch, settings, *device, *input, *tensors);
          learn(entry);
          fmt::print("  {:<20} {:<10} {:>10.4f} ms {:>8.2f} TFLOP/s  check {}\n", chapter.name, variant.name,
                     entry.run->timing->median_ms, *entry.run->flops_per_second() / 1e12,
                     entry.run->passed() ? "passed" : "FAILED: " + entry.run->failure());
        } catch (const UsageError& error) {
          entry.skipped = error.what();
          fmt::print("  {:<20} {:<10} skipped: {}\n", chapter.name, variant.name, entry.skipped);
        }
        std::fflush(stdout);
        entries.push_back(std::move(entry));
      }
    }
    if (std::max(problem.seq_q, problem.seq_kv) > settings_.traffic_up_to) return entries;
    for (Entry& entry : entries) {
      if (!entry.run) continue;
      const auto chapter =
          std::find_if(chapters().begin(), chapters().end(), [&](const Chapter& c) { return c.name == entry.chapter; });
      count_traffic(*entry.run, *chapter, *device, *tensors);
    }
    return entries;
  }

 private:
  static constexpr double kBudgetMs = 700;  // of timed launches, for one entry
  using Key = std::tuple<std::string, std::string, std::int64_t, bool>;

  static Key key(const Entry& e) { return {e.chapter, e.variant, e.problem.head_dim, e.problem.causal}; }

  /// From the last size that this variant was measured on with the same head_dim and mask: time goes with the FLOPs.
  std::optional<double> expect(const Entry& entry) const {
    const auto known = ms_per_flop_.find(key(entry));
    if (known == ms_per_flop_.end()) return std::nullopt;
    return known->second * entry.problem.flops();
  }

  void learn(const Entry& entry) { ms_per_flop_[key(entry)] = entry.run->timing->median_ms / entry.problem.flops(); }

  Settings settings_;
  std::map<Key, double> ms_per_flop_;
};

/// Returns no value when the help was asked for.
std::optional<Settings> parse(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Measures every chapter and variant over a list of sizes on a GPU and writes the figures as JSON.",
               "measure"};
  app.get_formatter()->column_width(30);
  app.set_help_flag("-h,--help", "print this and exit");
  app.add_option("--sizes", settings.sizes,
                 "b,h,hkv,nq,nk,d,full or ..,causal; may be repeated (b*n = 16384, h*d = 2048, n from 512 to 16384, "
                 "d 64, 128 and 256, full and causal; and b = 1 and 16, h = 16, n = 4096, d = 128)")
      ->type_name("SIZE");
  app.add_flag("--quick", settings.quick, "n = 1024 only");
  app.add_option("--dtype", settings.dtype, "fp16 or bf16 (fp16)")->type_name("NAME");
  app.add_option("--out", settings.out, "file for the figures (docs/results/<gpu>.json)")->type_name("FILE");
  app.add_option("--limit-ms", settings.limit_ms, "leave out launches expected to take longer (2000)")->type_name("MS");
  app.add_option("--traffic-up-to", settings.traffic_up_to,
                 "read the byte counters up to this sequence length; 0 for never (8192)")
      ->type_name("N");
  app.add_option("--commit", settings.commit, "what is measured, where git cannot say it: in a copy of the tree")
      ->type_name("TEXT");
  app.add_flag("--print-sizes", settings.print_sizes, "print the sizes, as docs/peers.py takes them, and exit");
  if (!parse_command_line(app, "measure", argc, argv)) return std::nullopt;
  if (settings.dtype != "fp16" && settings.dtype != "bf16") {
    throw UsageError(fmt::format("--dtype {}: use fp16 or bf16", in_quotes(settings.dtype)));
  }
  if (!(settings.limit_ms > 0)) throw UsageError("--limit-ms: use a number above 0");
  return settings;
}

int measure_main(int argc, char** argv) {
  const std::optional<Settings> parsed = parse(argc, argv);
  if (!parsed) return kExitOk;
  Settings settings = *parsed;
  const DType dtype = settings.dtype == "fp16" ? DType::fp16 : DType::bf16;
  std::vector<Problem> sizes;
  for (const std::string& size : settings.sizes) sizes.push_back(parse_size(size, dtype));
  if (sizes.empty()) sizes = default_sizes(settings.quick, dtype);
  if (settings.print_sizes) {
    for (const Problem& size : sizes) fmt::print("{}\n", size_text(size));
    return kExitOk;
  }

  std::unique_ptr<Device> device = make_gpu();
  const std::string description = device->describe();
  if (settings.out.empty()) settings.out = "docs/results/" + file_stem(description) + ".json";
  if (const auto folder = std::filesystem::path(settings.out).parent_path(); !folder.empty()) {
    std::error_code ignored;  // require_writable says what is wrong
    std::filesystem::create_directories(folder, ignored);
  }
  require_writable(settings.out);

  std::string commit = settings.commit;
  bool dirty = false;
  if (commit.empty()) {
    commit = output_of("git rev-parse HEAD");
    dirty = !commit.empty() && !output_of("git status --porcelain --untracked-files=no").empty();
  }
  if (commit.empty()) commit = "unknown";
  json report = {{"device", description},    {"gpu", description.substr(0, description.find(" ("))},
                 {"toolkit", FLASH_TOOLKIT}, {"date", now_utc()},
                 {"commit", commit},         {"dirty", dirty},
                 {"dtype", settings.dtype}};
  const json driver = ask_nvidia_smi({"driver_version"});
  report["driver"] = driver.is_null() ? json("unknown") : driver["driver_version"];
  std::string command = "./course measure";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  report["command"] = command;

  fmt::print("{}\n", description);
  std::fflush(stdout);
  const Ceilings ceilings = device->ceilings().value();
  report["ceilings"] = to_json(ceilings);
  device.reset();

  report["clocks_before"] = clocks();
  Measurement measurement(settings);
  bool passed = true;
  report["entries"] = json::array();
  for (const Problem& size : sizes) {
    for (const Entry& entry : measurement.measure(size)) {
      passed = passed && (!entry.run || entry.run->passed());
      report["entries"].push_back(to_json(entry, ceilings));
    }
    report["clocks_after"] = clocks();
    write_json(settings.out, report);  // after each size: what was measured is not lost when a run is cut short
  }
  fmt::print("wrote {}\n", settings.out);
  return passed ? kExitOk : kExitCheckFailed;
}

}  // namespace
}  // namespace flash

int main(int argc, char** argv) {
  return flash::guarded_main("measure", [&] { return flash::measure_main(argc, argv); });
}
