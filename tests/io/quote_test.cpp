// How a message shows text from elsewhere.
#include "common/base/quote.hpp"

#include <string>
#include <string_view>

#include "tests/catch.hpp"

using flash::escaped;
using flash::in_quotes;
using flash::shortened;

TEST_CASE("quote: what is plain text in UTF-8 is shown as it is") {
  for (const char* text :
       {"", "abc", "o.npy", "a b", "d = 64", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\\n"}) {
    CHECK(escaped(text) == text);
  }
  CHECK(in_quotes("\xc3\xa4") == "'\xc3\xa4'");
}

TEST_CASE("quote: control characters, line separators and bytes that are not UTF-8 are escaped") {
  CHECK(escaped("a\nb") == "a\\nb");
  CHECK(escaped("a\r\t\x1b[31m\x7f") == "a\\x0d\\x09\\x1b[31m\\x7f");
  CHECK(escaped(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(escaped("\xc2\x9b") == "\\xc2\\x9b");           // the control sequence introducer
  CHECK(escaped("\xe2\x80\xa8") == "\\xe2\\x80\\xa8");  // U+2028, a line separator
  CHECK(escaped("a\xff") == "a\\xff");
  CHECK(escaped("\xc3") == "\\xc3");                    // cut off
  CHECK(escaped("\xc3(") == "\\xc3(");                  // not continued
  CHECK(escaped("\xc0\xaf") == "\\xc0\\xaf");           // overlong
  CHECK(escaped("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(escaped("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
}

TEST_CASE("quote: what is long is cut, and not in the middle of a character") {
  CHECK(shortened("abcdef", 6) == "abcdef");
  CHECK(shortened("abcdef", 5) == "abcde...");
  CHECK(shortened("abc\xe2\x82\xac", 5) == "abc...");
  CHECK(shortened("abc\xe2\x82\xac", 6) == "abc\xe2\x82\xac");
  CHECK(in_quotes(std::string(100000, 'x')) == "'" + std::string(60, 'x') + "...'");
  CHECK(shortened("\x80\x80\x80", 2) == "...");  // nothing but the middle of characters
}
