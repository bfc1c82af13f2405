// The probes' loops with AVX2. Intrinsics and functions of internal linkage only: nothing here may
// be merged with a function that runs on a lesser processor.
#include <immintrin.h>

#include "kernels/cpu/probe_kernels.hpp"

namespace testbed::cpu {

uint64_t read_avx2(const std::byte* begin, int64_t n_bytes) {
  constexpr int64_t n_streams = 4;
  constexpr int64_t line = 64;
  const int64_t stream_bytes = n_bytes / n_streams;
  __m256i sums[2 * n_streams];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t i = 0; i < stream_bytes; i += line) {
    for (int64_t s = 0; s < n_streams; ++s) {
      const auto* p = reinterpret_cast<const __m256i*>(begin + s * stream_bytes + i);
      sums[2 * s] = _mm256_add_epi64(sums[2 * s], _mm256_load_si256(p));
      sums[2 * s + 1] = _mm256_add_epi64(sums[2 * s + 1], _mm256_load_si256(p + 1));
    }
  }
  uint64_t total = 0;
  for (const __m256i& sum : sums) {
    alignas(32) uint64_t words[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(words), sum);
    for (const uint64_t word : words) total += word;
  }
  return total;
}

namespace {

float run(int64_t n_steps) {
  constexpr int n = 12;
  __m256 sums[n];
  for (__m256& sum : sums) sum = _mm256_set1_ps(1.0F);
  const __m256 a = _mm256_set1_ps(0.5F);
  const __m256 b = _mm256_set1_ps(1.0F);
  for (int64_t step = 0; step < n_steps; ++step) {
#pragma GCC unroll 32
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  float total = 0.0F;
  for (const __m256& sum : sums) total += _mm256_cvtss_f32(sum);
  return total;
}

}  // namespace

namespace {

float run_int8(int64_t n_steps) {
  constexpr int n = 12;
  __m256i sums[n];
#pragma GCC unroll 32
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  const __m256i a = _mm256_set1_epi8(1);
  const __m256i b = _mm256_set1_epi8(-1);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t step = 0; step < n_steps; ++step) {
#pragma GCC unroll 32
    for (__m256i& sum : sums) {
      __m256i product = _mm256_maddubs_epi16(a, b);
      __asm__("" : "+x"(product));  // one of its own each time
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(product, ones));
    }
  }
  __m256i total = _mm256_setzero_si256();
#pragma GCC unroll 32
  for (const __m256i& sum : sums) total = _mm256_add_epi32(total, sum);
  alignas(32) int32_t words[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), total);
  return static_cast<float>(words[0]);
}

}  // namespace

FlopLoop int8_avx2() { return {run_int8, int64_t{2} * 12 * 32}; }

FlopLoop flops_avx2() { return {run, int64_t{2} * 12 * 8}; }

}  // namespace testbed::cpu
