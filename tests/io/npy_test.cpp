// The .npy reader and writer: files that NumPy wrote (tests/io/data/make_npy.py), damaged ones, and writes that fail.
#include "common/program/npy.hpp"
#include "common/program/file.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/dtype.hpp"
#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/temporary_folder.hpp"

namespace fs = std::filesystem;
using flash::NpyArray;
using flash::read_npy;
using flash::require_writable;
using flash::UsageError;
using flash::VoidElements;
using flash::write_npy;

namespace {

std::string data_file(const std::string& name) {
  return (fs::path(__FILE__).parent_path() / "data" / "npy" / name).string();
}

using Folder = flash::test::TemporaryFolder;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void put(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), std::streamsize(bytes.size()));
}

/// The one line that reading `path` ends with.
std::string read_error(const std::string& path, std::optional<int> rank = std::nullopt) {
  try {
    read_npy(path, rank);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

std::string writable_error(const std::string& path) {
  try {
    require_writable(path);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// A version 1.0 file with the given dict and data.
std::string npy(const std::string& dict, const std::string& data = "") {
  std::string text = "\x93NUMPY\x01";
  text += '\0';
  text += char(dict.size() & 0xff);
  text += char(dict.size() >> 8);
  return text + dict + data;
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

const std::vector<std::int64_t> kShape = {2, 3, 4, 5};
constexpr std::int64_t kSize = 2 * 3 * 4 * 5;

}  // namespace

TEST_CASE("npy: files that NumPy wrote are read") {
  for (const char* name : {"f2.npy", "f4.npy", "f8.npy", "version2.npy", "version3.npy"}) {
    INFO(name);
    const NpyArray array = read_npy(data_file(name), 4);
    CHECK(array.shape == kShape);
    REQUIRE(array.size() == kSize);
    for (std::int64_t i = 0; i < kSize; ++i) {
      CHECK(array.as_float(i) == float(i) - 7.5f);
      CHECK(array.as_double(i) == double(i) - 7.5);
    }
  }
  CHECK(read_npy(data_file("f2.npy")).descr == "<f2");
  CHECK(read_npy(data_file("f4.npy")).descr == "<f4");
  CHECK(read_npy(data_file("f8.npy")).descr == "<f8");
}

TEST_CASE("npy: the byte order of this machine is little-endian") {
  for (const char* type : {"f2", "f4", "f8"}) {
    INFO(type);
    const NpyArray native = read_npy(data_file(std::string("native_") + type + ".npy"));
    const NpyArray little = read_npy(data_file(std::string(type) + ".npy"));
    CHECK(native.descr == little.descr);
    CHECK(native.shape == little.shape);
    CHECK(native.bytes == little.bytes);
  }
}

TEST_CASE("npy: bfloat16 as JAX and ml_dtypes save it is read where the caller says so, and refused elsewhere") {
  for (const char* name : {"bf16.npy", "bf16_void.npy"}) {
    INFO(name);
    const NpyArray array = read_npy(data_file(name), 4, VoidElements::bfloat16);
    CHECK(array.descr == "V2");
    CHECK(array.shape == kShape);
    REQUIRE(array.size() == kSize);
    for (std::int64_t i = 0; i < kSize; ++i) {
      CHECK(array.as_float(i) == float(i) - 7.5f);
      CHECK(array.as_double(i) == double(i) - 7.5);
    }
    const std::string error = read_error(data_file(name));
    INFO(error);
    CHECK(contains(error, name));
    CHECK(contains(error, "pass --dtype bf16"));
  }
  const NpyArray special = read_npy(data_file("bf16_special.npy"), 1, VoidElements::bfloat16);
  REQUIRE(special.size() == 8);
  CHECK(special.as_float(0) == 0.0f);
  CHECK(std::signbit(special.as_float(1)));
  CHECK(special.as_float(2) == INFINITY);
  CHECK(special.as_float(3) == -INFINITY);
  CHECK(std::isnan(special.as_float(4)));
  CHECK(special.as_float(5) == 0x1p-133f);
  CHECK(special.as_float(7) == flash::to_float(flash::to_bfloat16(1.0f / 3.0f)));
  // Other elements without a type stay unknown, and typed ones keep their type.
  const auto read_as_bf16 = [](const char* name) { return read_npy(data_file(name), 4, VoidElements::bfloat16); };
  CHECK_THROWS_AS(read_as_bf16("void4.npy"), UsageError);
  CHECK_THROWS_AS(read_as_bf16("int64.npy"), UsageError);
  CHECK(read_as_bf16("f2.npy").descr == "<f2");
}

TEST_CASE("npy: infinities, NaN, signed zero and subnormal numbers keep their values") {
  const NpyArray array = read_npy(data_file("special.npy"), 1);
  REQUIRE(array.size() == 8);
  CHECK(array.as_float(0) == 0.0f);
  CHECK_FALSE(std::signbit(array.as_float(0)));
  CHECK(array.as_float(1) == 0.0f);
  CHECK(std::signbit(array.as_float(1)));
  CHECK(array.as_float(2) == INFINITY);
  CHECK(array.as_float(3) == -INFINITY);
  CHECK(std::isnan(array.as_float(4)));
  CHECK(array.as_float(5) == 0x1p-24f);
  CHECK(array.as_float(6) == 65504.0f);
  CHECK(array.as_float(7) == flash::to_float(flash::to_float16(1.0f / 3.0f)));
}

TEST_CASE("npy: any number of dimensions is read unless the caller wants one") {
  CHECK(read_npy(data_file("rank0.npy")).shape.empty());
  CHECK(read_npy(data_file("rank0.npy")).as_float(0) == 1.5f);
  CHECK(read_npy(data_file("rank1.npy")).shape == std::vector<std::int64_t>{3});
  CHECK(read_npy(data_file("rank3.npy")).shape == std::vector<std::int64_t>{3, 4, 5});
  const std::string error = read_error(data_file("rank3.npy"), 4);
  CHECK(contains(error, "has 3 dimensions"));
  CHECK(contains(error, "(3, 4, 5)"));
  CHECK(contains(error, "needs 4"));
}

TEST_CASE("npy: a file that cannot be used is refused in one line that names it") {
  struct Case {
    const char* file;
    const char* says;
  };
  for (const Case& c :
       {Case{"fortran.npy", "Fortran order"}, Case{"big_endian.npy", "big-endian"}, Case{"object.npy", "never loaded"},
        Case{"structured.npy", "structured type"}, Case{"bool.npy", "'|b1'"}, Case{"int64.npy", "'<i8'"},
        Case{"complex64.npy", "'<c8'"}, Case{"zero_size.npy", "(2, 0, 4, 5)"}, Case{"archive.npz", "zip archive"},
        Case{"truncated_header.npy", "truncated"}, Case{"trailing.npy", "after its array"},
        Case{"missing.npy", "does not exist"}, Case{".", "is a folder"}}) {
    INFO(c.file);
    const std::string error = read_error(data_file(c.file), 4);
    INFO(error);
    CHECK(contains(error, c.file));
    CHECK(contains(error, c.says));
    CHECK_FALSE(contains(error, "\n"));
  }
  const std::string truncated = read_error(data_file("truncated_data.npy"));
  CHECK(contains(truncated, "takes 480 bytes"));
  CHECK(contains(truncated, "473 are present"));
}

TEST_CASE("npy: a file cut at any byte is refused") {
  const Folder folder;
  const std::string cut = folder / "cut.npy";
  for (const char* name : {"f2.npy", "version2.npy"}) {
    const std::string whole = contents(data_file(name));
    for (std::size_t length = 0; length < whole.size(); ++length) {
      put(cut, std::string_view(whole).substr(0, length));
      INFO(name << " cut to " << length << " bytes");
      CHECK_THROWS_AS(read_npy(cut), UsageError);
    }
    put(cut, whole);
    CHECK_NOTHROW(read_npy(cut));
  }
}

TEST_CASE("npy: a file with any one byte of its header changed is read or refused, never anything else") {
  const Folder folder;
  const std::string damaged = folder / "damaged.npy";
  const std::string whole = contents(data_file("version3.npy"));
  for (std::size_t i = 0; i < 128; ++i) {
    for (const unsigned flip : {0x01u, 0x20u, 0x80u, 0xffu}) {
      std::string text = whole;
      text[i] = char(static_cast<unsigned char>(text[i]) ^ flip);
      put(damaged, text);
      const std::string error = read_error(damaged);
      INFO("byte " << i << " ^ " << flip << ": " << error);
      CHECK_FALSE(contains(error, "\n"));
    }
  }
}

TEST_CASE("npy: the header's keys may come in any order and with any blanks") {
  const Folder folder;
  const std::string path = folder / "a.npy";
  const std::string data(24, '\0');
  for (const char* dict : {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n",
                           "{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}",
                           " { 'fortran_order' :\tFalse ,\n 'shape' : ( 2 , 3 , ) , 'descr' : '<f4' } \n"}) {
    INFO(dict);
    put(path, npy(dict, data));
    CHECK(read_npy(path).shape == std::vector<std::int64_t>{2, 3});
  }
}

TEST_CASE("npy: a malformed header is refused with what is wrong with it") {
  struct Case {
    const char* dict;
    const char* says;
  };
  const Folder folder;
  const std::string path = folder / "a.npy";
  for (const Case& c : {Case{"", "lacks a '{' at its end"},
                        Case{"[]", "lacks a '{'"},
                        Case{"{}", "lacks the key 'descr'"},
                        Case{"{'descr': '<f4', 'fortran_order': False}", "lacks the key 'shape'"},
                        Case{"{'descr': '<f4', 'shape': (2, 3)}", "lacks the key 'fortran_order'"},
                        Case{"{'descr': '<f4', 'descr': '<f4'}", "'descr' twice"},
                        Case{"{'kind': 1}", "unknown key 'kind'"},
                        Case{"{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}", "lacks True or False"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} x", "goes on"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)", "lacks a '}'"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}", "lacks a ','"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L)}", "lacks a ','"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': (6)}", "(3,) has one extent"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': 6}", "lacks a '('"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3)}", "negative extent"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3.0)}", "lacks a ','"},
                        Case{"{'descr': '<f4', 'fortran_order': False, 'shape': (None,)}", "lacks a whole number"},
                        Case{"{'descr': '<f4, 'fortran_order': False}", "lacks a"},
                        Case{"{'descr': '<f4", "unclosed string"},
                        Case{"{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (2, 3)}", "escape sequence"},
                        Case{"{'descr': '<f16', 'fortran_order': False, 'shape': (2, 3)}", "'<f16'"},
                        Case{"{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (3,)}", "structured type"},
                        Case{"{'descr': '', 'fortran_order': False, 'shape': (3,)}", "type ''"}}) {
    INFO(c.dict);
    put(path, npy(c.dict, std::string(24, '\0')));
    const std::string error = read_error(path);
    INFO(error);
    CHECK(contains(error, c.says));
    CHECK_FALSE(contains(error, "\n"));
  }
}

TEST_CASE("npy: absurd claims are refused before anything is allocated for them") {
  const Folder folder;
  const std::string path = folder / "a.npy";
  const auto with_shape = [&](const std::string& shape) {
    put(path, npy("{'descr': '<f8', 'fortran_order': False, 'shape': " + shape + "}", std::string(16, '\0')));
    return read_error(path);
  };
  CHECK(contains(with_shape("(1000000000000,)"), "takes 8000000000000 bytes and 16 are present"));
  CHECK(contains(with_shape("(4294967296, 4294967296)"), "beyond 2^63"));
  CHECK(contains(with_shape("(3037000500, 3037000500, 3037000500, 3037000500)"), "beyond 2^63"));
  CHECK(contains(with_shape("(99999999999999999999,)"), "beyond 2^63"));
  std::string ones = "(";
  for (int i = 0; i < 100; ++i) ones += "1, ";
  CHECK(contains(with_shape(ones + ")"), "more than 64"));

  std::string long_header = "\x93NUMPY\x02";
  long_header += '\0';
  put(path, long_header + "\xff\xff\xff\xff{}");
  CHECK(contains(read_error(path), "its header takes 4294967307 bytes and the file has 14"));

  put(path, std::string("\x93NUMPY\x04") + std::string(100, '\0'));
  CHECK(contains(read_error(path), "version 4.0"));
  put(path, std::string("\x93NUMPY\x01\x07") + std::string(100, '\0'));
  CHECK(contains(read_error(path), "version 1.7"));
  put(path, "just some text");
  CHECK(contains(read_error(path), "not a .npy file"));
  put(path, "");
  CHECK(contains(read_error(path), "is empty"));
}

TEST_CASE("npy: a pipe is refused, not waited for") {
  const Folder folder;
  const std::string path = folder / "pipe.npy";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(contains(read_error(path), "not a regular file"));
  CHECK(contains(writable_error(path), "not a regular file"));
}

TEST_CASE("npy: what was written is read back, bit for bit") {
  const Folder folder;
  const std::string path = folder / "a.npy";
  const auto round_trip = [&](const auto& values, const std::string& descr, const std::vector<std::int64_t>& shape) {
    write_npy(path, shape, descr, bytes_of(values));
    const NpyArray array = read_npy(path);
    CHECK(array.shape == shape);
    CHECK(array.descr == descr);
    REQUIRE(array.bytes.size() == bytes_of(values).size());
    CHECK(std::memcmp(array.bytes.data(), values.data(), array.bytes.size()) == 0);
  };
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = std::uint16_t(i);
  round_trip(halves, "<f2", {4, 64, 16, 16});
  round_trip(std::vector<float>{1.0f, -0.0f, INFINITY, NAN, 1e-45f, 3.4e38f}, "<f4", {1, 2, 3, 1});
  round_trip(std::vector<double>{1.0, -0.0, INFINITY, NAN, 5e-324, 1.7e308}, "<f8", {6});
  round_trip(std::vector<double>{2.5}, "<f8", {});
  CHECK(folder.entries().size() == 1);
}

TEST_CASE("npy: a written file is the one that NumPy writes") {
  const Folder folder;
  const std::string path = folder / "a.npy";
  for (const char* name : {"f2.npy", "f4.npy", "f8.npy"}) {
    const NpyArray array = read_npy(data_file(name));
    write_npy(path, array.shape, array.descr, array.bytes);
    CHECK(contents(path) == contents(data_file(name)));
  }
}

TEST_CASE("npy: the written header, byte for byte") {
  const Folder folder;
  const std::string path = folder / "a.npy";
  write_npy(path, std::vector<std::int64_t>{3}, "<f4", bytes_of(std::vector<float>{1.0f, 2.0f, 3.0f}));
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
  std::string expected = "\x93NUMPY\x01";
  expected += '\0';
  expected += '\x76';  // 118 bytes, so that the data start at 128
  expected += '\0';
  expected += dict + std::string(118 - dict.size() - 1, ' ') + "\n";
  REQUIRE(expected.size() == 128);
  const std::string written = contents(path);
  CHECK(written.substr(0, 128) == expected);
  CHECK(written.size() == 128 + 12);
}

TEST_CASE("npy: an existing file is replaced as a whole and a link stays a link") {
  const Folder folder;
  const std::string path = folder / "a.npy", link = folder / "link.npy";
  const std::vector<float> one{1.0f}, two{2.0f, 3.0f};
  write_npy(path, std::vector<std::int64_t>{2}, "<f4", bytes_of(two));
  fs::create_symlink("a.npy", link);
  write_npy(link, std::vector<std::int64_t>{1}, "<f4", bytes_of(one));
  CHECK(fs::is_symlink(link));
  CHECK(read_npy(path).shape == std::vector<std::int64_t>{1});
  CHECK(read_npy(path).as_float(0) == 1.0f);
  CHECK(folder.entries().size() == 2);

  fs::create_symlink("nowhere.npy", folder / "dangling.npy");
  CHECK(contains(writable_error(folder / "dangling.npy"), "does not exist"));
}

TEST_CASE("npy: a new file gets the permissions that the umask leaves") {
  const Folder folder;
  const std::string path = folder / "a.npy";
  const mode_t before = ::umask(027);
  write_npy(path, std::vector<std::int64_t>{1}, "<f4", bytes_of(std::vector<float>{1.0f}));
  ::umask(before);
  CHECK((fs::status(path).permissions() & fs::perms::all) == fs::perms(0640));
}

TEST_CASE("npy: a target that cannot be written is refused and nothing is left behind") {
  const Folder folder;
  const std::vector<float> values{1.0f};
  const std::vector<std::int64_t> shape{1};
  put(folder / "file", "x");
  fs::create_directory(folder / "sub");
  struct Case {
    std::string path;
    const char* says;
  };
  for (const Case& c :
       {Case{folder / "no/such/folder/a.npy", "there is no folder"}, Case{folder / "file/a.npy", "is not a folder"},
        Case{folder / "sub", "is a folder"}, Case{(folder / "new") + "/", "ends in '/'"},
        Case{"", "output file is empty"}, Case{"/dev/null", "not a regular file"},
        Case{folder / std::string(300, 'n'), "cannot be written"}}) {
    const std::string error = writable_error(c.path);
    INFO(error);
    CHECK(contains(error, c.says));
    CHECK_FALSE(contains(error, "\n"));
    CHECK_THROWS_AS(write_npy(c.path, shape, "<f4", bytes_of(values)), UsageError);
  }
  CHECK(folder.entries().size() == 2);
  CHECK(contents(folder / "file") == "x");

  if (::geteuid() != 0) {  // root may write anywhere
    fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
    CHECK(contains(writable_error(folder / "a.npy"), "no file can be created"));
    fs::permissions(folder.path(), fs::perms::owner_all);
    fs::permissions(folder / "file", fs::perms::owner_read);
    CHECK(contains(writable_error(folder / "file"), "cannot be overwritten"));
  }
}

TEST_CASE("npy: asking whether a file can be written neither creates nor changes it") {
  const Folder folder;
  require_writable(folder / "new.npy");
  CHECK(folder.entries().size() == 0);
  put(folder / "old.npy", "old contents");
  require_writable(folder / "old.npy");
  CHECK(contents(folder / "old.npy") == "old contents");
  CHECK(folder.entries().size() == 1);
}

TEST_CASE("npy: arguments of the writer that contradict each other are an error of the program") {
  const Folder folder;
  const std::vector<float> values{1.0f, 2.0f};
  const std::string path = folder / "a.npy";
  CHECK_THROWS_AS(write_npy(path, std::vector<std::int64_t>{3}, "<f4", bytes_of(values)), std::invalid_argument);
  CHECK_THROWS_AS(write_npy(path, std::vector<std::int64_t>{-2}, "<f4", bytes_of(values)), std::invalid_argument);
  CHECK_THROWS_AS(write_npy(path, std::vector<std::int64_t>{2}, ">f4", bytes_of(values)), std::invalid_argument);
  CHECK(folder.entries().size() == 0);
}

TEST_CASE("npy: a write that fails half-way leaves the old file and no other") {
  const Folder folder;
  const std::string path = folder / "a.npy";
  put(path, "old contents");
  // A limit on the size of files stands in for a full disk. It would hold for the test program too, hence the child.
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_npy(path, std::vector<std::int64_t>{100000}, "<f4", bytes_of(std::vector<float>(100000)));
    } catch (const UsageError&) {
      ::_exit(42);
    } catch (...) {
    }
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 42));
  CHECK(contents(path) == "old contents");
  CHECK(folder.entries().size() == 1);
}

TEST_CASE("npy: a signal in the middle of a write leaves no file that is not whole") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Folder folder;
    const std::string path = folder / "a.npy";
    const std::vector<std::int64_t> shape{4 << 20};
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (const int s : {SIGINT, SIGTERM}) ::signal(s, SIG_DFL);  // the test framework has its own handlers
      const std::vector<float> values(4 << 20, 1.0f);
      for (;;) write_npy(path, shape, "<f4", bytes_of(values));
    }
    // Wait until a temporary file is there, so that the signal most likely arrives while it is written.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    bool seen = false;
    while (!seen && std::chrono::steady_clock::now() < deadline) {
      std::error_code error;
      for (fs::directory_iterator entry(folder.path(), error), end; !error && entry != end; entry.increment(error)) {
        seen = seen || entry->path().extension() == ".tmp";
      }
    }
    ::kill(child, signal);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(seen);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == signal));
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
      CHECK(entry.path().filename() == "a.npy");
      CHECK(read_npy(path).shape == shape);
    }
  }
}
