// Text from outside: files read whole, numbers parsed the same under every locale, and quoting of
// user text in messages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace testbed {

// The bytes of a regular file of at most 64 MiB. Throws ConfigError naming it.
std::string read_text_file(const std::filesystem::path& path);

// `text` in double quotes on one line: control characters escaped, invalid UTF-8 replaced, long
// text cut, so that a message can quote anything (D25).
std::string in_quotes(std::string_view text);

// A whole decimal number in [lowest, highest]; anything else is a ConfigError that starts with
// `what` (an option or a field).
int64_t parse_int(std::string_view what, std::string_view text, int64_t lowest, int64_t highest);
uint64_t parse_uint64(std::string_view what, std::string_view text);

// A finite decimal number with '.' as its point.
double parse_double(std::string_view what, std::string_view text);

}  // namespace testbed
