// Attention's inner step for AVX-512 in f32 arithmetic.
#include "kernels/cpu/attention_avx512.hpp"

namespace testbed::cpu {
namespace {

// Keys and values widened to f32, one element and one key at a time.
template <bool is_bf16>
struct F32Math {
  static int64_t n_units(const AttentionChunk& c) { return is_bf16 ? c.head_dim / 2 : c.head_dim; }
  static int64_t n_steps(const AttentionChunk& c) { return c.head_dim; }
  static const float* query(const AttentionChunk& c, int64_t row) {
    return c.q + row * c.padded_dim;
  }
  static __m512 spread(const float* element) { return _mm512_set1_ps(*element); }
  static __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
  static __m512 low(__m512i keys) { return _mm512_castsi512_ps(_mm512_slli_epi32(keys, 16)); }
  static __m512 high(__m512i keys) {
    const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    return _mm512_castsi512_ps(_mm512_and_si512(keys, high_half));
  }
  static __m512 dot(__m512 sum, const float* query, int64_t unit, __m512i keys) {
    if constexpr (is_bf16) {
      sum = add(sum, spread(query + 2 * unit), low(keys));
      return add(sum, spread(query + 2 * unit + 1), high(keys));
    } else {
      return add(sum, spread(query + unit), _mm512_castsi512_ps(keys));
    }
  }
  static void unpack(int64_t unit, __m512i keys, float* out) {
    if constexpr (is_bf16) {
      _mm512_store_ps(out + 2 * unit * tile, low(keys));
      _mm512_store_ps(out + (2 * unit + 1) * tile, high(keys));
    } else {
      _mm512_store_si512(out + unit * tile, keys);
    }
  }

  static constexpr int64_t step_keys = 1;
  template <size_t n>
  static void values(const AttentionChunk& c,
                     const std::byte* const* rows,
                     int64_t d,
                     __m512 (&value)[n]) {
    TESTBED_UNROLL
    for (size_t v = 0; v < n; ++v) {
      value[v] = load_f32<is_bf16>(c, rows[0], d + static_cast<int64_t>(v) * 16);
    }
  }
  static void put_weights(float* row, const __m512 (&p)[tile_vectors]) {
    TESTBED_UNROLL
    for (int64_t v = 0; v < tile_vectors; ++v) _mm512_store_ps(row + v * 16, p[v]);
  }
  static __m512 weight(const float* row, int64_t step) { return _mm512_set1_ps(row[step]); }
  static void finish(const AttentionChunk&) {}
};

}  // namespace

void attend_chunk_avx512(const AttentionChunk& c) {
  if (c.is_bf16) {
    attend_tiles<F32Math<true>>(c);
  } else {
    attend_tiles<F32Math<false>>(c);
  }
}

}  // namespace testbed::cpu
