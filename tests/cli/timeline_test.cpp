// docs/timeline.py, which reads the traces that chapters write.
#include "tests/catch.hpp"
#include "tests/cli/program.hpp"
#include "tests/support/skip.hpp"

namespace flash::test {
namespace {

const std::string kScript = std::string(FLASH_SOURCES) + "/docs/timeline.py";

bool has_python() {
  try {
    if (run({"python3", "-c", "pass"}).code == 0) return true;
  } catch (const std::runtime_error&) {
  }
  skip("there is no python3");
  return false;
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST_CASE("docs/timeline.py makes a table and a drawing of what a chapter noted") {
  if (!has_python()) return;
  const Folder folder;
  const std::string trace = folder / "trace.json", drawing = folder / "out.svg";
  REQUIRE(run({std::string(FLASH_PROGRAMS) + "/chapters/08_fa3_pipeline", "--device", "sim", "--heads", "1", "--seq",
               "640", "--head-dim", "128", "--check", "off", "--timeline", trace})
              .code == 0);
  const Ended table = run({"python3", kScript, trace});
  INFO(table.err);
  REQUIRE(table.code == 0);
  for (const char* text : {"events of the simulated block", "consumer 0", "consumer 1", "producer", "issues products",
                           "waits for its turn", "together"}) {
    INFO(text);
    CHECK(contains(table.out, text));
  }
  const Ended drawn = run({"python3", kScript, trace, "--svg", drawing});
  INFO(drawn.err);
  REQUIRE(drawn.code == 0);
  const std::string svg = read_text(drawing);
  CHECK(contains(svg, "<svg"));
  CHECK(contains(svg, "consumer 1"));
  CHECK(contains(svg, "</svg>"));
}

TEST_CASE("docs/timeline.py says in one line what is wrong with a trace or an option, and writes nothing") {
  if (!has_python()) return;
  const Folder folder;
  const std::string drawing = folder / "out.svg";
  write(folder / "text.json", "not JSON");
  write(folder / "list.json", "[1, 2]");
  write(folder / "empty.json", R"({"traceEvents": [], "otherData": {}})");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {folder / "none.json", "--svg", drawing},
           {folder / "text.json", "--svg", drawing},
           {folder / "list.json", "--svg", drawing},
           {folder / "empty.json", "--svg", drawing},
           {std::string(FLASH_SOURCES) + "/docs/results/nvidia-h200-timeline.json", "--svg", drawing, "--block", "99"},
           {std::string(FLASH_SOURCES) + "/docs/results/nvidia-h200-timeline.json", "--svg", drawing, "--clocks", "0"},
       }) {
    std::vector<std::string> command = {"python3", kScript};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Ended ended = run(command);
    INFO(arguments.front() << ' ' << arguments.back() << ": " << ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.complaints() == 1);
    CHECK(!std::filesystem::exists(drawing));
  }
}

}  // namespace
}  // namespace flash::test
