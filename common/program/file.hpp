// Files that appear whole or not at all.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

namespace flash {

/// A file descriptor, closed at the end of its life.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  /// Closes now; 0 or the error.
  int close() { return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno; }

 private:
  int fd_;
};

/// The file's name in quotes, as a message shows it.
std::string file_name(const std::string& path);

/// The system's words for an errno value.
std::string error_text(int error);

/// Throws UsageError: the file's name in quotes and `what`.
[[noreturn]] void fail_with_file(const std::string& path, const std::string& what);

/// Writes the parts one after another. The file appears under `path` only when it is complete: the bytes go to a
/// temporary file in the same folder, which is synced and then renamed. On failure, and on SIGINT, SIGTERM or SIGHUP
/// where the program left their default action in place, the temporary file is removed. A symbolic link at `path` keeps
/// pointing where it did. Throws UsageError when the file cannot be written.
void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts);

/// Throws UsageError now, before a long computation, if write_file could not write `path` later. Neither creates the
/// file nor changes one that is there.
void require_writable(const std::string& path);

}  // namespace flash
