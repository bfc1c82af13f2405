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

// Adds a vector of four columns of eight rows, int8: vpmaddubsw takes unsigned by signed bytes, so
// the sign of a weight goes to x. No sum of two products exceeds 2 * 128 * 127 < 2^15.
template <int M>
inline void add_int8(const std::byte* codes, const int32_t* x, __m256i (&sum)[M]) {
  const __m256i w = _mm256_xor_si256(Lanes::load(codes), _mm256_set1_epi8(-128));
  const __m256i magnitude = _mm256_abs_epi8(w);
  TESTBED_UNROLL
  for (int64_t r = 0; r < M; ++r) {
    const __m256i signed_x = _mm256_sign_epi8(_mm256_set1_epi32(x[r]), w);
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, signed_x);
    sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
}

// The same of eight columns, int4. A sum of two products is at most 2 * 15 * 127 = 3810, so the
// eight of a block fit 16 bits.
template <int M>
inline void add_int4(const std::byte* codes, const int32_t* x, __m256i (&pairs)[M]) {
  const __m256i w = Lanes::load(codes);
  const __m256i low = _mm256_and_si256(w, _mm256_set1_epi8(15));
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
  TESTBED_UNROLL
  for (int64_t r = 0; r < M; ++r) {
    const __m256i first = _mm256_maddubs_epi16(low, _mm256_set1_epi32(x[r]));
    const __m256i second = _mm256_maddubs_epi16(high, _mm256_set1_epi32(x[M + r]));
    pairs[r] = _mm256_add_epi16(pairs[r], _mm256_add_epi16(first, second));
  }
}

// -zero * sum of x's codes, which an int4 block's sum lacks.
inline __m256i zeros_of(const WeightFormat& format, const std::byte* offsets) {
  if (format.offset == WeightOffset::eight) return _mm256_set1_epi32(8);
  if (format.offset == WeightOffset::zero_point) return Lanes::load_u8_words(offsets);
  return _mm256_setzero_si256();
}

template <int M>
inline void dot_int4(const std::byte* codes,
                     const int32_t* x,
                     const int32_t* sums,
                     __m256i zeros,
                     __m256i (&dots)[M]) {
  __m256i pairs[M];
  TESTBED_UNROLL
  for (int64_t r = 0; r < M; ++r) pairs[r] = _mm256_setzero_si256();
  for (int64_t v = 0; v < 4; ++v) add_int4<M>(codes + 64 * v, x + 2 * v * M, pairs);
  TESTBED_UNROLL
  for (int64_t r = 0; r < M; ++r) {
    const __m256i taken = _mm256_mullo_epi32(zeros, _mm256_set1_epi32(sums[r]));
    dots[r] = _mm256_add_epi32(_mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1)), taken);
  }
}

template <int M>
inline void dot_int8(const std::byte* codes, const int32_t* x, __m256i (&dots)[M]) {
  TESTBED_UNROLL
  for (int64_t r = 0; r < M; ++r) dots[r] = _mm256_setzero_si256();
  for (int64_t v = 0; v < 8; ++v) add_int8<M>(codes + 64 * v, x + v * M, dots);
}

// parts += the scale of x times each block's integers, for eight rows of W.
template <int M>
inline void add_blocks(
    const LinearTile& t, const WeightGroup& group, int64_t half, float* parts, int64_t stride) {
  const WeightFormat& format = t.layout->format;
  const bool is_int4 = format.coding == WeightCoding::int4;
  const __m256i zeros = zeros_of(format, group.offsets + 8 * half);
  const std::byte* codes = group.codes + 32 * half;
  for (int64_t column = group.first_col; column < group.first_col + group.n_cols;
       column += block_cols, codes += is_int4 ? 256 : 512) {
    const int64_t meta = column / block_cols * M;
    const auto* x = static_cast<const int32_t*>(t.x) + column / 4 * M;
    __m256i dots[M];
    if (is_int4) {
      dot_int4<M>(codes, x, t.x_negated_sums + meta, zeros, dots);
    } else {
      dot_int8<M>(codes, x, dots);
    }
    TESTBED_UNROLL
    for (int64_t r = 0; r < M; ++r) {
      float* to = parts + r * stride + 8 * half;
      const __m256 scale = _mm256_set1_ps(t.x_scales[meta + r]);
      _mm256_storeu_ps(to,
                       _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), scale, _mm256_loadu_ps(to)));
    }
  }
}

// Eight rows of a group whose parts are complete.
template <int M>
inline void finish_group(const LinearTile& t,
                         const WeightGroup& group,
                         int64_t half,
                         const float* parts) {
  const __m256 scale = Lanes::load_f16(group.scales + 16 * half);
  const bool has_minimum = t.layout->format.offset == WeightOffset::minimum;
  const __m256 minimum =
      has_minimum ? Lanes::load_f16(group.offsets + 16 * half) : _mm256_setzero_ps();
  for (int64_t r = 0; r < M; ++r) {
    float* to = t.c + r * t.c_stride + 8 * half;
    __m256 sum = _mm256_loadu_ps(to);
    sum = _mm256_fmadd_ps(_mm256_loadu_ps(parts + 16 * r + 8 * half), scale, sum);
    if (has_minimum) {
      const float x_sum = t.x_sums[group.first_col / block_cols * M + r];
      sum = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x_sum), sum);
    }
    _mm256_storeu_ps(to, sum);
  }
}

template <int M>
void tile(const LinearTile& t) {
  const bool one_group = t.layout->format.group_cols == 0;
  for (int64_t r = 0; t.first && r < M; ++r) {
    for (int64_t h = 0; h < n_halves; ++h) {
      _mm256_storeu_ps(t.c + r * t.c_stride + 8 * h, _mm256_setzero_ps());
    }
  }
  for_each_group(t, [&](const WeightGroup& group) {
    alignas(32) float group_parts[M * 16] = {};
    for (int64_t h = 0; h < n_halves; ++h) {
      if (one_group) {
        add_blocks<M>(t, group, h, t.c, t.c_stride);
      } else {
        add_blocks<M>(t, group, h, group_parts, 16);
        finish_group<M>(t, group, h, group_parts);
      }
    }
  });
  if (!one_group || !t.last) return;
  for (int64_t r = 0; r < M; ++r) {
    for (int64_t h = 0; h < n_halves; ++h) {
      float* to = t.c + r * t.c_stride + 8 * h;
      _mm256_storeu_ps(to,
                       _mm256_mul_ps(_mm256_loadu_ps(to), Lanes::load_f32(t.row_scales + 32 * h)));
    }
  }
}

void dispatch(const LinearTile& t) {
  using TileFunction = void (*)(const LinearTile&);
  static constexpr TileFunction tiles[max_rows] = {tile<1>, tile<2>, tile<3>, tile<4>};
  tiles[t.n_rows - 1](t);
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

LinearKernel avx2_int_kernel() {
  return {.x_packing = XPacking::int8,
          .max_rows = max_rows,
          .n_accumulators = max_rows,
          .tile = dispatch,
          .row_panels = 1,
          .max_panels = 1};
}

void avx2_expand(const WeightFormat& format, const WeightGroup& group, float* out) {
  expand_group<Lanes>(format, group, out);
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
