// Quantised weights to f32 and x to codes with AVX-512. Intrinsics and functions of internal
// linkage only: nothing here may be merged with a function that runs on a lesser processor.
#include <immintrin.h>

#include "kernels/cpu/linear_expand_loops.hpp"
#include "kernels/cpu/linear_quantised.hpp"
#include "kernels/cpu/linear_x_sums.hpp"

namespace testbed::cpu {
namespace {

struct Lanes {
  using F = __m512;
  static constexpr int64_t width = 16;
  static F set1(float v) { return _mm512_set1_ps(v); }
  static F load_f32(const std::byte* p) { return _mm512_loadu_ps(p); }
  static F load_f16(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_u8(const std::byte* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  }
  static __m512i load(const std::byte* p) { return _mm512_load_si512(p); }
  static F field(__m512i codes, int shift, int mask) {
    const __m512i shifted = _mm512_srl_epi32(codes, _mm_cvtsi32_si128(shift));
    return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(mask)));
  }
  // Moved to their place in f32, magnitudes are 2^-120 of what they should be, subnormals too.
  static F e4m3(__m512i codes, int column) {
    const __m512i rows = _mm512_set4_epi32(static_cast<int>(0x80808006U),
                                           static_cast<int>(0x80808004U),
                                           static_cast<int>(0x80808002U),
                                           static_cast<int>(0x80808000U));
    const __m512i from = _mm512_set1_epi32(column / 2 * 8 + column % 2);
    const __m512i code = _mm512_shuffle_epi8(codes, _mm512_add_epi32(rows, from));
    const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
    const __m512 tiny = _mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20));
    const __m512i value = _mm512_castps_si512(_mm512_mul_ps(tiny, _mm512_set1_ps(0x1p120F)));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    const __m512i finite = _mm512_mask_mov_epi32(value, nan, _mm512_set1_epi32(0x7fc00000));
    const __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(code, magnitude), 24);
    return _mm512_castsi512_ps(_mm512_or_si512(finite, sign));
  }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
};

__m128i codes_of(__m256i x, __m512 scale, __mmask16 keep) {
  const __m512 values = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  const __m512i rounded = _mm512_maskz_cvtps_epi32(keep, _mm512_div_ps(values, scale));
  return _mm_max_epi8(_mm512_cvtsepi32_epi8(rounded), _mm_set1_epi8(-127));
}

// The largest of 32 magnitudes, as bits: NaN above infinity above all numbers.
uint32_t largest_magnitude(__m512i x) {
  const __m512i magnitudes = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes),
                                        _mm512_extracti64x4_epi64(magnitudes, 1));
  const __m128i quarter =
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i inverted = _mm_xor_si128(quarter, _mm_set1_epi16(-1));
  return ~static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(inverted))) & 0xffffU;
}

}  // namespace

void avx512_expand(const WeightFormat& format, const WeightGroup& group, float* out) {
  expand_group<Lanes>(format, group, out);
}

void avx512_quantise_x(const bf16* x, int64_t n_cols, const QuantisedX& out) {
  constexpr int64_t block_cols = 32;
  for (int64_t begin = 0, b = 0; begin < n_cols; begin += block_cols, ++b) {
    const int64_t n = n_cols - begin;
    const auto mask = n >= block_cols ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
    const __m512i bits = _mm512_maskz_loadu_epi16(mask, x + begin);
    const uint32_t largest = largest_magnitude(bits);
    const bool finite = largest < 0x7f80U;
    const __m128 scale = _mm_div_ss(
        _mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(largest << 16))), _mm_set_ss(127.0F));
    const __mmask16 keep = finite && largest != 0 ? 0xffff : 0;
    const __m512 scales = _mm512_broadcastss_ps(scale);
    const __m128i low = codes_of(_mm512_castsi512_si256(bits), scales, keep);
    const __m128i high = codes_of(_mm512_extracti64x4_epi64(bits, 1), scales, keep);
    const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    store_block(codes, scale, finite, b, out);
  }
}

}  // namespace testbed::cpu
