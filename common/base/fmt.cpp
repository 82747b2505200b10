// fmt, compiled once. Distribution packages have no static library of it, and as a header-only library it would be
// compiled into every object file again (2 s each). Here fmt is header-only; everywhere else its functions are
// external, and taking the address of the two that fmt::format and fmt::print call makes the compiler emit them.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace flash {

extern std::string (*const fmt_vformat)(fmt::string_view, fmt::format_args);
extern void (*const fmt_vprint)(fmt::string_view, fmt::format_args);
extern void (*const fmt_vprint_to_file)(std::FILE*, fmt::string_view, fmt::format_args);

std::string (*const fmt_vformat)(fmt::string_view, fmt::format_args) = fmt::vformat;
void (*const fmt_vprint)(fmt::string_view, fmt::format_args) = fmt::vprint;
void (*const fmt_vprint_to_file)(std::FILE*, fmt::string_view, fmt::format_args) = fmt::vprint;

}  // namespace flash
