// int8 and int4 weights times int8 x with vpdpbusd. Intrinsics and functions of internal linkage
// only: nothing here may be merged with a function that runs on a lesser processor.
#include <immintrin.h>

#include "kernels/cpu/linear_quantised.hpp"
#include "kernels/cpu/linear_quantised_groups.hpp"

namespace testbed::cpu {
namespace {

// Panels of a tile for several rows of x; a last panel alone is computed twice.
constexpr int n_panels = 2;
#define TESTBED_INLINE inline __attribute__((always_inline))
constexpr int max_rows = 6;
constexpr int64_t block_cols = 32;

__m512 load_f16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

__m512i load_zeros(const std::byte* p) {
  return _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

// What the sums of a block begin with: -zero * sum of x's codes.
template <Weights W>
inline __m512i first_sum(__m512i zeros, int32_t negated_sum) {
  const __m512i sum = _mm512_set1_epi32(negated_sum);
  if constexpr (W == Weights::int8) return _mm512_slli_epi32(sum, 7);
  if constexpr (W == Weights::int4_eight) return _mm512_slli_epi32(sum, 3);
  if constexpr (W == Weights::int4_minimum) return _mm512_setzero_si512();
  // Both fit 16 bits, and the zero's upper 16 bits are zero.
  return _mm512_dpwssd_epi32(_mm512_setzero_si512(), zeros, sum);
}

template <int M>
TESTBED_INLINE void add_quad(const __m512i (&w)[n_panels],
                             const int32_t* x,
                             __m512i (&sum)[n_panels][M]) {
  TESTBED_UNROLL
  for (int64_t r = 0; r < M; ++r) {
    const __m512i value = _mm512_set1_epi32(x[r]);
    TESTBED_UNROLL
    for (int64_t p = 0; p < n_panels; ++p) {
      sum[p][r] = _mm512_dpbusd_epi32(sum[p][r], w[p], value);
    }
  }
}

// The integer dot products of one block of 32 columns.
template <Weights W, int M>
TESTBED_INLINE void add_block(int64_t prefetch_w,
                              const std::byte* codes,
                              int64_t second,
                              const int32_t* x,
                              __m512i (&sum)[n_panels][M]) {
  constexpr int64_t n_vectors = block_bytes<W> / 64;
  const __m512i low_half = _mm512_set1_epi8(15);
  TESTBED_UNROLL
  for (int64_t v = 0; v < n_vectors; ++v) {
    __m512i w[n_panels];
    TESTBED_UNROLL
    for (int64_t p = 0; p < n_panels; ++p) {
      const std::byte* from = codes + v * 64 + p * second;
      w[p] = _mm512_load_si512(from);
      if (prefetch_w != 0) _mm_prefetch(from + prefetch_w, _MM_HINT_T1);
    }
    if constexpr (W == Weights::int8) {
      add_quad<M>(w, x + v * M, sum);
    } else {
      __m512i low[n_panels];
      TESTBED_UNROLL
      for (int64_t p = 0; p < n_panels; ++p) {
        low[p] = _mm512_and_si512(w[p], low_half);
        w[p] = _mm512_and_si512(_mm512_srli_epi16(w[p], 4), low_half);
      }
      add_quad<M>(low, x + 2 * v * M, sum);
      add_quad<M>(w, x + (2 * v + 1) * M, sum);
    }
  }
}

// The f32 sums of a tile, in memory that is one piece: constant distances cost no registers.
template <int M>
struct Sums {
  alignas(64) float values[M][n_panels][16];

  TESTBED_INLINE void clear() {
    for (int64_t r = 0; r < M; ++r) {
      for (int64_t p = 0; p < n_panels; ++p) _mm512_store_ps(values[r][p], _mm512_setzero_ps());
    }
  }
  TESTBED_INLINE void load(const LinearTile& t) {
    for (int64_t r = 0; r < M; ++r) {
      for (int64_t p = 0; p < n_panels; ++p) {
        _mm512_store_ps(values[r][p], _mm512_loadu_ps(t.c + r * t.c_stride + 16 * p));
      }
    }
  }
  TESTBED_INLINE void store(const LinearTile& t) const {
    for (int64_t r = 0; r < M; ++r) {
      for (int64_t p = 0; p < n_panels; ++p) {
        _mm512_storeu_ps(t.c + r * t.c_stride + 16 * p, _mm512_load_ps(values[r][p]));
      }
    }
  }
  TESTBED_INLINE void scale(const __m512 (&scales)[n_panels]) {
    for (int64_t r = 0; r < M; ++r) {
      for (int64_t p = 0; p < n_panels; ++p) {
        _mm512_store_ps(values[r][p], _mm512_mul_ps(_mm512_load_ps(values[r][p]), scales[p]));
      }
    }
  }
  TESTBED_INLINE void add(const Sums& parts, const __m512 (&scales)[n_panels]) {
    for (int64_t r = 0; r < M; ++r) {
      for (int64_t p = 0; p < n_panels; ++p) {
        const __m512 sum = _mm512_fmadd_ps(
            _mm512_load_ps(parts.values[r][p]), scales[p], _mm512_load_ps(values[r][p]));
        _mm512_store_ps(values[r][p], sum);
      }
    }
  }
};

// sums += the scale of x times each block's integers; where a block is a group, times the weights'
// scale, and plus their minimum times the sum of x.
template <Weights W, bool block_is_group, int M>
TESTBED_INLINE void add_blocks(const LinearTile& t,
                               const WeightGroup& group,
                               int64_t second,
                               Sums<M>& sums) {
  // Copies, which stores to the sums cannot be taken to change.
  const float* const x_scales = t.x_scales;
  const float* const x_sums = t.x_sums;
  const int32_t* const negated_sums = t.x_negated_sums;
  const auto* const x_codes = static_cast<const int32_t*>(t.x);
  const int64_t prefetch_x = t.prefetch_x;
  const int64_t prefetch_w = t.prefetch_w;
  __m512i zeros[n_panels] = {};
  __m512 scales[n_panels] = {};
  __m512 minima[n_panels] = {};
  for (int64_t p = 0; p < n_panels; ++p) {
    if (block_is_group) scales[p] = load_f16(group.scales + p * second);
    if (W == Weights::int4_zero_point) zeros[p] = load_zeros(group.offsets + p * second);
    if (W == Weights::int4_minimum) minima[p] = load_f16(group.offsets + p * second);
  }
  const std::byte* codes = group.codes;
  for (int64_t column = group.first_col; column < group.first_col + group.n_cols;
       column += block_cols, codes += block_bytes<W>) {
    const int64_t meta = column / block_cols * M;
    __m512i dots[n_panels][M];
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) {
      TESTBED_UNROLL
      for (int64_t p = 0; p < n_panels; ++p) {
        dots[p][r] = first_sum<W>(zeros[p], negated_sums[meta + r]);
      }
    }
    const auto* x = x_codes + column / 4 * M;
    if (prefetch_x != 0) {
      for (int64_t line = 0; line < block_cols * M; line += 64) {
        _mm_prefetch(reinterpret_cast<const std::byte*>(x) + prefetch_x + line, _MM_HINT_T1);
      }
    }
    add_block<W, M>(prefetch_w, codes, second, x, dots);
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) {
      const __m512 x_scale = _mm512_set1_ps(x_scales[meta + r]);
      TESTBED_UNROLL
      for (int64_t p = 0; p < n_panels; ++p) {
        const __m512 value = _mm512_cvtepi32_ps(dots[p][r]);
        float* to = sums.values[r][p];
        __m512 sum = _mm512_load_ps(to);
        if constexpr (block_is_group) {
          sum = _mm512_fmadd_ps(_mm512_mul_ps(value, x_scale), scales[p], sum);
        } else {
          sum = _mm512_fmadd_ps(value, x_scale, sum);
        }
        if constexpr (W == Weights::int4_minimum) {
          sum = _mm512_fmadd_ps(minima[p], _mm512_set1_ps(x_sums[meta + r]), sum);
        }
        _mm512_store_ps(to, sum);
      }
    }
  }
}

template <Weights W, bool block_is_group, int M>
void tile(const LinearTile& t) {
  const int64_t second = t.n_panels == 2 ? t.panel_bytes : 0;
  const bool one_group = t.layout->format.group_cols == 0;
  Sums<M> sums;
  if (t.first) {
    sums.clear();
  } else {
    sums.load(t);
  }
  if (block_is_group || one_group) {
    for_each_group(
        t, [&](const WeightGroup& group) __attribute__((always_inline)) {
          add_blocks<W, block_is_group, M>(t, group, second, sums);
        });
    if (one_group && t.last) {
      sums.scale({_mm512_loadu_ps(t.row_scales), _mm512_loadu_ps(t.row_scales + second)});
    }
  } else {
    for_each_group(
        t, [&](const WeightGroup& group) __attribute__((always_inline)) {
          Sums<M> parts;
          parts.clear();
          add_blocks<W, false, M>(t, group, second, parts);
          sums.add(parts, {load_f16(group.scales), load_f16(group.scales + second)});
        });
  }
  sums.store(t);
}

// Dot products of one block of P panels with one row of x: two chains of sums for each, as few
// others are there to wait for. What remains is one instruction for both halves of a byte.
template <Weights W, int P>
TESTBED_INLINE void dot_block(const std::byte* codes,
                              int64_t panel_bytes,
                              const int32_t* x,
                              __m512i (&even)[P]) {
  constexpr int64_t n_vectors = block_bytes<W> / 64;
  const __m512i low_half = _mm512_set1_epi8(15);
  __m512i odd[P] = {};  // int4: 16 times too large
  TESTBED_UNROLL
  for (int64_t v = 0; v < n_vectors; ++v) {
    TESTBED_UNROLL
    for (int64_t p = 0; p < P; ++p) {
      const __m512i w = _mm512_load_si512(codes + p * panel_bytes + v * 64);
      if constexpr (W == Weights::int8) {
        __m512i& sum = v % 2 == 0 ? even[p] : odd[p];
        sum = _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x[v]));
      } else {
        const __m512i low = _mm512_and_si512(w, low_half);
        const __m512i high = _mm512_andnot_si512(low_half, w);
        even[p] = _mm512_dpbusd_epi32(even[p], low, _mm512_set1_epi32(x[2 * v]));
        odd[p] = _mm512_dpbusd_epi32(odd[p], high, _mm512_set1_epi32(x[2 * v + 1]));
      }
    }
  }
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    even[p] = _mm512_add_epi32(even[p], W == Weights::int8 ? odd[p] : _mm512_srai_epi32(odd[p], 4));
  }
}

// One row of x and P panels, each a stream of its own.
template <Weights W, bool block_is_group, int P>
void row_tile(const LinearTile& t) {
  const auto* x = static_cast<const int32_t*>(t.x);
  const float* x_scales = t.x_scales;
  const int32_t* negated_sums = t.x_negated_sums;
  const float* x_sums = t.x_sums;
  const int64_t panel_bytes = t.panel_bytes;
  const bool one_group = t.layout->format.group_cols == 0;
  __m512 sum[P];
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    sum[p] = t.first ? _mm512_setzero_ps() : _mm512_loadu_ps(t.c + 16 * p);
  }
  for_each_group(
      t, [&](const WeightGroup& group) __attribute__((always_inline)) {
        __m512i zeros[P] = {};
        __m512 part[P];
        TESTBED_UNROLL
        for (int64_t p = 0; p < P; ++p) {
          if (W == Weights::int4_zero_point) zeros[p] = load_zeros(group.offsets + p * panel_bytes);
          part[p] = one_group ? sum[p] : _mm512_setzero_ps();
        }
        const std::byte* codes = group.codes;
        for (int64_t column = 0; column < group.n_cols; column += block_cols) {
          const __m512 x_scale = _mm512_set1_ps(*x_scales);
          __m512i dots[P];
          TESTBED_UNROLL
          for (int64_t p = 0; p < P; ++p) dots[p] = first_sum<W>(zeros[p], *negated_sums);
          dot_block<W, P>(codes, panel_bytes, x, dots);
          TESTBED_UNROLL
          for (int64_t p = 0; p < P; ++p) {
            part[p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[p]), x_scale, part[p]);
          }
          codes += block_bytes<W>;
          x += block_cols / 4;
          ++x_scales;
          ++negated_sums;
          if (block_is_group) break;
        }
        TESTBED_UNROLL
        for (int64_t p = 0; p < P; ++p) {
          if (one_group) {
            sum[p] = part[p];
            continue;
          }
          sum[p] = _mm512_fmadd_ps(part[p], load_f16(group.scales + p * panel_bytes), sum[p]);
          if (W == Weights::int4_minimum) {
            const __m512 minima = load_f16(group.offsets + p * panel_bytes);
            sum[p] = _mm512_fmadd_ps(minima, _mm512_set1_ps(*x_sums), sum[p]);
          }
        }
        ++x_sums;  // of a block; with minima a block is a group
      });
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    if (one_group && t.last) {
      sum[p] = _mm512_mul_ps(sum[p], _mm512_loadu_ps(t.row_scales + p * panel_bytes));
    }
    _mm512_storeu_ps(t.c + 16 * p, sum[p]);
  }
}

template <Weights W, bool block_is_group>
void one_row(const LinearTile& t) {
  if (t.n_panels == 4) {
    row_tile<W, block_is_group, 4>(t);
  } else if (t.n_panels == 2) {
    row_tile<W, block_is_group, 2>(t);
  } else {
    row_tile<W, block_is_group, 1>(t);
  }
}

template <Weights W, bool block_is_group>
void dispatch(const LinearTile& t) {
  using TileFunction = void (*)(const LinearTile&);
  static constexpr TileFunction tiles[max_rows] = {one_row<W, block_is_group>,
                                                   tile<W, block_is_group, 2>,
                                                   tile<W, block_is_group, 3>,
                                                   tile<W, block_is_group, 4>,
                                                   tile<W, block_is_group, 5>,
                                                   tile<W, block_is_group, 6>};
  tiles[t.n_rows - 1](t);
}

}  // namespace

LinearKernel vnni_kernel(const WeightFormat& format) {
  return {
      .x_packing = XPacking::int8,
      .max_rows = max_rows,
      .n_accumulators = 2 * max_rows,
      .tile = tile_for(
          format, []<Weights W, bool block_is_group>() { return &dispatch<W, block_is_group>; }),
      // Of the read loop, int8: 0.96 with two, 0.92 with four; int4: 0.89, 0.95.
      .row_panels = format.coding == WeightCoding::int8 ? 2 : 4,
      .max_panels = n_panels};
}

}  // namespace testbed::cpu
