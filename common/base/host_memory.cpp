#include "common/base/host_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace flash {

namespace {

/// A file that holds one number; no value where there is none ("max").
std::optional<std::size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::size_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

std::size_t system_available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name; file.ignore(256, '\n')) {
    std::size_t kilobytes = 0;
    if (name == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return std::size_t(sysconf(_SC_AVPHYS_PAGES)) * std::size_t(sysconf(_SC_PAGESIZE));
}

/// The number behind a name in a file of names and numbers; 0 where there is none.
std::size_t read_named_number(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string name;
  for (std::size_t number = 0; file >> name >> number;) {
    if (name == wanted) return number;
  }
  return 0;
}

/// What the limit of the control group leaves, for version 2 and 1 as containers see them. Files that lie in the cache
/// count as used there, and can be dropped.
std::optional<std::size_t> group_available_bytes() {
  struct Names {
    const char *folder, *limit, *used, *cached;
  };
  for (const Names& names :
       {Names{"/sys/fs/cgroup/", "memory.max", "memory.current", "inactive_file"},
        Names{"/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}}) {
    const std::string folder = names.folder;
    const auto limit = read_number(folder + names.limit), used = read_number(folder + names.used);
    if (!limit || !used) continue;
    const std::size_t held = *used - std::min(*used, read_named_number(folder + "memory.stat", names.cached));
    return *limit > held ? *limit - held : 0;
  }
  return std::nullopt;
}

}  // namespace

std::size_t host_available_bytes() {
  const std::size_t available = system_available_bytes();
  const std::optional<std::size_t> of_group = group_available_bytes();
  return of_group ? std::min(available, *of_group) : available;
}

}  // namespace flash
