#include "runtime/text/byte_level.hpp"

#include <array>

#include "runtime/text/utf8.hpp"

namespace testbed {
namespace {

constexpr uint32_t n_code_points = 0x144;

struct ByteMap {
  std::array<uint32_t, 256> code_point{};
  std::array<int, n_code_points> byte{};  // -1: stands for no byte
};

constexpr ByteMap make_byte_map() {
  ByteMap map;
  for (int& byte : map.byte) byte = -1;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const uint32_t code = printable ? b : next++;
    map.code_point[b] = code;
    map.byte[code] = static_cast<int>(b);
  }
  return map;
}

constexpr ByteMap byte_map = make_byte_map();

}  // namespace

std::optional<std::string> byte_level_bytes(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Unit unit = utf8_unit(spelling);
    if (unit.kind != Utf8Unit::Kind::character) return std::nullopt;
    const uint32_t code = utf8_code_point(spelling.substr(0, unit.size));
    if (code >= n_code_points || byte_map.byte[code] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_map.byte[code]);
    spelling.remove_prefix(unit.size);
  }
  return bytes;
}

std::string byte_level_spelling(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) append_utf8(spelling, byte_map.code_point[static_cast<uint8_t>(c)]);
  return spelling;
}

}  // namespace testbed
