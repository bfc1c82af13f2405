// Quantised weights with AVX2: int8 and int4 times int8 x, weights to f32, x to codes. Intrinsics
// and functions of internal linkage only: nothing here may be merged with a function that runs on a
// lesser processor.
#include <immintrin.h>

#include "kernels/cpu/linear_expand_loops.hpp"
#include "kernels/cpu/linear_quantised.hpp"
#include "kernels/cpu/linear_quantised_groups.hpp"
#include "kernels/cpu/linear_x_sums.hpp"

namespace testbed::cpu {
namespace {

constexpr int max_rows = 4;
constexpr int64_t block_cols = 32;
constexpr int n_halves = 2;  // of a panel's 16 rows

struct Lanes {
  using F = __m256;
  static constexpr int64_t width = 8;
  static F set1(float v) { return _mm256_set1_ps(v); }
  static F load_f32(const std::byte* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static F load_f16(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load_u8(const std::byte* p) { return _mm256_cvtepi32_ps(load_u8_words(p)); }
  static __m256i load_u8_words(const std::byte* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static __m256i load(const std::byte* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  static F field(__m256i codes, int shift, int mask) {
    const __m256i shifted = _mm256_srl_epi32(codes, _mm_cvtsi32_si128(shift));
    return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(mask)));
  }
  // Moved to their place in f32, magnitudes are 2^-120 of what they should be, subnormals too.
  static F e4m3(__m256i codes, int column) {
    const __m256i rows = _mm256_set1_epi64x(static_cast<int64_t>(0x8080800280808000U));
    const __m256i odd = _mm256_set_epi32(4, 4, 0, 0, 4, 4, 0, 0);
    const __m256i from = _mm256_add_epi32(odd, _mm256_set1_epi32(column / 2 * 8 + column % 2));
    const __m256i code = _mm256_shuffle_epi8(codes, _mm256_add_epi32(rows, from));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    const __m256 tiny = _mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20));
    const __m256i value = _mm256_castps_si256(_mm256_mul_ps(tiny, _mm256_set1_ps(0x1p120F)));
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    const __m256i finite = _mm256_blendv_epi8(value, _mm256_set1_epi32(0x7fc00000), nan);
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(code, magnitude), 24);
    return _mm256_castsi256_ps(_mm256_or_si256(finite, sign));
  }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
};

// Of each half of P panels and each of M rows of x.
template <int P, int M>
struct Sums {
  __m256 v[P][n_halves][M];
};
template <int P, int M>
struct Dots {
  __m256i v[P][n_halves][M];
};

// Four columns of P panels, int8: vpmaddubsw takes unsigned by signed bytes, so the sign of a
// weight goes to x. No sum of two products exceeds 2 * 128 * 127 < 2^15.
template <int P, int M>
inline void add_int8(const std::byte* codes,
                     int64_t panel_bytes,
                     const int32_t* x,
                     Dots<P, M>& dots) {
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    TESTBED_UNROLL
    for (int64_t h = 0; h < n_halves; ++h) {
      const __m256i code = Lanes::load(codes + p * panel_bytes + 32 * h);
      const __m256i w = _mm256_xor_si256(code, _mm256_set1_epi8(-128));
      const __m256i magnitude = _mm256_abs_epi8(w);
      TESTBED_UNROLL
      for (int64_t r = 0; r < M; ++r) {
        const __m256i signed_x = _mm256_sign_epi8(_mm256_set1_epi32(x[r]), w);
        const __m256i pairs = _mm256_maddubs_epi16(magnitude, signed_x);
        __m256i& sum = dots.v[p][h][r];
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      }
    }
  }
}

// Eight columns, int4. A sum of two products is at most 2 * 15 * 127 = 3810, so the eight of a
// block fit 16 bits.
template <int P, int M>
inline void add_int4(const std::byte* codes,
                     int64_t panel_bytes,
                     const int32_t* x,
                     Dots<P, M>& pairs) {
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    TESTBED_UNROLL
    for (int64_t h = 0; h < n_halves; ++h) {
      const __m256i w = Lanes::load(codes + p * panel_bytes + 32 * h);
      const __m256i low = _mm256_and_si256(w, _mm256_set1_epi8(15));
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
      TESTBED_UNROLL
      for (int64_t r = 0; r < M; ++r) {
        const __m256i first = _mm256_maddubs_epi16(low, _mm256_set1_epi32(x[r]));
        const __m256i second = _mm256_maddubs_epi16(high, _mm256_set1_epi32(x[M + r]));
        __m256i& sum = pairs.v[p][h][r];
        sum = _mm256_add_epi16(sum, _mm256_add_epi16(first, second));
      }
    }
  }
}

// -zero * sum of x's codes, which an int4 block's sum lacks; both fit 16 bits.
template <Weights W>
inline __m256i taken(__m256i zeros, int32_t negated_sum) {
  if constexpr (W == Weights::int4_eight) return _mm256_set1_epi32(8 * negated_sum);
  if constexpr (W == Weights::int4_zero_point) {
    return _mm256_madd_epi16(zeros, _mm256_set1_epi32(negated_sum));
  }
  return _mm256_setzero_si256();
}

// The integer dot products of one block of 32 columns.
template <Weights W, int P, int M>
inline void dot_block(const std::byte* codes,
                      int64_t panel_bytes,
                      const int32_t* x,
                      const int32_t* negated_sums,
                      const __m256i (&zeros)[P][n_halves],
                      Dots<P, M>& dots) {
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    TESTBED_UNROLL
    for (int64_t h = 0; h < n_halves; ++h) {
      TESTBED_UNROLL
      for (int64_t r = 0; r < M; ++r) dots.v[p][h][r] = _mm256_setzero_si256();
    }
  }
  TESTBED_UNROLL
  for (int64_t v = 0; v < block_bytes<W> / 64; ++v) {
    if constexpr (W == Weights::int8) {
      add_int8<P, M>(codes + 64 * v, panel_bytes, x + v * M, dots);
    } else {
      add_int4<P, M>(codes + 64 * v, panel_bytes, x + 2 * v * M, dots);
    }
  }
  if constexpr (W == Weights::int8) return;
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    TESTBED_UNROLL
    for (int64_t h = 0; h < n_halves; ++h) {
      TESTBED_UNROLL
      for (int64_t r = 0; r < M; ++r) {
        const __m256i sum = _mm256_madd_epi16(dots.v[p][h][r], _mm256_set1_epi16(1));
        dots.v[p][h][r] = _mm256_add_epi32(sum, taken<W>(zeros[p][h], negated_sums[r]));
      }
    }
  }
}

// parts += the scale of x times each block's integers; of a group that is one block, or of more.
template <Weights W, bool block_is_group, int P, int M>
inline void add_blocks(const LinearTile& t, const WeightGroup& group, Sums<P, M>& parts) {
  const int64_t panel_bytes = t.panel_bytes;
  __m256i zeros[P][n_halves] = {};
  for (int64_t p = 0; W == Weights::int4_zero_point && p < P; ++p) {
    for (int64_t h = 0; h < n_halves; ++h) {
      zeros[p][h] = Lanes::load_u8_words(group.offsets + p * panel_bytes + 8 * h);
    }
  }
  const int64_t first_block = group.first_col / block_cols * M;
  const auto* x = static_cast<const int32_t*>(t.x) + group.first_col / 4 * M;
  const float* x_scales = t.x_scales + first_block;
  const int32_t* negated_sums = t.x_negated_sums + first_block;
  const std::byte* codes = group.codes;
  for (int64_t column = 0; column < group.n_cols; column += block_cols) {
    Dots<P, M> dots;
    dot_block<W, P, M>(codes, panel_bytes, x, negated_sums, zeros, dots);
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) {
      const __m256 scale = _mm256_set1_ps(x_scales[r]);
      TESTBED_UNROLL
      for (int64_t p = 0; p < P; ++p) {
        TESTBED_UNROLL
        for (int64_t h = 0; h < n_halves; ++h) {
          __m256& part = parts.v[p][h][r];
          part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots.v[p][h][r]), scale, part);
        }
      }
    }
    if (block_is_group) break;
    codes += block_bytes<W>;
    x += block_cols / 4 * M;
    x_scales += M;
    negated_sums += M;
  }
}

// Of a group whose parts are complete.
template <Weights W, int P, int M>
inline void finish_group(const LinearTile& t,
                         const WeightGroup& group,
                         const Sums<P, M>& parts,
                         Sums<P, M>& sums) {
  const float* x_sums = t.x_sums + group.first_col / block_cols * M;
  TESTBED_UNROLL
  for (int64_t p = 0; p < P; ++p) {
    TESTBED_UNROLL
    for (int64_t h = 0; h < n_halves; ++h) {
      const int64_t at = p * t.panel_bytes + 16 * h;
      const __m256 scale = Lanes::load_f16(group.scales + at);
      TESTBED_UNROLL
      for (int64_t r = 0; r < M; ++r) {
        __m256& sum = sums.v[p][h][r];
        sum = _mm256_fmadd_ps(parts.v[p][h][r], scale, sum);
        if constexpr (W == Weights::int4_minimum) {
          const __m256 minimum = Lanes::load_f16(group.offsets + at);
          sum = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x_sums[r]), sum);
        }
      }
    }
  }
}

template <Weights W, bool block_is_group, int P, int M>
void tile(const LinearTile& t) {
  const bool one_group = !block_is_group && t.layout->format.group_cols == 0;
  Sums<P, M> sums;
  const auto each = [&](const auto& work) __attribute__((always_inline)) {
    TESTBED_UNROLL
    for (int64_t p = 0; p < P; ++p) {
      TESTBED_UNROLL
      for (int64_t h = 0; h < n_halves; ++h) {
        TESTBED_UNROLL
        for (int64_t r = 0; r < M; ++r) {
          work(p, h, sums.v[p][h][r], t.c + r * t.c_stride + 16 * p + 8 * h);
        }
      }
    }
  };
  each([&](int64_t, int64_t, __m256& sum, const float* c) {
    sum = t.first ? _mm256_setzero_ps() : _mm256_loadu_ps(c);
  });
  for_each_group(
      t, [&](const WeightGroup& group) __attribute__((always_inline)) {
        if (one_group) {
          add_blocks<W, false, P, M>(t, group, sums);
          return;
        }
        Sums<P, M> parts{};
        add_blocks<W, block_is_group, P, M>(t, group, parts);
        finish_group<W, P, M>(t, group, parts, sums);
      });
  each([&](int64_t p, int64_t h, __m256& sum, float* c) {
    if (one_group && t.last) {
      sum = _mm256_mul_ps(sum, Lanes::load_f32(t.row_scales + p * t.panel_bytes + 32 * h));
    }
    _mm256_storeu_ps(c, sum);
  });
}

template <Weights W, bool block_is_group>
void dispatch(const LinearTile& t) {
  using TileFunction = void (*)(const LinearTile&);
  static constexpr TileFunction tiles[max_rows] = {tile<W, block_is_group, 1, 1>,
                                                   tile<W, block_is_group, 1, 2>,
                                                   tile<W, block_is_group, 1, 3>,
                                                   tile<W, block_is_group, 1, 4>};
  if (t.n_panels == 2) {
    tile<W, block_is_group, 2, 1>(t);
  } else {
    tiles[t.n_rows - 1](t);
  }
}

// Four columns of 16 rows of e4m3 codes to f32, times the scales [2] of their halves: pairs of
// columns, each code in the upper byte of 16 bits, so that an arithmetic shift leaves sign and
// magnitude in their places of an f32 that is 2^-120 of what it should be. No code is a NaN.
void expand_e4m3(const std::byte* codes, const __m256 (&scales)[n_halves], float* out) {
  const __m256i kept = _mm256_set1_epi32(static_cast<int32_t>(0x87f00000U));
  const auto put = [&](__m256i high, int64_t column, int64_t h) __attribute__((always_inline)) {
    const __m256i tiny = _mm256_and_si256(_mm256_srai_epi32(high, 4), kept);
    const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(tiny), _mm256_set1_ps(0x1p120F));
    _mm256_storeu_ps(out + 16 * column + 8 * h, _mm256_mul_ps(value, scales[h]));
  };
  TESTBED_UNROLL
  for (int64_t h = 0; h < n_halves; ++h) {
    const __m256i bytes = Lanes::load(codes + 32 * h);
    const __m256i first = _mm256_unpacklo_epi8(_mm256_setzero_si256(), bytes);
    const __m256i second = _mm256_unpackhi_epi8(_mm256_setzero_si256(), bytes);
    put(_mm256_slli_epi32(first, 16), 0, h);
    put(first, 1, h);
    put(_mm256_slli_epi32(second, 16), 2, h);
    put(second, 3, h);
  }
}

bool has_nan_code(const std::byte* codes) {
  const __m256i ones = _mm256_set1_epi8(-1);
  const __m256i sign = _mm256_set1_epi8(-128);
  const __m256i low = _mm256_or_si256(Lanes::load(codes), sign);
  const __m256i high = _mm256_or_si256(Lanes::load(codes + 32), sign);
  const __m256i nan = _mm256_or_si256(_mm256_cmpeq_epi8(low, ones), _mm256_cmpeq_epi8(high, ones));
  return _mm256_testz_si256(nan, nan) == 0;
}

void expand_fp8(const WeightFormat& format, const WeightGroup& group, float* out) {
  const __m256 scales[n_halves] = {Lanes::load_f32(group.scales),
                                   Lanes::load_f32(group.scales + 32)};
  for (int64_t k = 0; k < group.n_cols; k += 4) {
    const std::byte* codes = group.codes + 16 * k;
    if (k + 4 <= group.n_cols && !has_nan_code(codes)) {
      expand_e4m3(codes, scales, out + 16 * k);
      continue;
    }
    WeightGroup rest = group;
    rest.codes = codes;
    rest.n_cols = k + 4 <= group.n_cols ? 4 : group.n_cols - k;
    expand_group<Lanes>(format, rest, out + 16 * k);
  }
}

// Eight bf16 numbers as codes in 32 bits.
__m256i codes_of(const uint16_t* x, __m256 scale) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  const __m256 values = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  return _mm256_cvtps_epi32(_mm256_div_ps(values, scale));
}

// The largest of 32 magnitudes, as bits: NaN above infinity above all numbers.
uint32_t largest_magnitude(const uint16_t* x) {
  __m256i halves[2];
  for (int i = 0; i < 2; ++i) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + i);
    halves[i] = _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
  }
  const __m256i half = _mm256_max_epu16(halves[0], halves[1]);
  const __m128i quarter =
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i inverted = _mm_xor_si128(quarter, _mm_set1_epi16(-1));
  return ~static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(inverted))) & 0xffffU;
}

}  // namespace

LinearKernel avx2_int_kernel(const WeightFormat& format) {
  return {
      .x_packing = XPacking::int8,
      .max_rows = max_rows,
      .n_accumulators = max_rows,
      .tile = tile_for(
          format, []<Weights W, bool block_is_group>() { return &dispatch<W, block_is_group>; }),
      .row_panels = 2,
      .max_panels = 1};
}

void avx2_expand(const WeightFormat& format, const WeightGroup& group, float* out) {
  if (format.coding == WeightCoding::fp8) {
    expand_fp8(format, group, out);
  } else {
    expand_group<Lanes>(format, group, out);
  }
}

void avx2_quantise_x(const bf16* x, int64_t n_cols, const QuantisedX& out) {
  for (int64_t begin = 0, b = 0; begin < n_cols; begin += block_cols, ++b) {
    const int64_t n = n_cols - begin < block_cols ? n_cols - begin : block_cols;
    alignas(32) uint16_t bits[block_cols] = {};
    for (int64_t i = 0; i < n; ++i) bits[i] = x[begin + i].bits;
    const uint32_t largest = largest_magnitude(bits);
    const bool finite = largest < 0x7f80U;
    const __m128i wide = _mm_cvtsi32_si128(static_cast<int>(largest << 16));
    const __m128 scale = _mm_div_ss(_mm_castsi128_ps(wide), _mm_set_ss(127.0F));
    const __m256 scales = _mm256_broadcastss_ps(scale);
    const __m256i low = _mm256_packs_epi32(codes_of(bits, scales), codes_of(bits + 8, scales));
    const __m256i high =
        _mm256_packs_epi32(codes_of(bits + 16, scales), codes_of(bits + 24, scales));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs go by 16-byte lanes
    __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    codes = _mm256_max_epi8(codes, _mm256_set1_epi8(-127));
    if (!finite || largest == 0) codes = _mm256_setzero_si256();
    store_block(codes, scale, finite, b, out);
  }
}

}  // namespace testbed::cpu
