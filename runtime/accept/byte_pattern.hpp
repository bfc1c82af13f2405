// Bytes that only their seed and place tell: what is sent where every byte that arrives is looked
// at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace testbed {

// One seed of several numbers, such that seeds of other numbers have nothing to do with it.
uint64_t pattern_seed(std::initializer_list<uint64_t> parts);

// Equal seeds give equal bytes.
void fill_pattern(std::span<std::byte> bytes, uint64_t seed);

struct WrongBytes {
  int64_t first = 0;  // offset
  int64_t count = 0;
  uint8_t is = 0;  // the first
  uint8_t should_be = 0;
};
// Every byte against fill_pattern(seed); nullopt: all are right.
std::optional<WrongBytes> wrong_bytes(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace testbed
