// The bf16 arithmetic peak: vdpbf16ps. Intrinsics and functions of internal linkage only: nothing
// here may be merged with a function that runs on a lesser processor.
#include <immintrin.h>

#include "kernels/cpu/probe_kernels.hpp"

namespace testbed::cpu {
namespace {

float run(int64_t n_steps) {
  constexpr int n = 24;
  __m512 sums[n];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0F);
  const auto a = (__m512bh)_mm512_set1_epi32(0x3f803f80);  // pairs of 1.0
  const auto b = (__m512bh)_mm512_set1_epi32(0x3f80bf80);  // 1.0, -1.0: the sums stay what they are
  for (int64_t step = 0; step < n_steps; ++step) {
#pragma GCC unroll 32
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
  }
  float total = 0.0F;
  for (const __m512& sum : sums) total += _mm512_cvtss_f32(sum);
  return total;
}

}  // namespace

FlopLoop flops_avx512_bf16() { return {run, int64_t{2} * 24 * 32}; }

}  // namespace testbed::cpu
