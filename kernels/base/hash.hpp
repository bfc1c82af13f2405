// Stateless 64-bit mixing (the finaliser of SplitMix64, Steele et al. 2014) and a byte hash built
// on it: seeded draws that depend only on their arguments, and fingerprints of values that must be
// equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace testbed {

constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

inline uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0) {
  uint64_t hash = mix64(seed ^ bytes.size());
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = mix64(hash ^ word);
  }
  uint64_t tail = 0;
  if (i < bytes.size()) std::memcpy(&tail, bytes.data() + i, bytes.size() - i);
  return mix64(hash ^ tail);
}

}  // namespace testbed
