// The programs as a user calls them: options, exit codes, messages and files.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>

#include "common/base/error.hpp"
#include "common/base/host_tensor.hpp"
#include "common/device/device.hpp"
#include "common/device/gpu_profile.hpp"
#include "common/program/npy.hpp"
#include "reference/check.hpp"
#include "tests/catch.hpp"
#include "tests/cli/program.hpp"

namespace fs = std::filesystem;

namespace flash::test {
namespace {

using Arguments = std::vector<std::string>;
using nlohmann::json;

std::string fixture(const std::string& name) { return std::string(FLASH_SOURCES) + "/tests/io/data/npy/" + name; }

/// Runs the chapter's program on the simulated GPU.
Ended run_chapter_program(const Chapter& chapter, Arguments arguments, const std::string& device = "sim") {
  arguments.insert(arguments.begin(), {program_of(chapter), "--device", device});
  return run(arguments);
}

const Arguments small = {"--seq", "10", "--seq-kv", "13", "--head-dim", "64"};

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A [batch, seq, heads, dim] file of float16 with random values.
std::string write_random(const Folder& folder, const std::string& name, std::int64_t batch, std::int64_t seq,
                         std::int64_t heads, std::int64_t dim) {
  HostTensor tensor(DType::fp16, batch, seq, heads, dim);
  fill_random(tensor, Distribution::normal, std::hash<std::string>()(name) % 1000, 0, 1);
  const std::vector<std::int64_t> shape = {batch, seq, heads, dim};
  write_npy(folder / name, shape, "<f2", std::as_bytes(std::span(tensor.bits(), std::size_t(tensor.elements()))));
  return folder / name;
}

// -- Options

/// One way to use each option that the help lists.
const std::map<std::string, Arguments>& uses() {
  static const std::map<std::string, Arguments> all = {
      {"--help", {"--help"}},
      {"--batch", {"--batch", "2"}},
      {"--heads", {"--heads", "4", "--kv-heads", "2"}},
      {"--kv-heads", {"--kv-heads", "1"}},
      {"--seq", {"--seq", "7"}},
      {"--seq-kv", {"--seq-kv", "33"}},
      {"--head-dim", {"--head-dim", "128"}},
      {"--causal", {"--causal"}},
      {"--dtype", {"--dtype", "bf16"}},
      {"--distribution", {"--distribution", "outliers"}},
      {"--seed", {"--seed", "18446744073709551615"}},
      {"--q", {}},  // with files, below
      {"--k", {}},
      {"--v", {}},
      {"--variant", {}},  // each, below
      {"--block-q", {}},  // with the tiles, below
      {"--block-kv", {}},
      {"--device", {"--device", "auto"}},
      {"--sim-gpu", {"--sim-gpu", "h200"}},  // the one that runs every chapter; the others: below
      {"--schedule-seed", {"--schedule-seed", "5"}},
      {"--repeat", {"--repeat", "3"}},
      {"--check", {"--check", "full"}},
      {"--traffic", {"--traffic", "off"}},
      {"--ceilings", {"--ceilings", "off"}},
      {"--out", {}},  // below
      {"--lse", {}},
      {"--json", {}},
      {"--timeline", {}},  // below
  };
  return all;
}

std::set<std::string> options_in(const std::string& help) {
  std::set<std::string> options;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find("--");
    if (at == std::string::npos || at > 5) continue;  // options stand at the start of their lines
    options.insert(line.substr(at, line.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at) - at));
  }
  return options;
}

TEST_CASE("every option that --help lists works, in every program") {
  std::vector<std::string> programs = {compare_program()};
  for (const Chapter& chapter : chapters()) programs.push_back(program_of(chapter));
  for (const std::string& program : programs) {
    const Ended help = run({program, "--help"});
    REQUIRE(help.code == kExitOk);
    CHECK(help.err.empty());
    CHECK(run({program, "-h"}).out == help.out);
    const std::set<std::string> listed = options_in(help.out);
    CHECK(listed.count("--seq") == 1);
    for (const std::string& option : listed) {
      INFO(program << " " << option);
      const auto use = uses().find(option);
      REQUIRE(use != uses().end());  // an option without a test here
      if (use->second.empty()) continue;
      Arguments arguments = {program};
      if (option != "--device") arguments = arguments + Arguments{"--device", "sim"};
      for (const std::string& argument : small) {
        // What the option sets is not given twice.
        if (argument.rfind("--", 0) == 0 && argument != option) {
          arguments.push_back(argument);
          arguments.push_back(*(&argument + 1));
        }
      }
      const Ended ended = run(arguments + use->second);
      INFO(ended.err);
      CHECK(ended.code == kExitOk);
      CHECK(ended.err.empty());
      CHECK(!ended.out.empty());
    }
  }
}

TEST_CASE("what options say shows in the report") {
  const Chapter& chapter = chapters().back();
  const Ended ended = run_chapter_program(chapter, {"--batch",    "2",       "--heads",    "6",
                                                    "--kv-heads", "3",       "--seq",      "5",
                                                    "--seq-kv",   "9",       "--head-dim", "64",
                                                    "--causal",   "--dtype", "bf16",       "--distribution",
                                                    "outliers",   "--seed",  "3",          "--schedule-seed",
                                                    "11"});
  CHECK(ended.code == kExitOk);
  for (const char* text : {"b=2 h=6 kv=3 nq=5 nk=9 d=64 bf16 causal", "random outliers, seed 3", "schedule seed 11",
                           "60 of 60 rows", "counted = predicted, to the byte", "passed"}) {
    INFO(text);
    CHECK(contains(ended.out, text));
  }
  CHECK(!contains(ended.out, "TFLOP/s"));  // no time that could be taken for a GPU's
  CHECK(!contains(ended.out, " ms"));
}

TEST_CASE("every variant runs on the simulated GPU, or says with exit code 3 that it needs a GPU") {
  for (const Chapter& chapter : chapters()) {
    for (const Variant& variant : chapter.info.variants) {
      INFO(chapter.name << " " << variant.name);
      const Ended ended = run_chapter_program(chapter, small + Arguments{"--variant", variant.name});
      if (variant.gpu_only) {
        CHECK(ended.code == kExitDevice);
        CHECK(ended.complaints() == 1);
        CHECK(contains(ended.err, "GPU"));
      } else {
        CHECK(ended.code == kExitOk);
        CHECK(contains(ended.out, variant.name));
      }
    }
  }
}

TEST_CASE("--block-q and --block-kv choose among the compiled tiles, and another tile is one line and exit code 2") {
  for (const Chapter& chapter : chapters()) {
    for (const TileShape& tile : chapter.info.tiles) {
      const std::string q = std::to_string(tile.block_q), kv = std::to_string(tile.block_kv);
      INFO(chapter.name << " " << q << "x" << kv);
      // Each tile is for some head dimension.
      bool ran = false;
      for (const char* head_dim : {"64", "128", "256"}) {
        const Ended ended =
            run_chapter_program(chapter, {"--seq", "10", "--head-dim", head_dim, "--block-q", q, "--block-kv", kv});
        ran |= ended.code == kExitOk && contains(ended.out, q + "x" + kv);
      }
      CHECK(ran);
    }
    const Ended ended = run_chapter_program(chapter, small + Arguments{"--block-q", "48"});
    CHECK(ended.code == kExitUsage);
    CHECK(ended.complaints() == 1);
  }
}

TEST_CASE("a timeline has a track for each warpgroup, in which one thing follows another") {
  int with_timeline = 0;
  for (const Chapter& chapter : chapters()) {
    const Folder folder;
    const std::string path = folder / "trace.json";
    const Timeline& timeline = chapter.info.timeline;
    const Ended ended = run_chapter_program(
        chapter, Arguments{"--heads", "1", "--seq", "512", "--head-dim", "128", "--timeline", path});
    INFO(chapter.name << ": " << ended.err);
    if (timeline.doing.empty()) {
      CHECK(ended.code == kExitUsage);
      CHECK(folder.entries().empty());
      continue;
    }
    ++with_timeline;
    REQUIRE(ended.code == kExitOk);
    const nlohmann::json trace = nlohmann::json::parse(read_text(path));
    std::map<std::pair<int, int>, std::string> tracks;
    std::map<std::pair<int, int>, double> until;
    std::set<std::string> seen;
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      const std::pair<int, int> track{event.at("pid"), event.at("tid")};
      if (event.at("ph") == "M") {
        if (event.at("name") == "thread_name") tracks[track] = event.at("args").at("name");
        continue;
      }
      CHECK(event.at("ph") == "X");
      const double from = event.at("ts"), took = event.at("dur");
      CHECK(took >= 0);
      CHECK(from >= until[track] - 1e-9);  // what came before has ended
      until[track] = from + took;
      seen.insert(event.at("name"));
    }
    // Four blocks of 128 rows each, with two consumers and a producer.
    CHECK(tracks.size() == 12);
    CHECK(tracks[{3, 0}] == "consumer 0");
    CHECK(tracks[{3, 2}] == "producer");
    CHECK(until.size() == 12);
    for (const std::string& doing : timeline.doing) {
      INFO(doing);
      CHECK((doing == "done" || seen.count(doing) == 1));
    }
    CHECK(run_chapter_program(chapter, Arguments{"--variant", "no-overlap", "--timeline", path}).code == kExitUsage);
  }
  CHECK(with_timeline == 1);
}

TEST_CASE("the schedule seed changes no bit of the output") {
  for (const Chapter& chapter : chapters()) {
    const Folder folder;
    std::string first;
    for (const char* seed : {"0", "1", "2", "50"}) {
      const Ended ended = run_chapter_program(
          chapter, small + Arguments{"--schedule-seed", seed, "--out", folder / "o.npy", "--lse", folder / "lse.npy"});
      REQUIRE(ended.code == kExitOk);
      const std::string bits = read_text(folder / "o.npy") + read_text(folder / "lse.npy");
      if (first.empty()) first = bits;
      CHECK(bits == first);
    }
  }
}

// -- Refusals: one line, nothing written

struct Bad {
  Arguments arguments;
  std::string text;  // part of the message
};

void expect_refusal(const std::string& program, const Bad& bad, int code = kExitUsage) {
  const Folder folder;
  Arguments command = Arguments{program, "--json", folder / "r.json"} + bad.arguments;
  if (program != compare_program()) command = command + Arguments{"--out", folder / "o.npy", "--lse", folder / "l.npy"};
  std::string shown;
  for (const std::string& argument : bad.arguments) shown += " " + argument;
  INFO(program << shown);
  const Ended ended = run(command);
  INFO(ended.err);
  CHECK(ended.code == code);
  CHECK(ended.complaints() == 1);
  CHECK(contains(ended.err, bad.text));
  CHECK(ended.out.empty());
  CHECK(folder.entries().empty());
}

void expect_refusal_everywhere(const Bad& bad) {
  const Bad on_sim = {Arguments{"--device", "sim"} + bad.arguments, bad.text};
  for (const Chapter& chapter : chapters()) expect_refusal(program_of(chapter), on_sim);
  expect_refusal(compare_program(), on_sim);
}

// -- Files

TEST_CASE("--out and --lse hold O and LSE: f2 for fp16, f4 for bf16") {
  for (const Chapter& chapter : chapters()) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
      INFO(chapter.name << " " << to_string(dtype));
      const Folder folder;
      const std::string q = write_random(folder, "q.npy", 2, 10, 4, 64),
                        k = write_random(folder, "k.npy", 2, 15, 2, 64),
                        v = write_random(folder, "v.npy", 2, 15, 2, 64);
      const Ended ended =
          run_chapter_program(chapter, {"--q", q, "--k", k, "--v", v, "--causal", "--dtype", to_string(dtype), "--out",
                                        folder / "o.npy", "--lse", folder / "lse.npy"});
      INFO(ended.err);
      REQUIRE(ended.code == kExitOk);
      CHECK(contains(ended.out, q + ", " + k + ", " + v));
      const NpyArray o = read_npy(folder / "o.npy", 4), lse = read_npy(folder / "lse.npy", 3);
      CHECK(o.descr == (dtype == DType::fp16 ? "<f2" : "<f4"));
      CHECK(o.shape == std::vector<std::int64_t>{2, 10, 4, 64});
      CHECK(lse.descr == "<f4");
      CHECK(lse.shape == std::vector<std::int64_t>{2, 4, 10});

      Problem problem;
      problem.batch = 2;
      problem.heads = 4;
      problem.kv_heads = 2;
      problem.seq_q = 10;
      problem.seq_kv = 15;
      problem.head_dim = 64;
      problem.causal = true;
      problem.dtype = dtype;
      const auto tensor = [&](const NpyArray& array) {
        HostTensor t(dtype, array.shape[0], array.shape[1], array.shape[2], array.shape[3]);
        for (std::int64_t i = 0; i < array.size(); ++i) t.bits()[i] = t.encode(array.as_float(i));
        return t;
      };
      std::vector<float> lse_values;
      for (std::int64_t i = 0; i < lse.size(); ++i) lse_values.push_back(lse.as_float(i));
      CHECK(check_attention(problem, tensor(read_npy(q)), tensor(read_npy(k)), tensor(read_npy(v)), tensor(o),
                            lse_values, all_rows(problem), chapter.info.lse_from_rounded_scores)
                .first_failure == "");
    }
  }
}

TEST_CASE("the captured tensors run through every chapter") {
  int examples = 0;
  for (const auto& entry : fs::directory_iterator(std::string(FLASH_SOURCES) + "/docs/examples")) {
    if (!fs::exists(entry.path() / "q.npy")) continue;
    ++examples;
    for (const Chapter& chapter : chapters()) {
      INFO(entry.path().filename().string() << ", " << chapter.name);
      const Ended ended =
          run_chapter_program(chapter, {"--causal", "--check", "full", "--q", (entry.path() / "q.npy").string(), "--k",
                                        (entry.path() / "k.npy").string(), "--v", (entry.path() / "v.npy").string()});
      INFO(ended.out << ended.err);
      CHECK(ended.code == kExitOk);
      CHECK(contains(ended.out, "passed"));
    }
  }
  CHECK(examples > 0);
}

TEST_CASE("bfloat16 files as JAX saves them are read with --dtype bf16, and refused with that advice without it") {
  // The same values in both types, [2, 3, 4, 5] in each file; the head dimension must be a multiple of 8.
  const Folder folder;
  std::vector<std::uint16_t> bits(std::size_t(1 * 3 * 2 * 8));
  std::vector<float> values(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = to_bfloat16(float(i) / 16 - 1).bits;
    values[i] = float(i) / 16 - 1;
  }
  const std::vector<std::int64_t> shape = {1, 3, 2, 8};
  write_npy(folder / "f4.npy", shape, "<f4", std::as_bytes(std::span(values)));
  write_npy(folder / "v2.npy", shape, "<f2", std::as_bytes(std::span(bits)));
  std::string text = read_text(folder / "v2.npy");
  text.replace(text.find("<f2"), 3, "<V2");
  std::ofstream(folder / "v2.npy", std::ios::binary) << text;
  const auto with = [&](const std::string& name) {
    return Arguments{"--q", folder / name, "--k", folder / name, "--v", folder / name};
  };
  const Chapter& chapter = chapters()[0];
  std::string first;
  for (const char* name : {"f4.npy", "v2.npy"}) {
    const Ended ended =
        run_chapter_program(chapter, with(name) + Arguments{"--dtype", "bf16", "--out", folder / "o.npy"});
    INFO(ended.err);
    REQUIRE(ended.code == kExitOk);
    if (first.empty()) first = read_text(folder / "o.npy");
    CHECK(read_text(folder / "o.npy") == first);
  }
  for (const Arguments& dtype : {Arguments{}, Arguments{"--dtype", "fp16"}}) {
    const Bad bad = {Arguments{"--device", "sim"} + with("v2.npy") + dtype, "pass --dtype bf16"};
    expect_refusal(program_of(chapter), bad);
    expect_refusal(compare_program(), bad);
  }
}

TEST_CASE("--json holds the figures of the report") {
  for (const Chapter& chapter : chapters()) {
    const Folder folder;
    const Ended ended = run_chapter_program(chapter, small + Arguments{"--causal", "--json", folder / "r.json"});
    REQUIRE(ended.code == kExitOk);
    const json report = json::parse(read_text(folder / "r.json"));
    CHECK(report.at("chapter") == chapter.name);
    CHECK(report.at("variant") == chapter.info.variants[0].name);
    CHECK(report.at("simulated") == true);
    const json& problem = report.at("problem");
    CHECK(problem.at("batch") == 1);
    CHECK(problem.at("heads") == 2);
    CHECK(problem.at("seq") == 10);
    CHECK(problem.at("seq_kv") == 13);
    CHECK(problem.at("head_dim") == 64);
    CHECK(problem.at("causal") == true);
    CHECK(problem.at("dtype") == "fp16");
    CHECK(report.at("check").at("passed") == true);
    CHECK(report.at("check").at("rows_checked") == 20);
    CHECK(double(report.at("check").at("max_error_o")) <= double(report.at("check").at("limit_o")));
    CHECK(report.at("counted").at("blocks") > 0);
    CHECK(report.at("counted").at("exponentials") > 0);
    CHECK(report.at("arguments").size() == small.size() + 5);
    CHECK(report.count("time") == 0);
    CHECK(report.count("measured") == 0);
    CHECK(contains(report.at("input"), "random normal, seed 0"));
  }
}

TEST_CASE("compare runs every chapter and variant and writes them to --json") {
  const Folder folder;
  const Ended ended = run(Arguments{compare_program(), "--device", "sim", "--json", folder / "c.json"} + small);
  INFO(ended.out << ended.err);
  REQUIRE(ended.code == kExitOk);
  const json report = json::parse(read_text(folder / "c.json"));
  std::size_t simulated = 0, gpu_only = 0;
  for (const Chapter& chapter : chapters()) {
    CHECK(contains(ended.out, chapter.name));
    for (const Variant& variant : chapter.info.variants) (variant.gpu_only ? gpu_only : simulated) += 1;
  }
  REQUIRE(report.at("runs").size() == simulated);
  CHECK(report.at("left_out").size() == gpu_only);
  for (const json& one : report.at("runs")) {
    CHECK(one.at("check").at("passed") == true);
    CHECK(one.at("problem").at("seq_kv") == 13);
  }
  CHECK(!contains(ended.out, " ms"));
}

TEST_CASE("compare says what a chapter cannot run, and runs the rest") {
  const Ended ended = run({compare_program(), "--device", "sim", "--seq", "3", "--head-dim", "520"});
  INFO(ended.out << ended.err);
  CHECK(ended.code == kExitOk);
  CHECK(contains(ended.out, "left out: 02_online_softmax online: head-dim 520"));
  CHECK(contains(ended.out, "01_naive"));
}

// -- Bad input: exit code 2

TEST_CASE("what the simulated GPU that was asked for cannot run ends with exit code 3 and what it needs") {
  for (const Chapter& chapter : chapters()) {
    for (const GpuProfile& gpu : gpu_profiles()) {
      INFO(chapter.name << " on the " << gpu.title);
      const Ended ended = run_chapter_program(chapter, small + Arguments{"--sim-gpu", gpu.name});
      const std::string refusal = capability_refusal(chapter, gpu.limits);
      INFO(ended.err);
      if (refusal.empty()) {
        CHECK(ended.code == kExitOk);
        CHECK(contains(ended.out, "simulated GPU (" + gpu.title + ": compute capability "));
      } else {
        CHECK(ended.code == kExitDevice);
        CHECK(ended.complaints() == 1);
        CHECK(contains(ended.err, refusal));
        CHECK(ended.out.empty());
      }
    }
  }
}

TEST_CASE("bad arguments end with exit code 2 and one line that says what would be right") {
  const std::vector<Bad> cases = {
      {{"--no-such-option"}, "--no-such-option"},
      {{"--no-such-option", "5"}, "--help lists the options"},
      {{"word"}, "word"},
      {{"--seq"}, "--seq"},
      {{"--heads", "3", "--kv-heads", "2"}, "heads 3 is not a multiple of kv-heads 2: use --kv-heads 1 or 3"},
      {{"--heads", "2", "--kv-heads", "4"}, "heads 2 is not a multiple of kv-heads 4"},
      {{"--head-dim", "63"}, "head-dim 63 is not a multiple of 8: use --head-dim 56 or 64"},
      {{"--head-dim", "4"}, "use --head-dim 8"},
      {{"--seq", "0"}, "--seq 0: use 1 or more"},
      {{"--seq", "-1"}, "--seq -1: use 1 or more"},
      {{"--batch", "0"}, "--batch 0"},
      {{"--seq", "1e3"}, "--seq '1e3': use a whole number"},
      {{"--seq", "12x"}, "--seq '12x'"},
      {{"--seq", ""}, "--seq"},
      {{"--seed", "-1"}, "--seed '-1': use a whole number, 0 or more"},
      {{"--schedule-seed", "18446744073709551616"}, "--schedule-seed '18446744073709551616': the number is too large"},
      {{"--seq", "99999999999999999999"}, "too large"},
      {{"--repeat", "0"}, "--repeat 0"},
      {{"--repeat", "99999999999"}, "too large"},
      {{"--dtype", "fp32"}, "--dtype 'fp32': use one of fp16|bf16"},
      {{"--device", "tpu"}, "--device 'tpu': use one of auto|gpu|sim"},
      {{"--sim-gpu", "rtx3090"}, "--sim-gpu 'rtx3090': use one of h200|a100|rtx4090|t4"},
      {{"--check", "maybe"}, "use one of sample|full|off"},
      {{"--distribution", "uniform"}, "use one of normal|outliers"},
      {{"--q", "q.npy"}, "--q, --k and --v go together"},
      {{"--k", "k.npy", "--v", "v.npy"}, "--q, --k and --v go together"},
  };
  for (const Bad& bad : cases) {
    if (bad.arguments[0] == "--device") {
      expect_refusal(program_of(chapters()[0]), bad);
    } else {
      expect_refusal_everywhere(bad);
    }
  }
  for (const Chapter& chapter : chapters()) {
    expect_refusal(program_of(chapter), {{"--variant", "no-such"}, "use --variant " + chapter.info.variants[0].name});
    if (chapter.info.tiles.empty()) expect_refusal(program_of(chapter), {{"--block-q", "64"}, "--block-q"});
  }
}

TEST_CASE("whatever an argument holds, the error is one line that a reader can read") {
  const std::string long_word(100000, 'x'), long_number(100000, '7');
  std::vector<Arguments> cases;
  for (const char* option : {"--dtype", "--device", "--check", "--distribution", "--traffic", "--seq", "--seed",
                             "--repeat", "--schedule-seed"}) {
    for (const std::string& value : {long_word, long_number, std::string("a\nb"), std::string("\x1b[31m\xff")}) {
      if (value == long_number && std::string(option) == "--check") continue;
      cases.push_back({option, value});
    }
  }
  for (const std::string& word :
       Arguments{long_word, "--" + long_word, "a\nb", "--a\nb", "-\xff", "--seq=" + long_word})
    cases.push_back({word});
  for (const std::string& path : Arguments{long_word, "a\nb.npy", "\xff.npy"})
    cases.push_back({"--q", path, "--k", path, "--v", path});
  const auto expect_one_line = [](const Arguments& command) {
    const Ended ended = run(command);
    INFO(command[0] << " " << command[1].substr(0, 20) << " " << ended.err.substr(0, 300));
    CHECK(ended.code == kExitUsage);
    CHECK(ended.complaints() == 1);
    CHECK(ended.err.size() < 1500);
    for (const unsigned char c : ended.err) CHECK((c == '\n' || c >= 0x20));
    CHECK(ended.out.empty());
  };
  for (const Arguments& arguments : cases) {
    expect_one_line(Arguments{program_of(chapters()[0])} + arguments);
    expect_one_line(Arguments{compare_program()} + arguments);
  }
  for (const std::string& value : {long_word, std::string("a\nb"), std::string("\xff")}) {
    for (const char* option : {"--variant", "--block-q", "--block-kv", "--out", "--json"}) {
      const std::string unusual = option[2] == 'o' || option[2] == 'j' ? "/no such folder/" + value : value;
      expect_one_line({program_of(chapters().back()), "--device", "sim", option, unusual});
    }
    for (const char* option : {"--sizes", "--dtype", "--limit-ms", "--traffic-up-to"}) {
      expect_one_line({measure_program(), option, value});
    }
    expect_one_line({measure_program(), value});
  }
}

TEST_CASE("sizes that overflow or exceed the memory are refused with what is needed and what there is") {
  for (const Bad& bad : std::vector<Bad>{
           {{"--batch", "4611686018427387904"}, "more than 2^62 elements"},
           {{"--batch", "4294967296", "--seq", "4294967296"}, "2^62"},
           {{"--seq", "9223372036854775807"}, "2^62"},
           {{"--seq", "1", "--seq-kv", "9223372036854775807"}, "2^62"},
           {{"--head-dim", "9223372036854775800"}, "2^62"},
       }) {
    expect_refusal_everywhere(bad);
  }
  for (const Chapter& chapter : chapters()) {
    expect_refusal(program_of(chapter),
                   {{"--device", "sim", "--batch", "1000000000"}, "GB are free: use a smaller problem"});
  }
  expect_refusal(compare_program(),
                 {{"--device", "sim", "--batch", "1000000000"}, "GB are free: use a smaller problem"});
  // Chapter 01 keeps S and P: 2 x 4 million x 4 million elements of 2 bytes each; the simulation keeps twice as much
  // again about who touched them.
  expect_refusal(program_of(chapters()[0]), {{"--device", "sim", "--seq", "4000000"}, "needs 38401"});
}

TEST_CASE("files that are not arrays of the right kind are refused by name") {
  const Folder folder;
  const std::string k = write_random(folder, "k.npy", 2, 3, 4, 8), missing = folder / "missing.npy";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {fixture("truncated_data.npy"), "truncated_data.npy"},
      {fixture("truncated_header.npy"), "truncated_header.npy"},
      {fixture("trailing.npy"), "trailing.npy"},
      {fixture("big_endian.npy"), "big_endian.npy"},
      {fixture("fortran.npy"), "fortran.npy"},
      {fixture("object.npy"), "object.npy"},
      {fixture("rank3.npy"), "rank3.npy"},
      {fixture("rank1.npy"), "rank1.npy"},
      {fixture("int64.npy"), "int64.npy"},
      {fixture("zero_size.npy"), "zero_size.npy"},
      {fixture("structured.npy"), "structured.npy"},
      {fixture("archive.npz"), "archive.npz"},
      {missing, "missing.npy"},
      {folder / "", ""},
      {"/dev/null", "/dev/null"},
  };
  for (const auto& [file, name] : cases) {
    for (const Chapter& chapter : chapters()) {
      expect_refusal(program_of(chapter), {{"--device", "sim", "--q", file, "--k", k, "--v", k}, name});
    }
    expect_refusal(program_of(chapters()[0]), {{"--device", "sim", "--q", k, "--k", file, "--v", k}, name});
    expect_refusal(compare_program(), {{"--device", "sim", "--q", k, "--k", k, "--v", file}, name});
  }
}

TEST_CASE("tensors that do not belong together are refused with their shapes") {
  const Folder folder;
  const std::string q = write_random(folder, "q.npy", 2, 3, 4, 8);
  const auto with = [&](const std::string& k, const std::string& v) {
    return Arguments{"--device", "sim", "--q", q, "--k", k, "--v", v};
  };
  const std::string good = write_random(folder, "good.npy", 2, 5, 2, 8);
  const std::string other_seq = write_random(folder, "other_seq.npy", 2, 6, 2, 8);
  const std::string other_heads = write_random(folder, "other_heads.npy", 2, 5, 4, 8);
  const std::string other_batch = write_random(folder, "other_batch.npy", 1, 5, 2, 8);
  const std::string other_dim = write_random(folder, "other_dim.npy", 2, 5, 2, 16);
  const std::string three_heads = write_random(folder, "three_heads.npy", 2, 5, 3, 8);
  const std::string odd = write_random(folder, "odd.npy", 2, 5, 2, 63);
  const std::vector<Bad> cases = {
      {with(good, other_seq), "k and v need the same"},
      {with(good, other_heads), "k and v need the same"},
      {with(other_batch, other_batch), "(1, 5, 2, 8)"},
      {with(other_dim, other_dim), "must agree"},
      {with(three_heads, three_heads), "heads 4 is not a multiple of kv-heads 3"},
      {{"--device", "sim", "--q", odd, "--k", odd, "--v", odd}, "head-dim 63"},
      {with(good, good) + Arguments{"--seq", "4"}, "--seq 4, but"},
      {with(good, good) + Arguments{"--heads", "2"}, "--heads 2, but"},
      {with(good, good) + Arguments{"--kv-heads", "4"}, "--kv-heads 4, but"},
      {with(good, good) + Arguments{"--batch", "3"}, "--batch 3, but"},
  };
  for (const Bad& bad : cases) {
    for (const Chapter& chapter : chapters()) expect_refusal(program_of(chapter), bad);
    expect_refusal(compare_program(), bad);
  }
  // Options that agree with the files are welcome.
  const Ended ended = run(Arguments{program_of(chapters()[0]), "--seq", "3", "--seq-kv", "5"} + with(good, good));
  INFO(ended.err);
  CHECK(ended.code == kExitOk);
}

TEST_CASE("outputs that cannot be written are refused before anything is computed") {
  const Folder folder;
  for (const Chapter& chapter : chapters()) {
    for (const char* option : {"--out", "--lse", "--json"}) {
      for (const auto& [path, text] :
           std::vector<std::pair<std::string, std::string>>{{folder / "no/such/o.npy", "there is no folder"},
                                                            {folder / "", "is a folder"},
                                                            {"", "empty"},
                                                            {"/dev/null", "is not a regular file"},
                                                            {"/proc/o.npy", "cannot be written"}}) {
        INFO(chapter.name << " " << option << " " << path);
        const Ended ended = run_chapter_program(chapter, small + Arguments{option, path});
        INFO(ended.err);
        CHECK(ended.code == kExitUsage);
        CHECK(ended.complaints() == 1);
        CHECK(contains(ended.err, text));
        CHECK(ended.out.empty());
      }
    }
    const Ended ended =
        run_chapter_program(chapter, small + Arguments{"--out", folder / "same.npy", "--lse", folder / "same.npy"});
    CHECK(ended.code == kExitUsage);
    CHECK(ended.complaints() == 1);
    CHECK(contains(ended.err, "same.npy"));
    const Ended by_another_path =
        run_chapter_program(chapter, small + Arguments{"--out", folder / "same.npy", "--lse", folder / "./same.npy"});
    CHECK(by_another_path.code == kExitUsage);
    CHECK(by_another_path.complaints() == 1);
    CHECK(folder.entries().empty());
  }
}

TEST_CASE("a path that is not UTF-8 is as good as any, and its JSON is valid") {
  for (const std::string& name : {std::string("\xff\xfe"), std::string("a\nb"), std::string("\xc3\xa4")}) {
    const Folder folder;
    const std::string q = write_random(folder, name + "q.npy", 1, 3, 2, 8);
    const Arguments arguments = {"--device", "sim", "--q", q, "--k", q, "--v", q, "--json", folder / (name + ".json")};
    for (const std::string& program : {program_of(chapters()[0]), compare_program()}) {
      const Ended ended = run(Arguments{program} + arguments);
      INFO(ended.err);
      CHECK(ended.code == kExitOk);
      CHECK(ended.err.empty());
      const json report = json::parse(read_text(folder / (name + ".json")));
      CHECK(report.at("arguments").size() == arguments.size());
      if (name == "a\nb") {
        CHECK(report.at("arguments")[3] == q);
        CHECK(!contains(ended.out, "\nbq.npy"));
      }
    }
  }
}

TEST_CASE("a limit on the size of files is a write error like a full disk: one line, exit code 2, no file left") {
  const std::string chapter = program_of(chapters()[0]);
  for (const auto& [program, option] : std::vector<std::pair<std::string, std::string>>{
           {chapter, "--out"}, {chapter, "--json"}, {compare_program(), "--json"}}) {
    const Folder folder;
    const Ended ended = run({"/bin/sh", "-c",
                             "ulimit -f 1; exec '" + program + "' --device sim --seq 50 " + option + " '" +
                                 (folder / "result") + "' >/dev/null"});
    INFO(program << " " << option << " " << ended.err);
    CHECK(ended.code == kExitUsage);
    CHECK(ended.complaints() == 1);
    CHECK(contains(ended.err, "result' cannot be written: File too large"));
    CHECK(folder.entries().empty());
  }
}

TEST_CASE("no output replaces an input") {
  const Folder folder;
  const std::string q = write_random(folder, "q.npy", 1, 3, 2, 8), before = read_text(q);
  const Ended ended = run({program_of(chapters()[0]), "--device", "sim", "--q", q, "--k", q, "--v", q, "--out", q});
  CHECK(ended.code == kExitUsage);
  CHECK(contains(ended.err, "--q and --out are the same file"));
  CHECK(read_text(q) == before);
}

TEST_CASE("a report that the standard output does not take is an error") {
  for (const std::string& program : {program_of(chapters()[0]), compare_program()}) {
    const Ended ended = run({"/bin/sh", "-c", "'" + program + "' --device sim --seq 5 >/dev/full"});
    CHECK(ended.code == kExitUsage);
    CHECK(ended.complaints() == 1);
  }
}

TEST_CASE("--device gpu without a GPU ends with exit code 3 and one line") {
  if (gpu_available()) return;
  for (const Chapter& chapter : chapters())
    expect_refusal(program_of(chapter), {{"--device", "gpu"}, "no GPU"}, kExitDevice);
  expect_refusal(compare_program(), {{"--device", "gpu"}, "no GPU"}, kExitDevice);
  const Ended ended = run({program_of(chapters()[0]), "--seq", "5"});
  CHECK(ended.code == kExitOk);
  CHECK(contains(ended.out, "auto: took the simulation, no GPU"));
}

TEST_CASE("an interrupted program leaves no half-written file under a final name, and no temporary one") {
  const Chapter& chapter = chapters()[1];  // takes the largest head dimension, so that writing takes part of the time
  const Folder folder;
  const Arguments command = {program_of(chapter), "--device", "sim",     "--seq", "40",         "--seq-kv", "4",
                             "--heads",           "16",       "--check", "off",   "--head-dim", "512"};
  const Arguments outputs = {"--out", folder / "o.npy", "--lse", folder / "l.npy", "--json", folder / "r.json"};
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(run(command + outputs).code == kExitOk);
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  const std::string o = read_text(folder / "o.npy"), lse = read_text(folder / "l.npy");
  int interrupted = 0;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    for (int part = 0; part < 8; ++part) {
      for (const std::string& name : folder.entries()) fs::remove(folder / name);
      const Ended ended = run(command + outputs, signal, whole * (part + 1) / 8);
      INFO("signal " << signal << " after " << part + 1 << "/8 of the time");
      CHECK((ended.code == kExitOk || ended.signal == signal));
      interrupted += ended.signal == signal;
      for (const std::string& name : folder.entries()) {
        INFO(name);
        CHECK((name == "o.npy" || name == "l.npy" || name == "r.json"));
        if (name == "o.npy") CHECK(read_text(folder / name) == o);
        if (name == "l.npy") CHECK(read_text(folder / name) == lse);
      }
    }
  }
  CHECK(interrupted > 0);
}

}  // namespace
}  // namespace flash::test
