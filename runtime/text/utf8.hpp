// UTF-8 as the Unicode Standard, table 3-7, defines it: no surrogates, nothing overlong, nothing
// above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace testbed {

constexpr std::string_view utf8_replacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Unit {
  enum class Kind : uint8_t {
    character,  // one well-formed character of `size` bytes
    invalid,    // `size` bytes that cannot belong to one (a maximal subpart: one U+FFFD)
    cut_short,  // the text ends inside a character: its `size` first bytes are there
  };
  Kind kind = Kind::invalid;
  size_t size = 0;  // bytes, at least 1
};

// The unit at the start of a non-empty text.
Utf8Unit utf8_unit(std::string_view text);

// Bytes of the longest well-formed prefix.
size_t utf8_valid_prefix(std::string_view text);

void append_utf8(std::string& out, uint32_t code_point);

// Code point of the well-formed character that `bytes` is.
uint32_t utf8_code_point(std::string_view bytes);

}  // namespace testbed
