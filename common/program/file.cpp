#include "common/program/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>
#include <system_error>

#include "common/base/error.hpp"
#include "common/base/quote.hpp"

namespace flash {

std::string file_name(const std::string& path) { return in_quotes(path, 1000); }

[[noreturn]] void fail_with_file(const std::string& path, const std::string& what) {
  throw UsageError(file_name(path) + " " + what);
}

std::string error_text(int error) { return std::generic_category().message(error); }

namespace {

// -- temporary files that a signal removes

/// Names of unfinished files. A slot is written under the mutex and read by the signal handler, which takes no lock:
/// the flag is set after the name is complete and cleared before the slot is used again.
struct TemporarySlot {
  std::atomic<bool> in_use{false};
  char path[4096];
};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler reads the flag");

std::array<TemporarySlot, 16> temporary_slots;
std::mutex temporary_mutex;

extern "C" void flash_remove_temporaries(int signal) {
  for (TemporarySlot& slot : temporary_slots) {
    if (slot.in_use.load(std::memory_order_acquire)) ::unlink(slot.path);
  }
  // The handler was installed for one delivery, so this ends the program as the signal does by default.
  std::raise(signal);
}

/// A file name that is removed, if such a file exists, when the scope or the program ends early.
class TemporaryName {
 public:
  explicit TemporaryName(std::string path) : path_(std::move(path)) {
    const std::lock_guard lock(temporary_mutex);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction action = {};
      if (::sigaction(signal, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) ||
          action.sa_handler != SIG_DFL) {
        continue;  // the program handles this signal itself
      }
      action = {};
      action.sa_handler = flash_remove_temporaries;
      action.sa_flags = int(SA_RESETHAND);
      ::sigaction(signal, &action, nullptr);
    }
    if (path_.size() >= sizeof(TemporarySlot::path)) return;
    for (TemporarySlot& slot : temporary_slots) {
      if (slot.in_use.load(std::memory_order_relaxed)) continue;
      std::memcpy(slot.path, path_.c_str(), path_.size() + 1);
      slot.in_use.store(true, std::memory_order_release);
      slot_ = &slot;
      break;
    }
  }
  ~TemporaryName() {
    if (!path_.empty()) ::unlink(path_.c_str());
    release();
  }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

  /// The file has its final name now.
  void forget() {
    path_.clear();
    release();
  }

 private:
  void release() {
    const std::lock_guard lock(temporary_mutex);
    if (slot_) slot_->in_use.store(false, std::memory_order_release);
    slot_ = nullptr;
  }

  std::string path_;
  TemporarySlot* slot_ = nullptr;
};

// -- writing

/// Where `path` leads (a symbolic link stays, its target is replaced) and the folder that holds it.
struct Target {
  std::string file;
  std::string folder;
};

/// Throws UsageError unless `path` names a regular file, or none yet, in an existing folder.
Target resolve_target(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) throw UsageError("the name of the output file is empty; give a path such as o.npy");
  std::error_code error;
  fs::path file(path);
  const fs::file_status status = fs::status(file, error);
  if (fs::is_directory(status)) fail_with_file(path, "is a folder; give the name of a file to write");
  if (status.type() == fs::file_type::none) fail_with_file(path, "cannot be written: " + error.message());
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status)) fail_with_file(path, "is not a regular file; give the name of a file to write");
    if (::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
      fail_with_file(path, "cannot be overwritten: " + error_text(errno));
    }
    file = fs::canonical(file, error);
    if (error) fail_with_file(path, "cannot be written: " + error.message());
  }
  if (!fs::exists(status) && fs::is_symlink(fs::symlink_status(file, error))) {
    fail_with_file(path, "is a symbolic link to a file that does not exist; remove it or create its target");
  }
  if (!file.has_filename()) fail_with_file(path, "ends in '/'; give the name of a file to write");
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const fs::file_status folder_status = fs::status(folder, error);
  if (!fs::exists(folder_status)) {
    fail_with_file(path, "cannot be written: there is no folder " + file_name(folder.string()) + "; create it first");
  }
  if (!fs::is_directory(folder_status)) {
    fail_with_file(path, "cannot be written: " + file_name(folder.string()) + " is not a folder");
  }
  return {file.string(), folder.string()};
}

/// A name that nobody else uses: processes in different containers can share a folder and have the same id.
std::string temporary_path(const std::string& folder) {
  static std::random_device random;
  const std::lock_guard lock(temporary_mutex);
  return folder + "/.flash-" + std::to_string(random()) + "-" + std::to_string(random()) + ".tmp";
}

/// Creates an empty file with the process's usual permissions. `path` names the final file, for the message.
int create_file(const std::string& path, const std::string& name) {
  const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    const int error = errno;
    fail_with_file(path, "cannot be written: no file can be created in its folder: " + error_text(error));
  }
  return fd;
}

void write_all(const std::string& path, int fd, const void* in, std::size_t size) {
  const auto* data = static_cast<const std::byte*>(in);
  while (size > 0) {
    const ssize_t n = ::write(fd, data, std::min(size, std::size_t(1) << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_file(path, "cannot be written: " + error_text(errno));
    data += n;
    size -= std::size_t(n);
  }
}

}  // namespace

void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
  const Target target = resolve_target(path);
  const std::string name = temporary_path(target.folder);
  TemporaryName temporary(name);
  File file(create_file(path, name));
  for (const auto part : parts) write_all(path, file.fd(), part.data(), part.size());
  // Without the sync a crash of the machine could leave the new name with old or no contents.
  if (::fsync(file.fd()) != 0 && errno != EINVAL) fail_with_file(path, "cannot be written: " + error_text(errno));
  if (const int error = file.close(); error != 0) fail_with_file(path, "cannot be written: " + error_text(error));
  if (::rename(name.c_str(), target.file.c_str()) != 0) fail_with_file(path, "cannot be written: " + error_text(errno));
  temporary.forget();

  const File folder(::open(target.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.fd() >= 0) ::fsync(folder.fd());  // the new name; some file systems cannot, and the data are safe
}

void require_writable(const std::string& path) {
  const Target target = resolve_target(path);
  struct stat status = {};
  if (::lstat(target.file.c_str(), &status) != 0 && errno != ENOENT) {
    fail_with_file(path, "cannot be written: " + error_text(errno));  // the name is too long, for instance
  }
  // Permission bits do not tell all (root, read-only and virtual file systems), so a file is created and removed.
  const std::string name = temporary_path(target.folder);
  const TemporaryName temporary(name);
  const File file(create_file(path, name));
}

}  // namespace flash
