// What the AVX2 and AVX-512 versions of quantising x have in common. Of internal linkage: nothing
// may be merged with a copy that was compiled for another instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear_x.hpp"

namespace testbed::cpu {
namespace {

// Stores block b of x: 32 codes, and the scale and sums that go with them.
void store_block(__m256i codes, __m128 scale, bool finite, int64_t b, const QuantisedX& out) {
  constexpr int64_t block_cols = PackedLayout::block_cols;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.codes + b * block_cols), codes);
  // Sums of bytes are of unsigned ones.
  const __m256i shifted = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
  const __m256i sums = _mm256_sad_epu8(shifted, _mm256_setzero_si256());
  const __m128i pairs =
      _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  const int sum = static_cast<int>(_mm_cvtsi128_si64(pairs) + _mm_extract_epi64(pairs, 1)) -
                  128 * static_cast<int>(block_cols);
  const float held = finite ? _mm_cvtss_f32(scale) : __builtin_nanf("");
  out.scales[b] = held;
  out.negated_sums[b] = -sum;
  out.sums[b] = held * static_cast<float>(sum);
}

}  // namespace
}  // namespace testbed::cpu
