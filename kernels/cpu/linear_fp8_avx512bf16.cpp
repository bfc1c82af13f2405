// fp8 weights times bf16 x with vdpbf16ps. Intrinsics and functions of internal linkage only:
// nothing here may be merged with a function that runs on a lesser processor.
#include <immintrin.h>

#include "kernels/cpu/linear_quantised.hpp"
#include "kernels/cpu/linear_quantised_groups.hpp"

namespace testbed::cpu {
namespace {

constexpr int n_panels = 2;  // of a tile; a last one alone is computed twice and stored once
constexpr int max_rows = 12;

// 64 codes as bf16: a code from 8 on is (code << 4) + 0x3c00 (the exponent's bias grows by 120), so
// its high half of the byte decides the upper byte; the subnormals 0 ... 7 and NaN are looked up.
inline void to_bf16_pairs(__m512i codes, __m512i (&pairs)[2]) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i upper_normal = _mm512_set4_epi32(0x43424140, 0x3f3e3d3c, 0x43424140, 0x3f3e3d3c);
  // By m: upper and lower byte of m 2^-9; 15: of NaN.
  const __m512i upper_special = _mm512_set4_epi32(0x7f000000, 0, 0x3c3c3c3c, 0x3b3b3b00);
  const __m512i lower_special = _mm512_set4_epi32(
      static_cast<int>(0xc0000000U), 0, 0x60402000, static_cast<int>(0xc0800000U));
  const __m512i upper_index = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
  const __m512i lower_index = _mm512_and_si512(codes, nibble);
  // Twice the magnitude plus 2, modulo 256: at most 16 for 0 ... 7 and for NaN, 127.
  const __m512i twice = _mm512_add_epi8(_mm512_add_epi8(codes, codes), _mm512_set1_epi8(2));
  const __mmask64 special = _mm512_cmple_epu8_mask(twice, _mm512_set1_epi8(16));
  __m512i upper = _mm512_shuffle_epi8(upper_normal, upper_index);
  __m512i lower = _mm512_slli_epi16(lower_index, 4);
  upper = _mm512_mask_shuffle_epi8(upper, special, upper_special, lower_index);
  lower = _mm512_mask_shuffle_epi8(lower, special, lower_special, lower_index);
  constexpr int a_or_b_and_c = 0xf8;
  upper = _mm512_ternarylogic_epi32(upper, codes, _mm512_set1_epi8(-128), a_or_b_and_c);
  pairs[0] = _mm512_unpacklo_epi8(lower, upper);
  pairs[1] = _mm512_unpackhi_epi8(lower, upper);
}

template <int M>
inline void add_group(const LinearTile& t,
                      const WeightGroup& group,
                      int64_t second,
                      __m512 (&sum)[n_panels][M]) {
  const auto* x = static_cast<const int32_t*>(t.x) + group.first_col / 2 * M;
  const std::byte* codes = group.codes;
  for (int64_t column = 0; column < group.n_cols; column += 4, codes += 64, x += int64_t{2} * M) {
    if (t.prefetch_x != 0) {
      _mm_prefetch(reinterpret_cast<const std::byte*>(x) + t.prefetch_x, _MM_HINT_T1);
    }
    TESTBED_UNROLL
    for (int64_t p = 0; p < n_panels; ++p) {
      const std::byte* from = codes + p * second;
      if (t.prefetch_w != 0) _mm_prefetch(from + t.prefetch_w, _MM_HINT_T1);
      __m512i pairs[2];
      to_bf16_pairs(_mm512_load_si512(from), pairs);
      TESTBED_UNROLL
      for (int64_t i = 0; i < 2; ++i) {
        TESTBED_UNROLL
        for (int64_t r = 0; r < M; ++r) {
          const auto value = (__m512bh)_mm512_set1_epi32(x[i * M + r]);
          sum[p][r] = _mm512_dpbf16_ps(sum[p][r], (__m512bh)pairs[i], value);
        }
      }
    }
  }
}

// Where a row is one group, c holds the unscaled sums until the last k block.
template <int M>
void tile(const LinearTile& t) {
  const int64_t second = t.n_panels == 2 ? t.panel_bytes : 0;
  const bool one_group = t.layout->format.group_cols == 0;
  bool first = t.first;
  for_each_group(t, [&](const WeightGroup& group) {
    __m512 sum[n_panels][M];
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) {
      TESTBED_UNROLL
      for (int64_t p = 0; p < n_panels; ++p) {
        const bool go_on = one_group && !t.first && p < t.n_panels;
        sum[p][r] = go_on ? _mm512_loadu_ps(t.c + r * t.c_stride + 16 * p) : _mm512_setzero_ps();
      }
    }
    add_group<M>(t, group, second, sum);
    TESTBED_UNROLL
    for (int64_t p = 0; p < n_panels; ++p) {
      if (p >= t.n_panels) continue;
      const __m512 scale = _mm512_loadu_ps(group.scales + p * second);
      TESTBED_UNROLL
      for (int64_t r = 0; r < M; ++r) {
        float* c = t.c + r * t.c_stride + 16 * p;
        if (one_group) {
          sum[p][r] = t.last ? _mm512_mul_ps(sum[p][r], scale) : sum[p][r];
        } else {
          const __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
          sum[p][r] = _mm512_fmadd_ps(sum[p][r], scale, before);
        }
        _mm512_storeu_ps(c, sum[p][r]);
      }
    }
    first = false;
  });
}

void dispatch(const LinearTile& t) {
  using TileFunction = void (*)(const LinearTile&);
  static constexpr TileFunction tiles[max_rows] = {tile<1>,
                                                   tile<2>,
                                                   tile<3>,
                                                   tile<4>,
                                                   tile<5>,
                                                   tile<6>,
                                                   tile<7>,
                                                   tile<8>,
                                                   tile<9>,
                                                   tile<10>,
                                                   tile<11>,
                                                   tile<12>};
  tiles[t.n_rows - 1](t);
}

}  // namespace

LinearKernel avx512_bf16_fp8_kernel() {
  return {.x_packing = XPacking::bf16_pairs,
          .max_rows = max_rows,
          .n_accumulators = n_panels * max_rows,
          .tile = dispatch,
          .row_panels = n_panels,
          .max_panels = n_panels};
}

}  // namespace testbed::cpu
