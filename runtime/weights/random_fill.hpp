// The arithmetic of random weights, by instruction set: a number is a function of key and index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace testbed {

// Of up to 2^32 numbers.
struct RandomKey {
  uint32_t add;
  uint32_t flip;
};

// n numbers from index `first` on, of mean zero, as F32 or BF16: the sum of two uniform 16-bit
// numbers, centred (triangular on [-65535, 65535]), times scale.
using RandomFill =
    void (*)(RandomKey key, uint32_t first, int64_t n, float scale, DType to, std::byte* out);

// Standard deviation before scale: sqrt(2 * (65536^2 - 1) / 12).
inline constexpr double triangular_std = 26754.9;

// Those that this processor has, the fastest first; all give the same bits.
std::vector<RandomFill> random_fill_versions();

}  // namespace testbed
