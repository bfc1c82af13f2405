// What the probes' buffers hold: words whose sums are known without reading them.
#pragma once

#include <cstdint>

namespace testbed::cuda {

constexpr uint32_t pattern_word(uint64_t i) { return static_cast<uint32_t>(i) * 2654435761U; }

// Of the words 0, stride, 2 stride, ... n_words of them, modulo 2^32.
constexpr uint32_t pattern_sum(uint64_t n_words, uint64_t stride = 1) {
  if (n_words == 0) return 0;
  const uint64_t pairs =
      n_words % 2 == 0 ? n_words / 2 * (n_words - 1) : (n_words - 1) / 2 * n_words;
  return pattern_word(pairs * stride);
}

}  // namespace testbed::cuda
