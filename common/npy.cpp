#include "common/npy.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/dtype.hpp"
#include "common/error.hpp"

namespace flash {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied between memory and file as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = std::size_t(1) << 20;  // NumPy itself refuses headers beyond 10 000 bytes
constexpr std::size_t kMaxRank = 64;                      // NumPy's own limit

/// `text` in quotes on one line: no control characters, and no longer than a reader wants to see.
std::string in_quotes(std::string_view text, std::size_t limit = 60) {
  std::string out = "'";
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    out += (byte < 0x20 || byte == 0x7f) ? '?' : c;
  }
  return out + (text.size() > limit ? "...'" : "'");
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw UsageError(in_quotes(path, 4096) + " " + what);
}

std::string error_text(int error) { return std::generic_category().message(error); }

std::optional<int> bytes_of(std::string_view descr) {
  if (descr == "<f2") return 2;
  if (descr == "<f4") return 4;
  if (descr == "<f8") return 8;
  return std::nullopt;
}

/// product(shape) * element_bytes, or nothing if that is beyond 63 bits. Extents are not negative.
std::optional<std::int64_t> byte_count(std::span<const std::int64_t> shape, int element_bytes) {
  std::int64_t total = element_bytes;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  }
  return total;
}

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

// ---- reading
// ----------------------------------------------------------------------------------------------------------

struct Header {
  std::string descr;
  std::vector<std::int64_t> shape;
  bool fortran_order = false;
};

/// Reads the header's text, a Python dict literal with three entries such as
///   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
/// in any order and with any blanks. Only what NumPy writes for a plain array is understood; nothing is evaluated.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  Header parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key = string_literal("a key in quotes");
      expect(':');
      if (key == "descr") {
        once(seen_descr_, key);
        parse_descr();
      } else if (key == "fortran_order") {
        once(seen_order_, key);
        header_.fortran_order = boolean();
      } else if (key == "shape") {
        once(seen_shape_, key);
        parse_shape();
      } else {
        malformed("has the unknown key " + in_quotes(key));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (position_ != text_.size()) malformed("goes on after its closing '}'");
    if (!seen_descr_) malformed("lacks the key 'descr'");
    if (!seen_order_) malformed("lacks the key 'fortran_order'");
    if (!seen_shape_) malformed("lacks the key 'shape'");
    return std::move(header_);
  }

 private:
  [[noreturn]] void malformed(const std::string& what) const {
    fail(path_, "has a malformed .npy header: it " + what +
                    " (NumPy writes {'descr': ..., 'fortran_order': ..., 'shape': ...})");
  }

  void once(bool& seen, const std::string& key) const {
    if (seen) malformed("has the key " + in_quotes(key) + " twice");
    seen = true;
  }

  void skip_blanks() {
    while (position_ < text_.size() && std::strchr(" \t\n\r", text_[position_]) && text_[position_] != '\0')
      ++position_;
  }

  char peek() {
    skip_blanks();
    return position_ < text_.size() ? text_[position_] : '\0';
  }

  bool accept(char c) {
    skip_blanks();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) malformed(std::string("lacks a '") + c + "' at " + here());
  }

  /// What stands at the current position, for a message.
  std::string here() {
    skip_blanks();
    return position_ < text_.size() ? in_quotes(text_.substr(position_), 20) : std::string("its end");
  }

  std::string string_literal(const char* expected) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') malformed(std::string("lacks ") + expected + " at " + here());
    const std::size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) malformed("has an unclosed string at " + here());
    const std::string value(text_.substr(position_ + 1, end - position_ - 1));
    if (value.find('\\') != std::string::npos) malformed("has an escape sequence at " + here());
    position_ = end + 1;
    return value;
  }

  bool boolean() {
    skip_blanks();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        return value;
      }
    }
    malformed("lacks True or False at " + here());
  }

  void parse_descr() {
    const char c = peek();
    // A list describes a structured type, a tuple one with a sub-array; both end the reading here.
    if (c == '[' || c == '(') {
      fail(path_, "holds a structured type; save one plain float array, e.g. numpy.save(path, a['field'])");
    }
    header_.descr = string_literal("a type in quotes");
  }

  void parse_shape() {
    expect('(');
    bool comma = true;
    while (!accept(')')) {
      if (!comma) malformed("lacks a ',' in the shape at " + here());
      if (header_.shape.size() == kMaxRank) malformed("has a shape of more than 64 extents");
      header_.shape.push_back(extent());
      comma = accept(',');
    }
    if (header_.shape.size() == 1 && !comma)
      malformed("has a number where a tuple belongs: (3,) has one extent, (3) none");
  }

  std::int64_t extent() {
    if (peek() == '-') malformed("has a negative extent in its shape");
    const char* first = text_.data() + position_;
    std::int64_t value = 0;
    const auto [last, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) {
      fail(path_, "claims an extent beyond 2^63 in its shape: the header is damaged");
    }
    if (error != std::errc()) malformed("lacks a whole number in the shape at " + here());
    position_ += std::size_t(last - first);
    return value;
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t position_ = 0;
  Header header_;
  bool seen_descr_ = false, seen_order_ = false, seen_shape_ = false;
};

void require_plain_float(const std::string& path, const std::string& descr) {
  if (bytes_of(descr)) return;
  const std::string_view kind = std::string_view(descr).substr(std::min<std::size_t>(descr.size(), 1));
  if (kind == "f2" || kind == "f4" || kind == "f8") {
    if (descr[0] == '>') {
      fail(path, "is big-endian (" + in_quotes(descr) + "); save it little-endian: numpy.save(path, a.astype('<" +
                     std::string(kind) + "'))");
    }
  }
  if (kind.starts_with('O')) {
    fail(path, "holds pickled Python objects (" + in_quotes(descr) +
                   "), which are never loaded; save a float array: numpy.save(path, a.astype('<f4'))");
  }
  fail(path, "holds elements of type " + in_quotes(descr) +
                 "; types that can be read are '<f2', '<f4' and '<f8': numpy.save(path, a.astype('<f4'))");
}

/// Reads exactly `size` bytes at `offset`; the file's size was checked before.
void read_exactly(const std::string& path, int fd, void* out, std::size_t size, std::size_t offset) {
  auto* data = static_cast<std::byte*>(out);
  while (size > 0) {
    const ssize_t n = ::pread(fd, data, std::min(size, std::size_t(1) << 30), off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot be read: " + error_text(errno));
    if (n == 0) fail(path, "became shorter while it was read");
    data += n;
    size -= std::size_t(n);
    offset += std::size_t(n);
  }
}

// ---- temporary files that a signal removes
// ----------------------------------------------------------------------------

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

// ---- writing
// ----------------------------------------------------------------------------------------------------------

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
  if (fs::is_directory(status)) fail(path, "is a folder; give the name of a file to write");
  if (status.type() == fs::file_type::none) fail(path, "cannot be written: " + error.message());
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status)) fail(path, "is not a regular file; give the name of a file to write");
    if (::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
      fail(path, "cannot be overwritten: " + error_text(errno));
    }
    file = fs::canonical(file, error);
    if (error) fail(path, "cannot be written: " + error.message());
  }
  if (!fs::exists(status) && fs::is_symlink(fs::symlink_status(file, error))) {
    fail(path, "is a symbolic link to a file that does not exist; remove it or create its target");
  }
  if (!file.has_filename()) fail(path, "ends in '/'; give the name of a file to write");
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const fs::file_status folder_status = fs::status(folder, error);
  if (!fs::exists(folder_status)) {
    fail(path, "cannot be written: there is no folder " + in_quotes(folder.string(), 4096) + "; create it first");
  }
  if (!fs::is_directory(folder_status)) {
    fail(path, "cannot be written: " + in_quotes(folder.string(), 4096) + " is not a folder");
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
    fail(path, "cannot be written: no file can be created in its folder: " + error_text(error));
  }
  return fd;
}

void write_all(const std::string& path, int fd, const void* in, std::size_t size) {
  const auto* data = static_cast<const std::byte*>(in);
  while (size > 0) {
    const ssize_t n = ::write(fd, data, std::min(size, std::size_t(1) << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot be written: " + error_text(errno));
    data += n;
    size -= std::size_t(n);
  }
}

/// Magic, version 1.0, header length and the dict, padded with blanks so that the data start at a multiple of 64 bytes.
std::string header_text(std::span<const std::int64_t> shape, const std::string& descr) {
  std::string dict = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape_text(shape) + ", }";
  const std::size_t before = kMagic.size() + 4;
  dict.append((64 - (before + dict.size() + 1) % 64) % 64, ' ');
  dict += '\n';
  if (dict.size() > 0xffff) throw std::invalid_argument("write_npy: the shape has too many extents");
  std::string text(kMagic);
  text += '\x01';
  text += '\x00';
  text += char(dict.size() & 0xff);
  text += char(dict.size() >> 8);
  return text + dict;
}

}  // namespace

std::int64_t NpyArray::size() const { return std::int64_t(bytes.size()) / element_bytes(); }

int NpyArray::element_bytes() const { return bytes_of(descr).value_or(1); }

double NpyArray::as_double(std::int64_t i) const {
  if (descr == "<f8") {
    double value;
    std::memcpy(&value, bytes.data() + i * 8, 8);
    return value;
  }
  return as_float(i);
}

float NpyArray::as_float(std::int64_t i) const {
  if (descr == "<f2") {
    float16 value;
    std::memcpy(&value, bytes.data() + i * 2, 2);
    return to_float(value);
  }
  if (descr == "<f4") {
    float value;
    std::memcpy(&value, bytes.data() + i * 4, 4);
    return value;
  }
  return float(as_double(i));
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

NpyArray read_npy(const std::string& path, std::optional<int> rank) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd() < 0) {
    const int error = errno;
    if (error == ENOENT) fail(path, "does not exist; give the path of a .npy file");
    fail(path, "cannot be opened: " + error_text(error));
  }
  struct stat status = {};
  if (::fstat(file.fd(), &status) != 0) fail(path, "cannot be read: " + error_text(errno));
  if (S_ISDIR(status.st_mode)) fail(path, "is a folder; give the path of a .npy file");
  if (!S_ISREG(status.st_mode)) fail(path, "is not a regular file; give the path of a .npy file");
  const auto file_bytes = std::size_t(status.st_size);

  char start[12] = {};
  read_exactly(path, file.fd(), start, std::min(file_bytes, sizeof(start)), 0);
  const std::size_t magic_bytes = std::min(file_bytes, kMagic.size());
  if (file_bytes == 0) fail(path, "is empty; a .npy file is written by numpy.save(path, a)");
  if (std::string_view(start, magic_bytes) != kMagic.substr(0, magic_bytes)) {
    if (file_bytes >= 4 && std::string_view(start, 4) == "PK\x03\x04") {
      fail(path, "is a zip archive (.npz?), not a .npy file; save one array with numpy.save(path, a)");
    }
    fail(path, "is not a .npy file: it does not start with \\x93NUMPY; save one array with numpy.save(path, a)");
  }
  const auto truncated_header = [&](std::size_t expected) {
    fail(path, "is truncated: its header takes " + std::to_string(expected) + " bytes and the file has " +
                   std::to_string(file_bytes));
  };
  if (file_bytes < 8) truncated_header(10);
  const auto byte_at = [&](std::size_t i) { return std::size_t(static_cast<unsigned char>(start[i])); };
  const std::size_t major = byte_at(6), minor = byte_at(7);
  if (major < 1 || major > 3 || minor != 0) {
    fail(path, "has .npy format version " + std::to_string(major) + "." + std::to_string(minor) +
                   "; versions that can be read are 1.0, 2.0 and 3.0");
  }
  const std::size_t before = major == 1 ? 10 : 12;
  if (file_bytes < before) truncated_header(before);
  std::size_t header_bytes = byte_at(8) | byte_at(9) << 8;
  if (major > 1) header_bytes |= byte_at(10) << 16 | byte_at(11) << 24;
  if (header_bytes > file_bytes - before) truncated_header(before + header_bytes);
  if (header_bytes > kMaxHeader) {
    fail(path, "claims a header of " + std::to_string(header_bytes) + " bytes; a plain array's has a few hundred");
  }

  std::string text(header_bytes, '\0');
  read_exactly(path, file.fd(), text.data(), header_bytes, before);
  Header header = HeaderParser(path, text).parse();
  require_plain_float(path, header.descr);
  if (header.fortran_order) {
    fail(path, "is in Fortran order; save it in C order: numpy.save(path, numpy.ascontiguousarray(a))");
  }
  const std::string shape = shape_text(header.shape);
  if (std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end()) {
    fail(path, "has no elements: its shape is " + shape + "; every extent must be at least 1");
  }
  if (rank && std::size_t(*rank) != header.shape.size()) {
    fail(path, "has " + std::to_string(header.shape.size()) + " dimensions, shape " + shape + "; it needs " +
                   std::to_string(*rank));
  }

  const auto expected = byte_count(header.shape, *bytes_of(header.descr));
  const std::size_t present = file_bytes - before - header_bytes;
  if (!expected) fail(path, "claims the shape " + shape + ", which is beyond 2^63 bytes: the header is damaged");
  const std::string sizes = "shape " + shape + " of " + in_quotes(header.descr) + " takes " +
                            std::to_string(*expected) + " bytes and " + std::to_string(present) + " are present";
  if (std::size_t(*expected) > present) fail(path, "is truncated: " + sizes + "; save it again");
  if (std::size_t(*expected) < present)
    fail(path, "has bytes after its array: " + sizes + "; save one array to a file");

  NpyArray array{std::move(header.shape), std::move(header.descr), {}};
  try {
    array.bytes.resize(present);
  } catch (const std::bad_alloc&) {
    fail(path, "does not fit into memory: it takes " + std::to_string(present) + " bytes");
  }
  read_exactly(path, file.fd(), array.bytes.data(), present, before + header_bytes);
  return array;
}

void write_npy(const std::string& path, std::span<const std::int64_t> shape, const std::string& descr,
               std::span<const std::byte> bytes) {
  const auto element_bytes = bytes_of(descr);
  if (!element_bytes) throw std::invalid_argument("write_npy: the type is '" + descr + "', not '<f2', '<f4' or '<f8'");
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent < 0; }) ||
      byte_count(shape, *element_bytes) != std::int64_t(bytes.size())) {
    throw std::invalid_argument("write_npy: shape " + shape_text(shape) + " of '" + descr + "' does not take " +
                                std::to_string(bytes.size()) + " bytes");
  }
  const std::string header = header_text(shape, descr);

  const Target target = resolve_target(path);
  const std::string name = temporary_path(target.folder);
  TemporaryName temporary(name);
  File file(create_file(path, name));
  write_all(path, file.fd(), header.data(), header.size());
  write_all(path, file.fd(), bytes.data(), bytes.size());
  // Without the sync a crash of the machine could leave the new name with old or no contents.
  if (::fsync(file.fd()) != 0 && errno != EINVAL) fail(path, "cannot be written: " + error_text(errno));
  if (const int error = file.close(); error != 0) fail(path, "cannot be written: " + error_text(error));
  if (::rename(name.c_str(), target.file.c_str()) != 0) fail(path, "cannot be written: " + error_text(errno));
  temporary.forget();

  const File folder(::open(target.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.fd() >= 0) ::fsync(folder.fd());  // the new name; some file systems cannot, and the data are safe
}

void require_writable(const std::string& path) {
  const Target target = resolve_target(path);
  struct stat status = {};
  if (::lstat(target.file.c_str(), &status) != 0 && errno != ENOENT) {
    fail(path, "cannot be written: " + error_text(errno));  // the name is too long, for instance
  }
  // Permission bits do not tell all (root, read-only and virtual file systems), so a file is created and removed.
  const std::string name = temporary_path(target.folder);
  const TemporaryName temporary(name);
  const File file(create_file(path, name));
}

}  // namespace flash
