#include "common/base/quote.hpp"

#include <fmt/format.h>

namespace flash {
namespace {

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

/// Bytes of the UTF-8 character at the start of `text`, or 0 where there is none. Overlong forms, surrogates and values
/// beyond U+10FFFF are none (RFC 3629).
std::size_t utf8_length(std::string_view text) {
  const unsigned first = byte_at(text, 0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xc2 && first < 0xe0   ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (byte_at(text, i) >> 6 != 2) return 0;
  }
  const unsigned second = byte_at(text, 1);
  const bool none = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                    (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return none ? 0 : length;
}

/// Whether a terminal may take the character for more than a sign in a line: a control character, or a line separator.
bool controls(std::string_view character) {
  const unsigned first = byte_at(character, 0);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return (first == 0xc2 && byte_at(character, 1) < 0xa0) || character == "\u2028" || character == "\u2029";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    text.remove_prefix(character.size());
    if (character == "\n") {
      out += "\\n";
    } else if (length == 0 || controls(character)) {
      for (std::size_t i = 0; i < character.size(); ++i) out += fmt::format("\\x{:02x}", byte_at(character, i));
    } else {
      out += character;
    }
  }
  return out;
}

std::string shortened(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return escaped(text);
  while (limit > 0 && byte_at(text, limit) >> 6 == 2) --limit;  // not in the middle of a character
  return escaped(text.substr(0, limit)) + "...";
}

std::string in_quotes(std::string_view text, std::size_t limit) { return fmt::format("'{}'", shortened(text, limit)); }

}  // namespace flash
