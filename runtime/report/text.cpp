#include "runtime/report/text.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace testbed {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

struct Decoded {
  size_t n_bytes = 1;
  uint32_t code_point = 0;
  bool valid = false;
};

// RFC 3629: shortest form, no surrogates, at most U+10FFFF. On failure n_bytes is what to skip.
Decoded decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {1, lead, true};
  const size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return {};
  uint32_t code_point = lead & (0xFFU >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    if (i >= text.size() || (byte(i) & 0xC0U) != 0x80) return {i, 0, false};
    code_point = code_point << 6 | (byte(i) & 0x3FU);
  }
  constexpr uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (code_point < smallest[n] || surrogate || code_point > 0x10FFFF) return {};
  return {n, code_point, true};
}

std::string convert(std::string_view text, bool escape_controls) {
  std::string out;
  while (!text.empty()) {
    const Decoded next = decode(text);
    const bool control =
        next.code_point < 0x20 || (next.code_point >= 0x7F && next.code_point < 0xA0);
    if (!next.valid) {
      out += replacement;
    } else if (control && escape_controls) {
      out += fmt::format("\\x{:02x}", next.code_point);
    } else {
      out += text.substr(0, next.n_bytes);
    }
    text.remove_prefix(next.n_bytes);
  }
  return out;
}

}  // namespace

std::string valid_utf8(std::string_view text) { return convert(text, false); }
std::string printable(std::string_view text) { return convert(text, true); }

}  // namespace testbed
