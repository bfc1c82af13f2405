#include "runtime/text/utf8.hpp"

namespace testbed {
namespace {

struct Lead {
  size_t size;           // bytes of the character; 0: not a first byte
  uint8_t second_first;  // range of its second byte
  uint8_t second_last;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit utf8_unit(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  if (lead.size == 0) return {Utf8Unit::Kind::invalid, 1};
  for (size_t i = 1; i < lead.size; ++i) {
    if (i == text.size()) return {Utf8Unit::Kind::cut_short, i};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t first = i == 1 ? lead.second_first : uint8_t{0x80};
    const uint8_t last = i == 1 ? lead.second_last : uint8_t{0xBF};
    if (byte < first || byte > last) return {Utf8Unit::Kind::invalid, i};
  }
  return {Utf8Unit::Kind::character, lead.size};
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = utf8_unit(text.substr(at));
    if (unit.kind != Utf8Unit::Kind::character) break;
    at += unit.size;
  }
  return at;
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto tail = [&](int shift) {
    out += static_cast<char>(0x80U | ((code_point >> shift) & 0x3FU));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0U | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0U | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0U | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

uint32_t utf8_code_point(std::string_view bytes) {
  constexpr uint32_t lead_mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  uint32_t code = static_cast<uint8_t>(bytes[0]) & lead_mask[bytes.size()];
  for (const char c : bytes.substr(1)) code = (code << 6) | (static_cast<uint8_t>(c) & 0x3FU);
  return code;
}

}  // namespace testbed
