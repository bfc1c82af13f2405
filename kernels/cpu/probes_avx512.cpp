// The probes' loops with AVX-512. Intrinsics and functions of internal linkage only: nothing here
// may be merged with a function that runs on a lesser processor.
#include <immintrin.h>

#include "kernels/cpu/probe_kernels.hpp"

namespace testbed::cpu {

uint64_t read_avx512(const std::byte* begin, int64_t n_bytes) {
  constexpr int64_t n_streams = 4;
  constexpr int64_t line = 64;
  const int64_t stream_bytes = n_bytes / n_streams;
  __m512i sums[n_streams];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t i = 0; i < stream_bytes; i += line) {
#pragma GCC unroll 4
    for (int64_t s = 0; s < n_streams; ++s) {
      const __m512i value = _mm512_load_si512(begin + s * stream_bytes + i);
      sums[s] = _mm512_add_epi64(sums[s], value);
    }
  }
  uint64_t total = 0;
  for (const __m512i& sum : sums) {
    alignas(64) uint64_t words[8];
    _mm512_store_si512(words, sum);
    for (const uint64_t word : words) total += word;
  }
  return total;
}

namespace {

float run(int64_t n_steps) {
  constexpr int n = 24;
  __m512 sums[n];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0F);
  const __m512 a = _mm512_set1_ps(0.5F);
  const __m512 b = _mm512_set1_ps(1.0F);
  for (int64_t step = 0; step < n_steps; ++step) {
#pragma GCC unroll 32
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  float total = 0.0F;
  for (const __m512& sum : sums) total += _mm512_cvtss_f32(sum);
  return total;
}

}  // namespace

namespace {

float run_int8(int64_t n_steps) {
  constexpr int n = 24;
  __m512i sums[n];
#pragma GCC unroll 32
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(1);
  const __m512i b = _mm512_set1_epi8(-1);
  const __m512i ones = _mm512_set1_epi16(1);
  for (int64_t step = 0; step < n_steps; ++step) {
#pragma GCC unroll 32
    for (__m512i& sum : sums) {
      __m512i product = _mm512_maddubs_epi16(a, b);
      __asm__("" : "+v"(product));  // one of its own each time
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(product, ones));
    }
  }
  __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 32
  for (const __m512i& sum : sums) total = _mm512_add_epi32(total, sum);
  return static_cast<float>(_mm512_reduce_add_epi32(total));
}

}  // namespace

FlopLoop int8_avx512() { return {run_int8, int64_t{2} * 24 * 64}; }

FlopLoop flops_avx512() { return {run, int64_t{2} * 24 * 16}; }

}  // namespace testbed::cpu
