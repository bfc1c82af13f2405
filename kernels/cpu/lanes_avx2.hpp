// One AVX2 register of floats, for the loops that are written over vectors. Of internal linkage:
// nothing may be merged with a copy that was compiled for another instruction set.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.hpp"
#include "kernels/cpu/unroll.hpp"

namespace testbed::cpu {
namespace {

struct Lanes {
  using V = __m256;
  static constexpr int64_t width = 8;
  static constexpr int block_rows = 3;  // with four vectors each, they fill the registers
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static V load(const bf16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  // As to_bf16(): to nearest even, a NaN stays one.
  static void store(bf16* p, V v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i wide = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    const __m256i packed = _mm256_packus_epi32(wide, wide);
    const __m256i ordered = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(ordered));
  }
  static V set1(float v) { return _mm256_set1_ps(v); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V div(V a, V b) { return _mm256_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static V min(V a, V b) { return _mm256_min_ps(a, b); }
  static V round(V v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V power_of_two(V v) {
    const __m256i k = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(k, 23));
  }
  // value where lo <= index < hi, else otherwise.
  static V select(V index, float lo, float hi, V value, V otherwise) {
    const V from = _mm256_cmp_ps(index, set1(lo), _CMP_GE_OQ);
    const V before = _mm256_cmp_ps(index, set1(hi), _CMP_LT_OQ);
    return _mm256_blendv_ps(otherwise, value, _mm256_and_ps(from, before));
  }
  // The first n of `width` 32-bit units at p, the rest zero.
  static V load_units(const std::byte* p, int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
    return _mm256_maskload_ps(reinterpret_cast<const float*>(p), mask);
  }
  // The bf16 in the low and the high half of each unit.
  static V low_half(V units) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(units), 16));
  }
  static V high_half(V units) {
    return _mm256_and_ps(units, _mm256_castsi256_ps(_mm256_set1_epi32(-65536)));
  }
  // v[i] lane j <-> v[j] lane i: pairs of lanes, of two, of four.
  static void transpose(V* v) {
    V t[8];
    TESTBED_UNROLL
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    TESTBED_UNROLL
    for (int i = 0; i < 8; i += 4) {
      TESTBED_UNROLL
      for (int j = 0; j < 2; ++j) {
        const __m256d a = _mm256_castps_pd(t[i + j]);
        const __m256d b = _mm256_castps_pd(t[i + 2 + j]);
        v[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
        v[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
      }
    }
    // v[4 g + i] holds, in its half h, column 4 h + i of rows 4 g ... 4 g + 3.
    TESTBED_UNROLL
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2f128_ps(v[i], v[4 + i], 0x20);
      t[4 + i] = _mm256_permute2f128_ps(v[i], v[4 + i], 0x31);
    }
    TESTBED_UNROLL
    for (int i = 0; i < 8; ++i) v[i] = t[i];
  }
};

}  // namespace
}  // namespace testbed::cpu
