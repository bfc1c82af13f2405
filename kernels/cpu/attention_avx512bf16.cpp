// Attention's inner step over a bf16 cache with vdpbf16ps: two elements of head_dim, or two keys,
// at a time. Products of bf16 are exact in f32, so a score is rounded no more often than in f32;
// the weights that multiply values are rounded to bf16, as on GPUs, their sum is not.
#include "kernels/cpu/attention_avx512.hpp"

namespace testbed::cpu {
namespace {

struct PairMath {
  static int64_t n_units(const AttentionChunk& c) { return c.head_dim / 2; }
  static int64_t n_steps(const AttentionChunk& c) { return c.head_dim / 2; }
  static const uint32_t* query(const AttentionChunk& c, int64_t row) {
    return c.q_pairs + row * c.padded_dim / 2;
  }
  static __m512 spread(const uint32_t* pair) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*pair)));
  }
  static __m512 add(__m512 sum, __m512 a, __m512 b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static __m512 dot(__m512 sum, const uint32_t* query, int64_t unit, __m512i keys) {
    return add(sum, spread(query + unit), _mm512_castsi512_ps(keys));
  }
  static void unpack(int64_t unit, __m512i keys, float* out) {
    _mm512_store_si512(out + unit * tile, keys);
  }

  static constexpr int64_t step_keys = 2;
  static __m512i load(const AttentionChunk& c, const std::byte* row, int64_t d) {
    const int64_t n = c.v_dim - d;
    const __mmask32 mask = n >= 32 ? ~__mmask32{0} : n <= 0 ? 0 : (__mmask32{1} << n) - 1;
    return row == nullptr ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(mask, row + d * 2);
  }
  // Of 32 elements the pairs (key, next key) in an order of their own, which out keeps until
  // finish: elements 4 j ... 4 j + 3 with j even in the first vector, with j odd in the second.
  template <size_t n>
  static void values(const AttentionChunk& c,
                     const std::byte* const* rows,
                     int64_t d,
                     __m512 (&value)[n]) {
    TESTBED_UNROLL
    for (size_t v = 0; v < n; v += 2) {
      const __m512i first = load(c, rows[0], d + static_cast<int64_t>(v) * 16);
      const __m512i second = load(c, rows[1], d + static_cast<int64_t>(v) * 16);
      value[v] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(first, second));
      value[v + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(first, second));
    }
  }
  static void put_weights(float* row, const __m512 (&p)[tile_vectors]) {
    TESTBED_UNROLL
    for (int64_t v = 0; v < tile_vectors; v += 2) {
      _mm512_store_si512(row + v * 8, (__m512i)_mm512_cvtne2ps_pbh(p[v + 1], p[v]));
    }
  }
  static __m512 weight(const float* row, int64_t step) { return _mm512_set1_ps(row[step]); }

  static void finish(const AttentionChunk& c) {
    for (int64_t i = 0; i < c.n_kv_heads * c.n_rows * c.padded_v_dim; i += 32) {
      const __m512 even = _mm512_load_ps(c.out + i);
      const __m512 odd = _mm512_load_ps(c.out + i + 16);
      const __m512 low = _mm512_shuffle_f32x4(even, odd, 0x44);
      const __m512 high = _mm512_shuffle_f32x4(even, odd, 0xee);
      _mm512_store_ps(c.out + i, _mm512_shuffle_f32x4(low, low, 0xd8));
      _mm512_store_ps(c.out + i + 16, _mm512_shuffle_f32x4(high, high, 0xd8));
    }
  }
};

}  // namespace

void attend_chunk_avx512_bf16(const AttentionChunk& c) { attend_tiles<PairMath>(c); }

}  // namespace testbed::cpu
