#include "runtime/accept/byte_pattern.hpp"

#include <algorithm>
#include <cstring>

namespace testbed {
namespace {

constexpr size_t word_bytes = sizeof(uint64_t);

// SplitMix64 (Steele, Lea and Flood, 2014), the i-th number of a seed.
uint64_t word(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

}  // namespace

uint64_t pattern_seed(std::initializer_list<uint64_t> parts) {
  uint64_t seed = 0;
  for (const uint64_t part : parts) seed = word(seed, part);
  return seed;
}

void fill_pattern(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes.size(); at += word_bytes) {
    const uint64_t value = word(seed, at / word_bytes);
    std::memcpy(bytes.data() + at, &value, std::min(word_bytes, bytes.size() - at));
  }
}

std::optional<WrongBytes> wrong_bytes(std::span<const std::byte> bytes, uint64_t seed) {
  WrongBytes wrong;
  for (size_t at = 0; at < bytes.size(); at += word_bytes) {
    const uint64_t value = word(seed, at / word_bytes);
    const size_t n = std::min(word_bytes, bytes.size() - at);
    if (std::memcmp(bytes.data() + at, &value, n) == 0) continue;
    for (size_t i = 0; i < n; ++i) {
      std::byte right{};
      std::memcpy(&right, reinterpret_cast<const std::byte*>(&value) + i, 1);
      const std::byte is = bytes[at + i];
      if (is == right) continue;
      if (wrong.count++ > 0) continue;
      wrong.first = static_cast<int64_t>(at + i);
      wrong.is = std::to_integer<uint8_t>(is);
      wrong.should_be = std::to_integer<uint8_t>(right);
    }
  }
  if (wrong.count == 0) return std::nullopt;
  return wrong;
}

}  // namespace testbed
