// The driver, ./course, in a folder of its own: with a project of two chapters and tools that only write down how they
// were called.
#include <fstream>
#include <sstream>

#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/cli/program.hpp"

namespace fs = std::filesystem;

namespace flash::test {
namespace {

class Project {
 public:
  Project() {
    fs::create_directories(folder_ / "bin");
    fs::create_directories(folder_ / "chapters/01_a");
    fs::create_directories(folder_ / "chapters/02_b");
    fs::copy_file(std::string(FLASH_SOURCES) + "/course", folder_ / "course");
    script("bin/dpkg-query", "echo installed");
    script("bin/nvcc", "");
    gpus("");
    // What CMake keeps, as CMakeLists.txt has it kept.
    script("bin/cmake", R"(echo "cmake $*" >>calls
mkdir -p build/default
case "$*" in
  *FLASH_WITH_CUDA=ON*) with=ON compiler=/bin/nvcc gpus=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | paste -s -d ';') ;;
  *) with=OFF compiler=/bin/nvcc gpus= ;;
esac
printf '%s\n' "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "FLASH_WITH_CUDA:STRING=$with" "CMAKE_CUDA_COMPILER:FILEPATH=$compiler" \
  "FLASH_GPUS:INTERNAL=$gpus" >build/default/CMakeCache.txt
: >build/default/build.ninja)");
    script("bin/ninja", R"(echo "ninja $*" >>calls
mkdir -p build/default/chapters
for program in chapters/01_a chapters/02_b compare; do cp bin/program "build/default/$program"; done)");
    program("echo 'auto: took the GPU'");
  }

  /// A GPU for each compute capability, a line each.
  void gpus(const std::string& capabilities) {
    const std::string list = "printf '%s' '" + capabilities + "'";
    script("bin/nvidia-smi", "case $1 in -L) " + list + " | sed 's/^/GPU 0: /' ;; *) " + list + " ;; esac");
  }

  /// What the programs of chapters and compare do, in shell; $name is the program's.
  void program(const std::string& text) { script("bin/program", "name=${0##*/}\necho \"$name $*\" >>calls\n" + text); }

  /// What CMake keeps, beside the folder.
  void cache(const std::string& lines) {
    std::ofstream(folder_ / "build/default/CMakeCache.txt")
        << "CMAKE_HOME_DIRECTORY:INTERNAL=" << fs::canonical(folder_.path()).string() << "\n"
        << lines;
  }

  Ended course(const std::vector<std::string>& arguments) {
    fs::remove(folder_ / "calls");
    std::vector<std::string> command = {"/usr/bin/env", "PATH=" + (folder_ / "bin") + ":" + std::getenv("PATH"),
                                        folder_ / "course"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run(command);
  }

  /// The calls of the last course(), those of one tool or program.
  std::vector<std::string> calls(const std::string& name) const {
    std::vector<std::string> found;
    std::istringstream lines(read_text(folder_ / "calls"));
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(name + " ", 0) == 0) found.push_back(line);
    }
    return found;
  }

 private:
  void script(const std::string& name, const std::string& text) {
    const std::string path = folder_ / name;
    std::ofstream(path) << "#!/bin/bash\n" << text << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  Folder folder_;
};

TEST_CASE("./course builds the simulation alone where no GPU is present, and both machines with --cuda") {
  Project project;
  Ended ended = project.course({"run"});
  INFO(ended.out << ended.err);
  CHECK(ended.code == kExitOk);
  REQUIRE(project.calls("cmake").size() == 1);
  CHECK(contains(project.calls("cmake")[0], "-DFLASH_WITH_CUDA=OFF"));
  CHECK(project.calls("01_a").size() == 1);
  CHECK(contains(project.calls("01_a")[0], "--device sim"));

  ended = project.course({"run"});  // nothing to configure
  CHECK(project.calls("cmake").empty());

  ended = project.course({"run", "--cuda"});
  REQUIRE(project.calls("cmake").size() == 1);
  CHECK(contains(project.calls("cmake")[0], "-DFLASH_WITH_CUDA=ON"));
  CHECK(contains(ended.out, "had the simulation alone"));
  CHECK(contains(project.calls("01_a")[0], "--device sim"));
  project.course({"run", "--cuda"});
  CHECK(project.calls("cmake").empty());

  ended = project.course({"compare", "--seq", "5"});
  REQUIRE(project.calls("cmake").size() == 1);
  CHECK(contains(project.calls("cmake")[0], "-DFLASH_WITH_CUDA=OFF"));
  CHECK(contains(ended.out, "no GPU here"));
  CHECK(project.calls("compare") == std::vector<std::string>{"compare --seq 5"});
  project.course({"compare", "--cuda", "--seq", "5"});
  CHECK(contains(project.calls("cmake").at(0), "-DFLASH_WITH_CUDA=ON"));
  CHECK(project.calls("compare") == std::vector<std::string>{"compare --seq 5"});
}

TEST_CASE("./course configures anew when a GPU appears, and when it is another one") {
  Project project;
  project.course({"run"});
  project.gpus("8.6\n");
  Ended ended = project.course({"run"});
  INFO(ended.out << ended.err);
  REQUIRE(project.calls("cmake").size() == 1);
  CHECK(contains(project.calls("cmake")[0], "-DFLASH_WITH_CUDA=ON"));
  project.course({"run"});
  CHECK(project.calls("cmake").empty());
  project.gpus("7.5\n8.6\n");
  ended = project.course({"run"});
  CHECK(project.calls("cmake").size() == 1);
  CHECK(contains(ended.out, "other GPUs than before"));
  project.course({"run"});
  CHECK(project.calls("cmake").empty());
}

TEST_CASE("./course finds a toolkit that came after the folder was configured") {
  Project project;
  project.course({"run"});
  project.cache("FLASH_WITH_CUDA:STRING=AUTO\nCMAKE_CUDA_COMPILER:FILEPATH=CMAKE_CUDA_COMPILER-NOTFOUND\n");
  project.course({"run"});  // no GPU: nothing changes
  CHECK(project.calls("cmake").empty());
  project.gpus("8.6\n");
  project.course({"run"});
  REQUIRE(project.calls("cmake").size() == 1);
  CHECK(contains(project.calls("cmake")[0], "-DFLASH_WITH_CUDA=ON -U CMAKE_CUDA_COMPILER"));
}

TEST_CASE("./course run takes the GPU for the chapters that it can run and the simulation for the rest") {
  Project project;
  project.gpus("7.5\n");
  project.program(R"(case $name in
  02_b) echo 'auto: took the simulation, 02_b needs a GPU of compute capability 8.0'; [[ $* != *'--device gpu'* ]] || exit 3 ;;
  *) echo 'auto: took the GPU' ;;
esac)");
  const Ended ended = project.course({"run"});
  INFO(ended.out << ended.err);
  CHECK(ended.code == kExitOk);
  CHECK(contains(ended.out, "auto: took the simulation, 02_b needs"));
  const auto first = project.calls("01_a"), second = project.calls("02_b");
  REQUIRE(first.size() == 2);  // on the captured tensors, and on the GPU's default problem
  CHECK(contains(first[0], "--device auto --causal"));
  CHECK(first[1] == "01_a --device gpu");
  REQUIRE(second.size() == 1);
  CHECK(contains(second[0], "--device auto --causal"));
  CHECK(project.calls("compare") == std::vector<std::string>{"compare --device auto"});

  CHECK(project.course({"run", "--device", "gpu"}).code == kExitDevice);
  CHECK(project.course({"run", "--device", "sim"}).code == kExitOk);
  CHECK(project.calls("01_a").size() == 1);
}

TEST_CASE("./course ends with the exit code of a program that failed") {
  Project project;
  project.program("[[ $name != 02_b ]] || exit 1");
  const Ended ended = project.course({"run"});
  CHECK(ended.code == kExitCheckFailed);
  CHECK(contains(ended.out, "2 passed, 1 failed: 02_b"));
}

TEST_CASE("./course refuses what it does not know in one line") {
  Project project;
  const std::string long_word(100000, 'x');
  for (const std::string& word : {long_word, std::string("a\nb"), std::string("\xff\x1b[31m")}) {
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{{word},
                                                                                           {"run", word},
                                                                                           {"run", "--" + word},
                                                                                           {"run", "--device", word},
                                                                                           {"test", word},
                                                                                           {"diff", word, "02"},
                                                                                           {"diff", "--" + word}}) {
      const Ended ended = project.course(arguments);
      INFO(arguments[0].substr(0, 20) << ": " << ended.err.substr(0, 300));
      CHECK(ended.code == kExitUsage);
      CHECK(ended.complaints() == 1);
      CHECK(ended.err.size() < 400);
      for (const unsigned char c : ended.err) CHECK((c == '\n' || c >= 0x20));
    }
  }
}

}  // namespace
}  // namespace flash::test
