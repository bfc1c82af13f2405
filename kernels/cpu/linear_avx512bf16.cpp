// BF16 x BF16 tiles of linear() with vdpbf16ps. Intrinsics and static functions only: nothing here
// may be merged with a function that runs on a lesser processor.
#include <immintrin.h>

#include "kernels/cpu/linear_kernels.hpp"

namespace testbed::cpu {
namespace {

template <int P, int M>
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
  const auto* x = static_cast<const int32_t*>(t.x);
  const int64_t n_pairs = t.n_cols / 2;
  for (int64_t j = 0; j < n_pairs; ++j) {
    if (t.prefetch_x != 0) {
      _mm_prefetch(reinterpret_cast<const std::byte*>(x) + t.prefetch_x, _MM_HINT_T1);
    }
    __m512bh column[P];
    TESTBED_UNROLL
    for (int64_t p = 0; p < P; ++p) {
      column[p] = (__m512bh)_mm512_load_si512(w + p * t.panel_bytes);
      if (t.prefetch_w != 0) _mm_prefetch(w + p * t.panel_bytes + t.prefetch_w, _MM_HINT_T1);
    }
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) {
      const auto value = (__m512bh)_mm512_set1_epi32(x[r]);
      TESTBED_UNROLL
      for (int64_t p = 0; p < P; ++p) sum[p][r] = _mm512_dpbf16_ps(sum[p][r], column[p], value);
    }
    w += 64;
    x += M;
  }
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) _mm512_storeu_ps(t.c + r * t.c_stride + 16 * p, sum[p][r]);
  }
}

using TileFunction = void (*)(const LinearTile&);
constexpr TileFunction one_panel[] = {tile<1, 1>,
                                      tile<1, 2>,
                                      tile<1, 3>,
                                      tile<1, 4>,
                                      tile<1, 5>,
                                      tile<1, 6>,
                                      tile<1, 7>,
                                      tile<1, 8>,
                                      tile<1, 9>,
                                      tile<1, 10>,
                                      tile<1, 11>,
                                      tile<1, 12>};
constexpr TileFunction two_panels[] = {tile<2, 1>,
                                       tile<2, 2>,
                                       tile<2, 3>,
                                       tile<2, 4>,
                                       tile<2, 5>,
                                       tile<2, 6>,
                                       tile<2, 7>,
                                       tile<2, 8>,
                                       tile<2, 9>,
                                       tile<2, 10>,
                                       tile<2, 11>,
                                       tile<2, 12>};
constexpr TileFunction four_panels[] = {
    tile<4, 1>, tile<4, 2>, tile<4, 3>, tile<4, 4>, tile<4, 5>, tile<4, 6>};

void dispatch(const LinearTile& t) {
  const int row = t.n_rows - 1;
  const TileFunction function = t.n_panels == 4   ? four_panels[row]
                                : t.n_panels == 2 ? two_panels[row]
                                                  : one_panel[row];
  function(t);
}

}  // namespace

LinearKernel avx512_bf16_kernel() {
  return {.x_packing = XPacking::bf16_pairs,
          .max_rows = 12,
          .n_accumulators = 24,
          .tile = dispatch,
          .row_panels = 2};
}

}  // namespace testbed::cpu
