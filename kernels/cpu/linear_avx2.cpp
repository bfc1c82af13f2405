// F32 tiles of linear() with AVX2 and FMA; weights are expanded to f32 in registers. Intrinsics and
// static functions only: nothing here may be merged with a function that runs on a lesser
// processor.
#include <immintrin.h>

#include "kernels/cpu/linear_kernels.hpp"

namespace testbed::cpu {
namespace {

// One step is one or two columns of a panel, each in two vectors: 64 bytes (F32, BF16) or 32 (F16).
struct F32Weights {
  static constexpr int64_t step_cols = 1;
  static constexpr int64_t step_bytes = 64;
  static void load(const std::byte* w, int64_t half, __m256* columns) {
    columns[0] = _mm256_load_ps(reinterpret_cast<const float*>(w) + 8 * half);
  }
};
struct F16Weights {
  static constexpr int64_t step_cols = 1;
  static constexpr int64_t step_bytes = 32;
  static void load(const std::byte* w, int64_t half, __m256* columns) {
    columns[0] = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(w) + half));
  }
};
struct Bf16Weights {
  static constexpr int64_t step_cols = 2;
  static constexpr int64_t step_bytes = 64;
  static void load(const std::byte* w, int64_t half, __m256* columns) {
    const __m256i pairs = _mm256_load_si256(reinterpret_cast<const __m256i*>(w) + half);
    columns[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    columns[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
  }
};

template <typename Weights, int P, int M>
void tile(const LinearTile& t) {
  constexpr int n_vectors = 2 * P;
  __m256 sum[n_vectors][M];
  TESTBED_UNROLL
  for (int64_t v = 0; v < n_vectors; ++v) {
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) {
      sum[v][r] = t.first ? _mm256_setzero_ps() : _mm256_loadu_ps(t.c + r * t.c_stride + 8 * v);
    }
  }
  const std::byte* w = t.w;
  const auto* x = static_cast<const float*>(t.x);
  const int64_t n_steps = t.n_cols / Weights::step_cols;
  for (int64_t j = 0; j < n_steps; ++j) {
    if (t.prefetch_x != 0) {
      _mm_prefetch(reinterpret_cast<const std::byte*>(x) + t.prefetch_x, _MM_HINT_T1);
    }
    __m256 columns[n_vectors][Weights::step_cols];
    TESTBED_UNROLL
    for (int64_t v = 0; v < n_vectors; ++v) {
      Weights::load(w + v / 2 * t.panel_bytes, v % 2, columns[v]);
      if (v % 2 == 0 && t.prefetch_w != 0) {
        _mm_prefetch(w + v / 2 * t.panel_bytes + t.prefetch_w, _MM_HINT_T1);
      }
    }
    TESTBED_UNROLL
    for (int64_t col = 0; col < Weights::step_cols; ++col) {
      TESTBED_UNROLL
      for (int64_t r = 0; r < M; ++r) {
        const __m256 value = _mm256_set1_ps(x[col * M + r]);
        TESTBED_UNROLL
        for (int64_t v = 0; v < n_vectors; ++v) {
          sum[v][r] = _mm256_fmadd_ps(columns[v][col], value, sum[v][r]);
        }
      }
    }
    w += Weights::step_bytes;
    x += Weights::step_cols * M;
  }
  TESTBED_UNROLL
  for (int64_t v = 0; v < n_vectors; ++v) {
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) _mm256_storeu_ps(t.c + r * t.c_stride + 8 * v, sum[v][r]);
  }
}

using TileFunction = void (*)(const LinearTile&);

template <typename W>
void dispatch(const LinearTile& t) {
  static constexpr TileFunction one_panel[] = {
      tile<W, 1, 1>, tile<W, 1, 2>, tile<W, 1, 3>, tile<W, 1, 4>, tile<W, 1, 5>, tile<W, 1, 6>};
  static constexpr TileFunction two_panels[] = {tile<W, 2, 1>, tile<W, 2, 2>, tile<W, 2, 3>};
  const int row = t.n_rows - 1;
  const TileFunction function = t.n_panels == 4   ? tile<W, 4, 1>
                                : t.n_panels == 2 ? two_panels[row]
                                                  : one_panel[row];
  function(t);
}

// As to_bf16(): to nearest even, a NaN stays one. Eight values, in the low half of each 32 bits.
__m256i round_to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

void store8(__m256 sum, int64_t i, void* y, DType dtype) {
  if (dtype == DType::F32) {
    _mm256_storeu_ps(static_cast<float*>(y) + i, sum);
    return;
  }
  const __m256i words = round_to_bf16(sum);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(y) + i), packed);
}

}  // namespace

LinearKernel avx2_kernel(DType w_dtype) {
  const TileFunction function = w_dtype == DType::F32   ? dispatch<F32Weights>
                                : w_dtype == DType::F16 ? dispatch<F16Weights>
                                                        : dispatch<Bf16Weights>;
  return {.x_packing = XPacking::f32, .max_rows = 6, .n_accumulators = 6, .tile = function};
}

void avx2_store(const float* c, const float* bias, int64_t n, void* y, DType dtype) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 sum = _mm256_loadu_ps(c + i);
    if (bias != nullptr) sum = _mm256_add_ps(sum, _mm256_loadu_ps(bias + i));
    store8(sum, i, y, dtype);
  }
  for (; i < n; ++i) {
    const __m128 one = bias == nullptr ? _mm_load_ss(c + i)
                                       : _mm_add_ss(_mm_load_ss(c + i), _mm_load_ss(bias + i));
    if (dtype == DType::F32) {
      _mm_store_ss(static_cast<float*>(y) + i, one);
    } else {
      const __m256i word = round_to_bf16(_mm256_castps128_ps256(one));
      static_cast<uint16_t*>(y)[i] = static_cast<uint16_t>(_mm256_extract_epi16(word, 0));
    }
  }
}

}  // namespace testbed::cpu
