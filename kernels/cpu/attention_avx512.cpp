// Attention's inner step for AVX-512. Only intrinsics and functions local to this file: anything
// shared would be compiled with flags that other processors lack.
// The functions are over the Lanes before them, so the order counts.
// clang-format off
#include "kernels/cpu/lanes_avx512.hpp"
#include "kernels/cpu/lanes_math.hpp"
// clang-format on
#include "kernels/cpu/attention_kernel.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t tile = attention_tile;

// exp(x) for x <= 0, relative error below 2e-7; 0 below -104. Range reduction to |r| <= ln(2) / 2
// with ln(2) in two parts; the Taylor polynomial of degree 7 leaves r^8 / 8! < 6e-9.
inline __m512 exp_of_nonpositive(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-110.0F));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.0F / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, n);
}

// 16 x 16 words: row i of the result is column i.
inline void transpose(__m512i* rows) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // rows[4 g + j] holds, in its 128-bit lane l, column 4 l + j of input rows 4 g .. 4 g + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i lo01 = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0x88);
    const __m512i hi01 = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0xdd);
    const __m512i lo23 = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0x88);
    const __m512i hi23 = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0xdd);
    a[j] = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
    a[8 + j] = _mm512_shuffle_i32x4(lo01, lo23, 0xdd);
    a[4 + j] = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
    a[12 + j] = _mm512_shuffle_i32x4(hi01, hi23, 0xdd);
  }
  for (int i = 0; i < 16; ++i) rows[i] = a[i];
}

inline __mmask16 first_words(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1U << n) - 1U);
}

// K of one tile as [head_dim, tile] f32; zero for null rows.
void transpose_keys(const AttentionChunk& c, const std::byte* const* k_rows, float* out) {
  const int64_t row_words = c.is_bf16 ? c.head_dim / 2 : c.head_dim;  // of 4 bytes
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  for (int64_t key = 0; key < tile; key += 16) {
    for (int64_t word = 0; word < row_words; word += 16) {
      const int64_t n_words = row_words - word < 16 ? row_words - word : 16;
      const __mmask16 mask = first_words(n_words);
      __m512i rows[16];
      for (int i = 0; i < 16; ++i) {
        const std::byte* row = k_rows[key + i];
        rows[i] = row == nullptr ? _mm512_setzero_si512()
                                 : _mm512_maskz_loadu_epi32(mask, row + word * 4);
      }
      transpose(rows);
      for (int64_t i = 0; i < n_words; ++i) {
        if (c.is_bf16) {
          float* even = out + 2 * (word + i) * tile + key;
          _mm512_store_si512(even, _mm512_slli_epi32(rows[i], 16));
          _mm512_store_si512(even + tile, _mm512_and_si512(rows[i], high_half));
        } else {
          _mm512_store_si512(out + (word + i) * tile + key, rows[i]);
        }
      }
    }
  }
}

// V of one tile as [tile, padded_v_dim] f32; zero for null rows and past v_dim.
void expand_values(const AttentionChunk& c, const std::byte* const* v_rows, float* out) {
  for (int64_t key = 0; key < tile; ++key) {
    const std::byte* row = v_rows[key];
    for (int64_t d = 0; d < c.padded_v_dim; d += 16, out += 16) {
      const __mmask16 mask = first_words(c.v_dim - d);
      if (row == nullptr) {
        _mm512_store_ps(out, _mm512_setzero_ps());
      } else if (c.is_bf16) {
        const __m256i half = _mm256_maskz_loadu_epi16(mask, row + d * 2);
        _mm512_store_si512(out, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
      } else {
        _mm512_store_ps(out, _mm512_maskz_loadu_ps(mask, row + d * 4));
      }
    }
  }
}

// Decode is bound by reads that its blocks' scattered places hide from the processor: the rows of
// the next tile are asked for one at a time between the multiplications. next: that tile's rows, or
// null if nothing is to be asked for.
inline void prefetch_row(const std::byte* const* next, int64_t key, int64_t row_bytes) {
  if (next == nullptr || next[key] == nullptr) return;
  for (int64_t byte = 0; byte < row_bytes; byte += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(next[key] + byte), _MM_HINT_T0);
  }
}

inline __m512 capped(__m512 score, float softcap) {
  if (softcap == 0.0F) return score;
  const __m512 cap = _mm512_set1_ps(softcap);
  return _mm512_mul_ps(cap, hyperbolic_tangent(_mm512_div_ps(score, cap)));
}

// scores[r][tile] = scale * q[r] . K, n_rows at once.
template <int n_rows>
inline void scores_of_rows(const AttentionChunk& c,
                           const float* q,
                           const float* k,
                           const std::byte* const* next,
                           float* scores) {
  __m512 sum[n_rows][4];
  for (int r = 0; r < n_rows; ++r) {
    for (int64_t v = 0; v < 4; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const int64_t row_bytes = c.head_dim * (c.is_bf16 ? 2 : 4);
  for (int64_t d = 0; d < c.head_dim; ++d) {
    if (d < tile) prefetch_row(next, d, row_bytes);
    __m512 keys[4];
    for (int64_t v = 0; v < 4; ++v) keys[v] = _mm512_load_ps(k + d * tile + v * 16);
    for (int r = 0; r < n_rows; ++r) {
      const __m512 query = _mm512_set1_ps(q[r * c.padded_dim + d]);
      for (int64_t v = 0; v < 4; ++v) sum[r][v] = _mm512_fmadd_ps(query, keys[v], sum[r][v]);
    }
  }
  const __m512 scale = _mm512_set1_ps(c.scale);
  for (int r = 0; r < n_rows; ++r) {
    for (int64_t v = 0; v < 4; ++v) {
      const __m512 score = capped(_mm512_mul_ps(sum[r][v], scale), c.softcap);
      _mm512_store_ps(scores + r * tile + v * 16, score);
    }
  }
}

// Turns one row's scores into exp(score - maximum), 0 where invisible; returns the factor for what
// was summed before.
inline float softmax_row(const AttentionChunk& c, int64_t row, int64_t first, float* scores) {
  const int64_t begin = c.first_key[row] > first ? c.first_key[row] - first : 0;
  const int64_t end = c.end_key[row] - first < tile ? c.end_key[row] - first : tile;
  const __m512 minus_infinity = _mm512_set1_ps(-__builtin_inff());
  if (begin >= end) {
    for (int64_t v = 0; v < 4; ++v) _mm512_store_ps(scores + v * 16, _mm512_setzero_ps());
    return 1.0F;
  }
  const uint64_t below_end = end == 64 ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
  const uint64_t visible = below_end & (~uint64_t{0} << begin);
  __m512 s[4];
  for (int64_t v = 0; v < 4; ++v) {
    const auto mask = static_cast<__mmask16>(visible >> (16 * v));
    s[v] = _mm512_mask_loadu_ps(minus_infinity, mask, scores + v * 16);
  }
  const float old_maximum = c.maximum[row];
  const __m512 highest = _mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3]));
  const float tile_maximum = _mm512_reduce_max_ps(highest);
  const float maximum = old_maximum > tile_maximum ? old_maximum : tile_maximum;
  for (int64_t v = 0; v < 4; ++v) {
    const auto mask = static_cast<__mmask16>(visible >> (16 * v));
    s[v] = exp_of_nonpositive(_mm512_sub_ps(s[v], _mm512_set1_ps(maximum)));
    s[v] = _mm512_maskz_mov_ps(mask, s[v]);
    _mm512_store_ps(scores + v * 16, s[v]);
  }
  const float sum =
      _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])));
  const float factor = _mm512_cvtss_f32(exp_of_nonpositive(_mm512_set1_ps(old_maximum - maximum)));
  c.maximum[row] = maximum;
  c.sum[row] = c.sum[row] * factor + sum;
  return factor;
}

// out[r][n_vectors * 16] = out * factor[r] + sum over keys [begin, end) of p[r][key] * V[key].
template <int n_rows, int n_vectors>
inline void add_values(const AttentionChunk& c,
                       const float* p,
                       const float* factor,
                       const float* v_tile,
                       int64_t begin,
                       int64_t end,
                       const std::byte* const* next,
                       float* out) {
  __m512 sum[n_rows][n_vectors];
  for (int r = 0; r < n_rows; ++r) {
    const __m512 keep = _mm512_set1_ps(factor[r]);
    for (int64_t v = 0; v < n_vectors; ++v) {
      sum[r][v] = _mm512_mul_ps(_mm512_load_ps(out + r * c.padded_v_dim + v * 16), keep);
    }
  }
  const int64_t row_bytes = c.v_dim * (c.is_bf16 ? 2 : 4);
  for (int64_t key = begin; key < end; ++key) {
    prefetch_row(next, key, row_bytes);
    __m512 values[n_vectors];
    for (int64_t v = 0; v < n_vectors; ++v) {
      values[v] = _mm512_load_ps(v_tile + key * c.padded_v_dim + v * 16);
    }
    for (int r = 0; r < n_rows; ++r) {
      const __m512 weight = _mm512_set1_ps(p[r * tile + key]);
      for (int64_t v = 0; v < n_vectors; ++v) {
        sum[r][v] = _mm512_fmadd_ps(weight, values[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < n_rows; ++r) {
    for (int64_t v = 0; v < n_vectors; ++v) {
      _mm512_store_ps(out + r * c.padded_v_dim + v * 16, sum[r][v]);
    }
  }
}

template <int n_rows>
inline void add_values_of_rows(const AttentionChunk& c,
                               const float* p,
                               const float* factor,
                               const float* v_tile,
                               int64_t begin,
                               int64_t end,
                               const std::byte* const* next,
                               float* out) {
  int64_t d = 0;
  for (; d + 64 <= c.padded_v_dim; d += 64) {
    add_values<n_rows, 4>(c, p, factor, v_tile + d, begin, end, d == 0 ? next : nullptr, out + d);
  }
  if (d + 32 <= c.padded_v_dim) {
    add_values<n_rows, 2>(c, p, factor, v_tile + d, begin, end, d == 0 ? next : nullptr, out + d);
    d += 32;
  }
  if (d < c.padded_v_dim)
    add_values<n_rows, 1>(c, p, factor, v_tile + d, begin, end, d == 0 ? next : nullptr, out + d);
}

void score_tile(const AttentionChunk& c,
                const float* k,
                const std::byte* const* next,
                float* scores) {
  int64_t r = 0;
  const auto add = [&](auto kernel, int64_t n) {
    for (; r + n <= c.n_rows; r += n) {
      kernel(c, c.q + r * c.padded_dim, k, r == 0 ? next : nullptr, scores + r * tile);
    }
  };
  add(scores_of_rows<6>, 6);
  add(scores_of_rows<4>, 4);
  add(scores_of_rows<2>, 2);
  add(scores_of_rows<1>, 1);
}

void value_tile(const AttentionChunk& c,
                const float* p,
                const float* factor,
                const float* v,
                int64_t begin,
                int64_t end,
                const std::byte* const* next) {
  int64_t r = 0;
  const auto add = [&](auto kernel, int64_t n) {
    for (; r + n <= c.n_rows; r += n) {
      kernel(c,
             p + r * tile,
             factor + r,
             v,
             begin,
             end,
             r == 0 ? next : nullptr,
             c.out + r * c.padded_v_dim);
    }
  };
  add(add_values_of_rows<6>, 6);
  add(add_values_of_rows<4>, 4);
  add(add_values_of_rows<2>, 2);
  add(add_values_of_rows<1>, 1);
}

}  // namespace

void attend_chunk_avx512(const AttentionChunk& c) {
  for (int64_t r = 0; r < c.n_rows; ++r) {
    c.maximum[r] = -__builtin_inff();
    c.sum[r] = 0.0F;
    for (int64_t d = 0; d < c.padded_v_dim; ++d) c.out[r * c.padded_v_dim + d] = 0.0F;
  }
  float* k = c.scratch;                  // [head_dim, tile]
  float* v = k + tile * c.padded_dim;    // [tile, padded_v_dim]
  float* p = v + tile * c.padded_v_dim;  // [max_rows, tile]
  float* factor = p + attention_max_rows * tile;
  const bool reads_bound = c.n_rows <= 16;  // decode: arithmetic does not hide the reads
  for (int64_t t = c.first_tile; t < c.end_tile; ++t) {
    const int64_t first = t * tile;
    transpose_keys(c, c.k_rows + first, k);
    expand_values(c, c.v_rows + first, v);
    score_tile(c, k, reads_bound ? c.k_rows + first + tile : nullptr, p);
    int64_t begin = tile;
    int64_t end = 0;
    for (int64_t r = 0; r < c.n_rows; ++r) {
      factor[r] = softmax_row(c, r, first, p + r * tile);
      const int64_t row_begin = c.first_key[r] > first ? c.first_key[r] - first : 0;
      const int64_t row_end = c.end_key[r] - first < tile ? c.end_key[r] - first : tile;
      if (row_begin < row_end) {
        begin = row_begin < begin ? row_begin : begin;
        end = row_end > end ? row_end : end;
      }
    }
    value_tile(c, p, factor, v, begin, end, reads_bound ? c.v_rows + first + tile : nullptr);
  }
}

}  // namespace testbed::cpu
