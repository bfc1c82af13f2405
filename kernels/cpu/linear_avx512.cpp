// F32 tiles of linear() with AVX-512; weights are expanded to f32 in registers. Intrinsics and
// static functions only: nothing here may be merged with a function that runs on a lesser
// processor.
#include <immintrin.h>

#include "kernels/cpu/linear_kernels.hpp"

namespace testbed::cpu {
namespace {

// One step is one or two columns of a panel: 64 bytes (F32, BF16) or 32 (F16).
struct F32Weights {
  static constexpr int64_t step_cols = 1;
  static constexpr int64_t step_bytes = 64;
  static void load(const std::byte* w, __m512* columns) { columns[0] = _mm512_load_ps(w); }
};
struct F16Weights {
  static constexpr int64_t step_cols = 1;
  static constexpr int64_t step_bytes = 32;
  static void load(const std::byte* w, __m512* columns) {
    columns[0] = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(w)));
  }
};
struct Bf16Weights {
  static constexpr int64_t step_cols = 2;
  static constexpr int64_t step_bytes = 64;
  static void load(const std::byte* w, __m512* columns) {
    const __m512i pairs = _mm512_load_si512(w);
    columns[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    columns[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
  }
};

template <typename Weights, int P, int M>
void tile(const LinearTile& t) {
  __m512 sum[P][M];
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) {
      sum[p][r] = t.first ? _mm512_setzero_ps() : _mm512_loadu_ps(t.c + r * t.c_stride + 16 * p);
    }
  }
  const std::byte* w = t.w;
  const auto* x = static_cast<const float*>(t.x);
  const int64_t n_steps = t.n_cols / Weights::step_cols;
  for (int64_t j = 0; j < n_steps; ++j) {
    if (t.prefetch_x != 0) {
      _mm_prefetch(reinterpret_cast<const std::byte*>(x) + t.prefetch_x, _MM_HINT_T1);
    }
    __m512 columns[P][Weights::step_cols];
    TESTBED_UNROLL
    for (int64_t p = 0; p < P; ++p) {
      Weights::load(w + p * t.panel_bytes, columns[p]);
      if (t.prefetch_w != 0) _mm_prefetch(w + p * t.panel_bytes + t.prefetch_w, _MM_HINT_T1);
    }
    TESTBED_UNROLL
    for (int64_t col = 0; col < Weights::step_cols; ++col) {
      TESTBED_UNROLL
      for (int64_t r = 0; r < M; ++r) {
        const __m512 value = _mm512_set1_ps(x[col * M + r]);
        TESTBED_UNROLL
        for (int64_t p = 0; p < P; ++p) {
          sum[p][r] = _mm512_fmadd_ps(columns[p][col], value, sum[p][r]);
        }
      }
    }
    w += Weights::step_bytes;
    x += Weights::step_cols * M;
  }
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) _mm512_storeu_ps(t.c + r * t.c_stride + 16 * p, sum[p][r]);
  }
}

using TileFunction = void (*)(const LinearTile&);

template <typename W>
void dispatch(const LinearTile& t) {
  static constexpr TileFunction one_panel[] = {tile<W, 1, 1>,
                                               tile<W, 1, 2>,
                                               tile<W, 1, 3>,
                                               tile<W, 1, 4>,
                                               tile<W, 1, 5>,
                                               tile<W, 1, 6>,
                                               tile<W, 1, 7>,
                                               tile<W, 1, 8>,
                                               tile<W, 1, 9>,
                                               tile<W, 1, 10>,
                                               tile<W, 1, 11>,
                                               tile<W, 1, 12>};
  static constexpr TileFunction two_panels[] = {tile<W, 2, 1>,
                                                tile<W, 2, 2>,
                                                tile<W, 2, 3>,
                                                tile<W, 2, 4>,
                                                tile<W, 2, 5>,
                                                tile<W, 2, 6>,
                                                tile<W, 2, 7>,
                                                tile<W, 2, 8>,
                                                tile<W, 2, 9>,
                                                tile<W, 2, 10>,
                                                tile<W, 2, 11>,
                                                tile<W, 2, 12>};
  static constexpr TileFunction four_panels[] = {
      tile<W, 4, 1>, tile<W, 4, 2>, tile<W, 4, 3>, tile<W, 4, 4>, tile<W, 4, 5>, tile<W, 4, 6>};
  const int row = t.n_rows - 1;
  const TileFunction function = t.n_panels == 4   ? four_panels[row]
                                : t.n_panels == 2 ? two_panels[row]
                                                  : one_panel[row];
  function(t);
}

// As to_bf16(): to nearest even, a NaN stays one.
__m256i round_to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

}  // namespace

LinearKernel avx512_kernel(DType w_dtype) {
  const TileFunction function = w_dtype == DType::F32   ? dispatch<F32Weights>
                                : w_dtype == DType::F16 ? dispatch<F16Weights>
                                                        : dispatch<Bf16Weights>;
  return {.x_packing = XPacking::f32, .max_rows = 12, .n_accumulators = 24, .tile = function};
}

void avx512_store(const float* c, const float* bias, int64_t n, void* y, DType dtype) {
  for (int64_t i = 0; i < n; i += 16) {
    const auto mask = static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
    __m512 sum = _mm512_maskz_loadu_ps(mask, c + i);
    if (bias != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias + i));
    if (dtype == DType::F32) {
      _mm512_mask_storeu_ps(static_cast<float*>(y) + i, mask, sum);
    } else {
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(y) + i, mask, round_to_bf16(sum));
    }
  }
}

}  // namespace testbed::cpu
