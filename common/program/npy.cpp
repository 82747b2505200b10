#include "common/program/npy.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "common/base/dtype.hpp"
#include "common/base/error.hpp"
#include "common/base/quote.hpp"
#include "common/program/file.hpp"

namespace flash {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied between memory and file as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = std::size_t(1) << 20;  // NumPy itself refuses headers beyond 10 000 bytes
constexpr std::size_t kMaxRank = 64;                      // NumPy's own limit

std::optional<int> bytes_of(std::string_view descr) {
  if (descr == "<f2") return 2;
  if (descr == "<f4") return 4;
  if (descr == "<f8") return 8;
  return std::nullopt;
}

constexpr const char* kBfloat16 = "V2";

int element_bytes_of(std::string_view descr) { return descr == kBfloat16 ? 2 : bytes_of(descr).value_or(1); }

/// A file's descr as NpyArray has it, where it can be read.
std::optional<std::string> readable_descr(const std::string& descr, VoidElements void_elements) {
  if (bytes_of(descr)) return descr;
  if (descr.starts_with('=') && bytes_of("<" + descr.substr(1))) return "<" + descr.substr(1);
  const bool bfloat16 = descr == "<V2" || descr == "|V2";
  if (bfloat16 && void_elements == VoidElements::bfloat16) return kBfloat16;
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

// -- reading

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
    fail_with_file(path_, "has a malformed .npy header: it " + what +
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
      fail_with_file(path_, "holds a structured type; save one plain float array, e.g. numpy.save(path, a['field'])");
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
      fail_with_file(path_, "claims an extent beyond 2^63 in its shape: the header is damaged");
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

[[noreturn]] void refuse_type(const std::string& path, const std::string& descr) {
  if (descr == "<V2" || descr == "|V2") {
    fail_with_file(path, "holds elements of two bytes without a type (" + in_quotes(descr) +
                             "), as JAX and ml_dtypes save bfloat16: pass --dtype bf16 if they are");
  }
  const std::string_view kind = std::string_view(descr).substr(std::min<std::size_t>(descr.size(), 1));
  if (kind == "f2" || kind == "f4" || kind == "f8") {
    if (descr[0] == '>') {
      fail_with_file(path, "is big-endian (" + in_quotes(descr) +
                               "); save it little-endian: numpy.save(path, a.astype('<" + std::string(kind) + "'))");
    }
  }
  if (kind.starts_with('O')) {
    fail_with_file(path, "holds pickled Python objects (" + in_quotes(descr) +
                             "), which are never loaded; save a float array: numpy.save(path, a.astype('<f4'))");
  }
  fail_with_file(path, "holds elements of type " + in_quotes(descr) +
                           "; types that can be read are '<f2', '<f4' and '<f8': numpy.save(path, a.astype('<f4'))");
}

/// Reads exactly `size` bytes at `offset`; the file's size was checked before.
void read_exactly(const std::string& path, int fd, void* out, std::size_t size, std::size_t offset) {
  auto* data = static_cast<std::byte*>(out);
  while (size > 0) {
    const ssize_t n = ::pread(fd, data, std::min(size, std::size_t(1) << 30), off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_file(path, "cannot be read: " + error_text(errno));
    if (n == 0) fail_with_file(path, "became shorter while it was read");
    data += n;
    size -= std::size_t(n);
    offset += std::size_t(n);
  }
}

// -- writing

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

int NpyArray::element_bytes() const { return element_bytes_of(descr); }

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
  if (descr == kBfloat16) {
    bfloat16 value;
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

NpyArray read_npy(const std::string& path, std::optional<int> rank, VoidElements void_elements) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd() < 0) {
    const int error = errno;
    if (error == ENOENT) fail_with_file(path, "does not exist; give the path of a .npy file");
    fail_with_file(path, "cannot be opened: " + error_text(error));
  }
  struct stat status = {};
  if (::fstat(file.fd(), &status) != 0) fail_with_file(path, "cannot be read: " + error_text(errno));
  if (S_ISDIR(status.st_mode)) fail_with_file(path, "is a folder; give the path of a .npy file");
  if (!S_ISREG(status.st_mode)) fail_with_file(path, "is not a regular file; give the path of a .npy file");
  const auto file_bytes = std::size_t(status.st_size);

  char start[12] = {};
  read_exactly(path, file.fd(), start, std::min(file_bytes, sizeof(start)), 0);
  const std::size_t magic_bytes = std::min(file_bytes, kMagic.size());
  if (file_bytes == 0) fail_with_file(path, "is empty; a .npy file is written by numpy.save(path, a)");
  if (std::string_view(start, magic_bytes) != kMagic.substr(0, magic_bytes)) {
    if (file_bytes >= 4 && std::string_view(start, 4) == "PK\x03\x04") {
      fail_with_file(path, "is a zip archive (.npz?), not a .npy file; save one array with numpy.save(path, a)");
    }
    fail_with_file(path,
                   "is not a .npy file: it does not start with \\x93NUMPY; save one array with numpy.save(path, a)");
  }
  const auto truncated_header = [&](std::size_t expected) {
    fail_with_file(path, "is truncated: its header takes " + std::to_string(expected) + " bytes and the file has " +
                             std::to_string(file_bytes));
  };
  if (file_bytes < 8) truncated_header(10);
  const auto byte_at = [&](std::size_t i) { return std::size_t(static_cast<unsigned char>(start[i])); };
  const std::size_t major = byte_at(6), minor = byte_at(7);
  if (major < 1 || major > 3 || minor != 0) {
    fail_with_file(path, "has .npy format version " + std::to_string(major) + "." + std::to_string(minor) +
                             "; versions that can be read are 1.0, 2.0 and 3.0");
  }
  const std::size_t before = major == 1 ? 10 : 12;
  if (file_bytes < before) truncated_header(before);
  std::size_t header_bytes = byte_at(8) | byte_at(9) << 8;
  if (major > 1) header_bytes |= byte_at(10) << 16 | byte_at(11) << 24;
  if (header_bytes > file_bytes - before) truncated_header(before + header_bytes);
  if (header_bytes > kMaxHeader) {
    fail_with_file(path,
                   "claims a header of " + std::to_string(header_bytes) + " bytes; a plain array's has a few hundred");
  }

  std::string text(header_bytes, '\0');
  read_exactly(path, file.fd(), text.data(), header_bytes, before);
  Header header = HeaderParser(path, text).parse();
  const std::optional<std::string> descr = readable_descr(header.descr, void_elements);
  if (!descr) refuse_type(path, header.descr);
  if (header.fortran_order) {
    fail_with_file(path, "is in Fortran order; save it in C order: numpy.save(path, numpy.ascontiguousarray(a))");
  }
  const std::string shape = shape_text(header.shape);
  if (std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end()) {
    fail_with_file(path, "has no elements: its shape is " + shape + "; every extent must be at least 1");
  }
  if (rank && std::size_t(*rank) != header.shape.size()) {
    fail_with_file(path, "has " + std::to_string(header.shape.size()) + " dimensions, shape " + shape + "; it needs " +
                             std::to_string(*rank));
  }

  const auto expected = byte_count(header.shape, element_bytes_of(*descr));
  const std::size_t present = file_bytes - before - header_bytes;
  if (!expected)
    fail_with_file(path, "claims the shape " + shape + ", which is beyond 2^63 bytes: the header is damaged");
  const std::string sizes = "shape " + shape + " of " + in_quotes(header.descr) + " takes " +
                            std::to_string(*expected) + " bytes and " + std::to_string(present) + " are present";
  if (std::size_t(*expected) > present) fail_with_file(path, "is truncated: " + sizes + "; save it again");
  if (std::size_t(*expected) < present)
    fail_with_file(path, "has bytes after its array: " + sizes + "; save one array to a file");

  NpyArray array{std::move(header.shape), *descr, {}};
  try {
    array.bytes.resize(present);
  } catch (const std::bad_alloc&) {
    fail_with_file(path, "does not fit into memory: it takes " + std::to_string(present) + " bytes");
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

  const std::span<const std::byte> header_bytes(reinterpret_cast<const std::byte*>(header.data()), header.size());
  write_file(path, {header_bytes, bytes});
}

}  // namespace flash
