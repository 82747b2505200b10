// Text from elsewhere (arguments, names of files) as a message shows it: on one line, and no longer than a reader
// wants.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace flash {

/// `text` on one line: control characters, line separators and bytes that are not UTF-8 as "\n" or "\xff".
std::string escaped(std::string_view text);

/// The same with "..." in place of what goes beyond `limit` bytes of `text`.
std::string shortened(std::string_view text, std::size_t limit);

/// The same in quotes.
std::string in_quotes(std::string_view text, std::size_t limit = 60);

}  // namespace flash
