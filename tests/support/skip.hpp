// Tests that cannot run where they are: they say why, and their program then does not count as passed (tests/main.cpp).
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace flash::test {

/// What was skipped so far in this program.
inline std::vector<std::string>& skips() {
  static std::vector<std::string> list;
  return list;
}

/// Prints one line; the caller returns from its test.
inline void skip(const std::string& reason) {
  std::printf("skipped: %s\n", reason.c_str());
  std::fflush(stdout);
  skips().push_back(reason);
}

}  // namespace flash::test
