// What docs/pages/swizzle_and_wgmma.md says, formula by formula, against docs/figures/layouts.cpp, which asks the
// layouts, the copy engine and wgmma; docs/make_figures.py draws the same tables.
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "common/base/layout.hpp"
#include "common/base/tensor_map.hpp"
#include "tests/catch.hpp"
#include "tests/cli/program.hpp"

using flash::Panels128;
using flash::Swizzle;
using flash::Swizzle128;
using flash::swizzle_offset;

namespace {

using Json = nlohmann::json;

/// What the program prints.
const Json& tables() {
  static const Json printed = [] {
    const flash::test::Ended ended = flash::test::run({std::string(FLASH_PROGRAMS) + "/layouts"});
    if (ended.code != 0) throw std::runtime_error("layouts: " + ended.err);
    return Json::parse(ended.out);
  }();
  return printed;
}

int byte_of(const char* table, int row, int col) { return tables()[table][std::size_t(row)][std::size_t(col)]; }

/// The page's formula for a tile of 64 rows and 128 columns of 16 bits.
int page_byte(int row, int col) { return col / 64 * 8192 + row * 128 + (col % 64 / 8 ^ row % 8) * 16 + col % 8 * 2; }

/// How many elements of a table of [64, 128] bytes the page's formula does not give.
int differences(const char* table) {
  int count = 0;
  for (int row = 0; row < 64; ++row) {
    for (int col = 0; col < 128; ++col) count += byte_of(table, row, col) != page_byte(row, col);
  }
  return count;
}

/// The banks, of 4 bytes each, of 16 bytes of shared memory.
void add_banks(std::set<int>& banks, int byte) {
  for (int i = 0; i < 16; i += 4) banks.insert((byte + i) / 4 % 32);
}

template <int Bytes, int Rows, int Cols>
void expect_address_bits() {
  int wrong = 0;
  for (int row = 0; row < Rows; ++row) {
    for (int col = 0; col < Cols; ++col) {
      const int plain = Panels128::offset<Bytes, Rows, Cols>(row, col) * Bytes;
      const int swizzled = Swizzle128::offset<Bytes, Rows, Cols>(row, col) * Bytes;
      wrong += swizzled != (plain ^ (plain >> 7 & 7) << 4);
      wrong += unsigned(swizzled) != swizzle_offset(Swizzle::bytes128, unsigned(plain));
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("the swizzle is an exclusive or of address bits 4 to 6 with bits 7 to 9") {
  expect_address_bits<2, 64, 64>();
  expect_address_bits<2, 64, 128>();
  expect_address_bits<2, 192, 256>();
  expect_address_bits<4, 16, 64>();
  CHECK(swizzle_offset(Swizzle::bytes128, swizzle_offset(Swizzle::bytes128, 0x1234)) == 0x1234);
}

TEST_CASE("the swizzle goes by addresses: in a tile that starts at 128 the first row is moved already") {
  CHECK(swizzle_offset(Swizzle::bytes128, 1024) == 1024);
  CHECK(swizzle_offset(Swizzle::bytes128, 128) == 128 + 16);
}

TEST_CASE("eight rows of one piece lie in four banks without the swizzle and in all banks with it") {
  for (std::size_t piece = 0; piece < 8; ++piece) {
    std::set<int> plain, swizzled;
    for (std::size_t row = 0; row < 8; ++row) {
      add_banks(plain, tables()["atom"]["plain"][row][piece]);
      add_banks(swizzled, tables()["atom"]["swizzled"][row][piece]);
    }
    CHECK(plain.size() == 4);
    CHECK(swizzled.size() == 32);
  }
}

TEST_CASE("the copy engine leaves a tile in panels, swizzled, and both products read it there") {
  CHECK(differences("copied") == 0);
  CHECK(differences("keys") == 0);
  CHECK(differences("values") == 0);
}

TEST_CASE("a step of Q·K^T starts 32 bytes further, or in the next panel, and reads two pieces of each row") {
  for (int step = 0; step < 8; ++step) {
    CHECK(byte_of("keys", 0, 16 * step) == step / 4 * 8192 + step % 4 * 32);
    for (int row = 0; row < 64; ++row) {
      // Without the swizzle the operand would be at start + 128·row; its bits 7 to 9 then move the piece.
      const auto plain = unsigned(step / 4 * 8192 + step % 4 * 32 + 128 * row);
      CHECK(byte_of("keys", row, 16 * step) == int(swizzle_offset(Swizzle::bytes128, plain)));
      CHECK(byte_of("keys", row, 16 * step + 8) == int(swizzle_offset(Swizzle::bytes128, plain + 16)));
    }
  }
}

TEST_CASE("in odd keys the two pieces of a step have changed places") {
  CHECK(byte_of("keys", 5, 16) == 752);
  CHECK(byte_of("keys", 5, 24) == 736);
}

TEST_CASE("a step of P·V starts 16 rows further and reads whole rows of all panels") {
  for (int step = 0; step < 4; ++step) {
    CHECK(byte_of("values", 16 * step, 0) == 2048 * step);
    std::set<int> bytes;
    for (int row = 16 * step; row < 16 * step + 16; ++row) {
      for (int col = 0; col < 128; ++col) bytes.insert(byte_of("values", row, col));
    }
    std::set<int> whole_rows;
    for (int i = 0; i < 2048; i += 2) {
      whole_rows.insert(2048 * step + i);
      whole_rows.insert(8192 + 2048 * step + i);
    }
    CHECK(bytes == whole_rows);
  }
}

TEST_CASE("the descriptors say 1024 bytes from 8 rows to the next, and for V the distance of the panels") {
  const Json& k = tables()["descriptors"]["keys"];
  const Json& v = tables()["descriptors"]["values"];
  for (const Json& descriptor : {k, v}) {
    CHECK(descriptor["stride"] == 1024);
    CHECK(descriptor["swizzle"] == 1);
    CHECK(descriptor["base"] == 0);
  }
  CHECK(k["leading"] == 16);
  CHECK(v["leading"] == 8192);
  CHECK(byte_of("keys", 8, 0) - byte_of("keys", 0, 0) == k["stride"]);
  CHECK(byte_of("values", 8, 0) - byte_of("values", 0, 0) == v["stride"]);
  CHECK(byte_of("values", 0, 64) - byte_of("values", 0, 0) == v["leading"]);
}

TEST_CASE("thread t has rows 16(t/32) + t%32/4 and 8 more, and of each 8 columns 2(t%4) and the next") {
  int wrong = 0;
  for (int t = 0; t < 128; ++t) {
    for (int i = 0; i < 32; ++i) {
      const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), col = 8 * (i / 4) + 2 * (t % 4) + i % 2;
      wrong += tables()["sums"][std::size_t(t)][std::size_t(i)] != Json{row, col};
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("sums 2r and 2r + 1 of a thread lie where the two elements of its operand register r do") {
  int wrong = 0;
  for (std::size_t t = 0; t < 128; ++t) {
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t half = 0; half < 2; ++half) {
        wrong += tables()["operand"][t][r][half] != tables()["sums"][t][2 * r + half];
      }
    }
  }
  CHECK(wrong == 0);
}
