// Files from NumPy through every chapter, and the results checked by NumPy alone (docs/check_numpy.py).
#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/cli/program.hpp"
#include "tests/support/skip.hpp"

namespace flash::test {
namespace {

/// A Python that can import NumPy: the first on the PATH, or the distribution's. Empty, and the test skipped, if
/// neither.
std::string python_with_numpy() {
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    try {
      if (run({python, "-c", "import numpy"}).code == 0) return python;
    } catch (const std::runtime_error&) {
    }
  }
  skip("python3 cannot import numpy: install it to check the chapters' files against NumPy");
  return "";
}

TEST_CASE("q, k and v that NumPy saved run through every chapter, and NumPy agrees with the results") {
  const std::string python = python_with_numpy();
  if (python.empty()) return;
  const Folder folder;
  const std::string save =
      "import sys, numpy as np\n"
      "random = np.random.default_rng(1)\n"
      "for name, heads in (('q', 12), ('k', 4), ('v', 4)):\n"
      "    np.save(sys.argv[1] + '/' + name + '.npy', random.standard_normal((2, 197, heads, "
      "64)).astype(np.float16))\n";
  REQUIRE(run({python, "-c", save, folder / ""}).code == 0);
  const std::vector<std::string> inputs = {"--q", folder / "q.npy", "--k", folder / "k.npy", "--v", folder / "v.npy"};
  const std::vector<std::string> outputs = {"--out", folder / "o.npy", "--lse", folder / "lse.npy"};
  std::vector<std::string> how;  // full and causal in turn: what is tested is the way through the files
  for (const Chapter& chapter : chapters()) {
    INFO(chapter.name << (how.empty() ? "" : " causal"));
    std::vector<std::string> command = {program_of(chapter), "--device", "sim", "--check", "off"};
    std::vector<std::string> check = {python, std::string(FLASH_SOURCES) + "/docs/check_numpy.py"};
    for (const auto& part : {inputs, outputs, how}) {
      command.insert(command.end(), part.begin(), part.end());
      check.insert(check.end(), part.begin(), part.end());
    }
    const Ended ended = run(command);
    INFO(ended.out << ended.err);
    REQUIRE(ended.code == kExitOk);
    const Ended checked = run(check);
    INFO(checked.out << checked.err);
    CHECK(checked.code == 0);
    CHECK(contains(checked.out, "4728 rows: ok"));
    how = how.empty() ? std::vector<std::string>{"--causal"} : std::vector<std::string>{};
  }
}

}  // namespace
}  // namespace flash::test
