// The rooms of the source tree and what a file in each may include: one table, held against every #include. See
// CONTRIBUTING.md.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.hpp"

namespace {

namespace fs = std::filesystem;

struct Room {
  std::string folder;  // begins the path of each of its files
  std::set<std::string> may_include;
};

/// Each room beside itself; what is not here may not be included.
const std::vector<Room> kRooms = {
    {"common/base/", {}},
    {"common/device/", {"common/base/"}},
    {"common/sim/", {"common/base/", "common/device/"}},
    // One machine in two folders: the instructions, and what uses them.
    {"common/ptx/", {"common/base/", "common/gpu/"}},
    {"common/gpu/", {"common/base/", "common/device/", "common/ptx/"}},
    // Kernel parts come to a machine through kernel.hpp, which picks one (kExceptions).
    {"common/kernel/", {"common/base/"}},
    {"reference/", {"common/base/"}},
    // Programs know a machine through device.hpp.
    {"common/program/", {"common/base/", "common/device/", "reference/"}},
    {"chapters/", {"common/kernel/", "common/base/"}},
    {"docs/figures/", {"common/kernel/"}},
    {"cmake/", {"chapters/"}},  // templates of generated files
};

/// Single lines that the table does not allow.
const std::set<std::pair<std::string, std::string>> kExceptions = {
    {"common/kernel/kernel.hpp", "common/sim/kernel.hpp"},
    {"common/kernel/kernel.hpp", "common/gpu/kernel.hpp"},
};

bool begins_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

const Room* room_of(const std::string& path) {
  for (const Room& room : kRooms) {
    if (begins_with(path, room.folder)) return &room;
  }
  return nullptr;
}

/// The quoted includes of a file's text.
std::vector<std::string> includes_of(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  const std::string start = "#include \"";
  for (std::string line; std::getline(lines, line);) {
    if (begins_with(line, start)) found.push_back(line.substr(start.size(), line.rfind('"') - start.size()));
  }
  return found;
}

/// "" or why `file` may not include `included`.
std::string objection(const std::string& file, const std::string& included) {
  if (kExceptions.count({file, included}) != 0) return "";
  const Room *from = room_of(file), *to = room_of(included);
  if (from == nullptr) return file + " is in no room";
  if (to == nullptr) return file + " includes " + included + ", which is in no room";
  const std::string line = file + " includes " + included + ": ";
  if (from->folder == "chapters/") {
    const std::string folder = file.substr(0, file.rfind('/') + 1);
    if (begins_with(included, folder)) return "";
    if (to == from) return line + "a chapter includes no other chapter";
    // A prediction is arithmetic on a problem and its tensors; only a kernel knows kernel parts.
    const std::string wanted = file == folder + "traffic.hpp" ? "common/base/" : "common/kernel/";
    return to->folder == wanted ? "" : line + "here it takes " + wanted;
  }
  if (to == from || from->may_include.count(to->folder) != 0) return "";
  return line + from->folder + " may not include " + to->folder;
}

std::map<std::string, std::string> sources() {
  std::map<std::string, std::string> texts;  // by path from the project's folder
  const fs::path root = FLASH_SOURCES;
  for (const char* folder : {"common", "chapters", "reference", "docs"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      static const std::set<std::string> kEndings = {".hpp", ".h", ".cpp", ".cu", ".cuh"};
      if (!entry.is_regular_file() || kEndings.count(entry.path().extension().string()) == 0) continue;
      std::ifstream file(entry.path());
      std::ostringstream text;
      text << file.rdbuf();
      texts[fs::relative(entry.path(), root).generic_string()] = text.str();
    }
  }
  return texts;
}

}  // namespace

TEST_CASE("a file includes only what its room may include", "[layers]") {
  const auto texts = sources();
  REQUIRE(texts.size() > 80);
  int lines = 0;
  for (const auto& [file, text] : texts) {
    for (const std::string& included : includes_of(text)) {
      CHECK(objection(file, included) == "");
      CHECK(texts.count(included) == 1);  // by its path from the project's folder
      ++lines;
    }
  }
  CHECK(lines > 200);
}

TEST_CASE("the rule of the rooms sees what it must not let through", "[layers]") {
  CHECK(objection("common/kernel/softmax.hpp", "common/kernel/fragments.hpp") == "");
  CHECK(objection("common/kernel/softmax.hpp", "common/sim/views.hpp") != "");
  CHECK(objection("common/kernel/softmax.hpp", "common/program/report.hpp") != "");
  CHECK(objection("common/program/run.hpp", "common/sim/machine.hpp") != "");
  CHECK(objection("common/program/run.hpp", "common/kernel/softmax.hpp") != "");
  CHECK(objection("common/base/problem.hpp", "common/device/device.hpp") != "");
  CHECK(objection("chapters/02_b/kernel.cuh", "common/kernel/kernel.hpp") == "");
  CHECK(objection("chapters/02_b/kernel.cuh", "chapters/02_b/part.cuh") == "");
  CHECK(objection("chapters/02_b/kernel.cuh", "chapters/01_a/kernel.cuh") != "");
  CHECK(objection("chapters/02_b/kernel.cuh", "common/ptx/matrix.hpp") != "");
  CHECK(objection("chapters/02_b/kernel.cuh", "common/program/report.hpp") != "");
  CHECK(objection("chapters/02_b/traffic.hpp", "common/kernel/softmax.hpp") != "");
  CHECK(objection("chapters/02_b/traffic.hpp", "common/base/traffic.hpp") == "");
  CHECK(objection("common/new.hpp", "common/base/problem.hpp") != "");
  CHECK(includes_of("#include <map>\n#include \"common/a.hpp\"\n// #include \"common/b.hpp\"\n") ==
        std::vector<std::string>{"common/a.hpp"});
}

TEST_CASE("chapters hold no conditional compilation and no inline assembly", "[layers]") {
  int chapters = 0;
  for (const auto& [file, text] : sources()) {
    if (!begins_with(file, "chapters/")) continue;
    ++chapters;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      INFO(file << ": " << line);
      CHECK(!begins_with(line, "#if"));
      CHECK(line.find("asm(") == std::string::npos);
      CHECK(line.find("asm volatile") == std::string::npos);
    }
  }
  CHECK(chapters >= 10);
}
