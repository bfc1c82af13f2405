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

// Whole words at a time: most messages are right, and long.
bool is_pattern(std::span<const std::byte> bytes, uint64_t seed) {
  const size_t n_words = bytes.size() / word_bytes;
  uint64_t differences = 0;
  for (size_t i = 0; i < n_words; ++i) {
    uint64_t is = 0;
    std::memcpy(&is, bytes.data() + i * word_bytes, word_bytes);
    differences |= is ^ word(seed, i);
  }
  const std::span<const std::byte> rest = bytes.subspan(n_words * word_bytes);
  const uint64_t last = word(seed, n_words);
  return differences == 0 && (rest.empty() || std::memcmp(rest.data(), &last, rest.size()) == 0);
}

}  // namespace

uint64_t pattern_seed(std::initializer_list<uint64_t> parts) {
  uint64_t seed = 0;
  for (const uint64_t part : parts) seed = word(seed, part);
  return seed;
}

void fill_pattern(std::span<std::byte> bytes, uint64_t seed) {
  const size_t n_words = bytes.size() / word_bytes;
  for (size_t i = 0; i < n_words; ++i) {
    const uint64_t value = word(seed, i);
    std::memcpy(bytes.data() + i * word_bytes, &value, word_bytes);
  }
  const std::span<std::byte> rest = bytes.subspan(n_words * word_bytes);
  const uint64_t last = word(seed, n_words);
  if (!rest.empty()) std::memcpy(rest.data(), &last, rest.size());
}

std::optional<WrongBytes> wrong_bytes(std::span<const std::byte> bytes, uint64_t seed) {
  if (is_pattern(bytes, seed)) return std::nullopt;
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
  return wrong;
}

}  // namespace testbed
