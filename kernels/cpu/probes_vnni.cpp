// The int8 arithmetic peak: vpdpbusd. Intrinsics and functions of internal linkage only: nothing
// here may be merged with a function that runs on a lesser processor.
#include <immintrin.h>

#include "kernels/cpu/probe_kernels.hpp"

namespace testbed::cpu {
namespace {

float run(int64_t n_steps) {
  constexpr int n = 24;
  __m512i sums[n];
#pragma GCC unroll 32
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(1);
  const __m512i b = _mm512_set1_epi32(0x01ff01ff);  // 1, -1: the sums stay what they are
  for (int64_t step = 0; step < n_steps; ++step) {
#pragma GCC unroll 32
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, a, b);
      __asm__("" : "+v"(sum));  // a number of its own, though all are equal
    }
  }
  __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 32
  for (const __m512i& sum : sums) total = _mm512_add_epi32(total, sum);
  return static_cast<float>(_mm512_reduce_add_epi32(total));
}

}  // namespace

FlopLoop int8_avx512_vnni() { return {run, int64_t{2} * 24 * 64}; }

}  // namespace testbed::cpu
