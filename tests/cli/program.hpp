// Runs programs as a shell would and collects what they say.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/base/chapter.hpp"
#include "tests/support/temporary_folder.hpp"

extern char** environ;

namespace flash::test {

using Folder = TemporaryFolder;

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Ended {
  int code = -1;  // exit code, -1 if a signal ended the program
  int signal = 0;
  std::string out, err;
  /// Lines on stderr.
  int complaints() const {
    int lines = 0;
    for (const char c : err) lines += c == '\n';
    return lines + (!err.empty() && err.back() != '\n');
  }
};

/// Runs `command` to its end; with `signal_after` sends it `signal` at that time.
inline Ended run(std::vector<std::string> command, int signal = 0, std::chrono::milliseconds signal_after = {}) {
  const Folder folder;
  const std::string out = folder / "out", err = folder / "err";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT, 0600);
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + command[0]);
  if (signal != 0) {
    std::this_thread::sleep_for(signal_after);
    ::kill(child, signal);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  Ended ended;
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  ended.out = read_text(out);
  ended.err = read_text(err);
  return ended;
}

inline std::string compare_program() { return std::string(FLASH_PROGRAMS) + "/compare"; }
inline std::string measure_program() { return std::string(FLASH_PROGRAMS) + "/measure"; }
inline std::string program_of(const Chapter& chapter) {
  return std::string(FLASH_PROGRAMS) + "/chapters/" + chapter.name;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace flash::test
