// Attention's inner step for AVX-512, over its arithmetic (Math): included by one .cpp per
// instruction set. Only intrinsics and functions of internal linkage: anything shared would be
// compiled with flags that other processors lack. Every score is one chain of sums over head_dim,
// every output one over the keys of a tile: neither depends on how many rows are computed together.
//
// Math, of keys: n_units, words of 32 bits in a key, and n_steps, elements (or pairs of them) that
// are multiplied at once; query(c, row), where a row's are, and spread(), one of them everywhere;
// dot(sum, query, unit, keys), a unit's share of 16 keys' scores; unpack, its steps for later. Of
// values: step_keys, how many keys are multiplied at once; values(c, rows, d, out), theirs from
// element d on, 16 elements in each vector; put_weights(row, p), how softmax leaves a tile's
// weights, and weight(row, step), one of them everywhere; finish(c), which puts out in order.
// add(sum, a, b) for both.
#pragma once

// The functions are over the Lanes before them, so the order counts.
// clang-format off
#include "kernels/cpu/lanes_avx512.hpp"
#include "kernels/cpu/lanes_math.hpp"
// clang-format on
#include "kernels/cpu/attention_kernel.hpp"
#include "kernels/cpu/unroll.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t tile = attention_tile;
constexpr int64_t tile_vectors = tile / 16;

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
[[gnu::always_inline]] inline void transpose(__m512i* rows) {
  __m512i a[16];
  TESTBED_UNROLL
  for (int64_t i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  TESTBED_UNROLL
  for (int64_t i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // rows[4 g + j] holds, in its 128-bit lane l, column 4 l + j of input rows 4 g .. 4 g + 3.
  TESTBED_UNROLL
  for (int64_t j = 0; j < 4; ++j) {
    const __m512i lo01 = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0x88);
    const __m512i hi01 = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0xdd);
    const __m512i lo23 = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0x88);
    const __m512i hi23 = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0xdd);
    a[j] = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
    a[8 + j] = _mm512_shuffle_i32x4(lo01, lo23, 0xdd);
    a[4 + j] = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
    a[12 + j] = _mm512_shuffle_i32x4(hi01, hi23, 0xdd);
  }
  TESTBED_UNROLL
  for (int64_t i = 0; i < 16; ++i) rows[i] = a[i];
}

inline __mmask16 first_words(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1U << n) - 1U);
}

inline __m512i load_units(const std::byte* row, int64_t unit, __mmask16 mask) {
  return row == nullptr ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi32(mask, row + unit * 4);
}

// 16 values of a row from d on, zero past v_dim and of a null row.
template <bool is_bf16>
inline __m512 load_f32(const AttentionChunk& c, const std::byte* row, int64_t d) {
  if (row == nullptr) return _mm512_setzero_ps();
  const __mmask16 mask = first_words(c.v_dim - d);
  if constexpr (is_bf16) {
    const __m256i half = _mm256_maskz_loadu_epi16(mask, row + d * 2);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  } else {
    return _mm512_maskz_loadu_ps(mask, row + d * 4);
  }
}

// step.template operator()<R>(row) for rows [row, n_rows), at most `most` at a time.
template <int64_t most, typename Step>
inline void by_rows(int64_t row, int64_t n_rows, const Step& step) {
  for (; row + most <= n_rows; row += most) step.template operator()<most>(row);
  if constexpr (most > 1) {
    if (row < n_rows) by_rows<most - 1>(row, n_rows, step);
  }
}

// Apart from the sums of scores, which leave no register for it.
[[gnu::noinline]] void cap_scores(float softcap, int64_t n_rows, float* scores) {
  const __m512 cap = _mm512_set1_ps(softcap);
  for (int64_t i = 0; i < n_rows * tile; i += 16) {
    const __m512 ratio = _mm512_div_ps(_mm512_load_ps(scores + i), cap);
    _mm512_store_ps(scores + i, _mm512_mul_ps(cap, hyperbolic_tangent(ratio)));
  }
}

// Which keys of the tile from first on a row sees, or some row.
struct SeenKeys {
  int64_t begin = tile;
  int64_t end = 0;
  SeenKeys() = default;
  SeenKeys(const AttentionChunk& c, int64_t row, int64_t first)
      : begin(c.first_key[row] > first ? c.first_key[row] - first : 0),
        end(c.end_key[row] - first < tile ? c.end_key[row] - first : tile) {}
  bool empty() const { return begin >= end; }
};
SeenKeys seen_by_some(const AttentionChunk& c, int64_t first) {
  SeenKeys all;
  for (int64_t r = 0; r < c.n_rows; ++r) {
    const SeenKeys seen(c, r, first);
    if (seen.empty()) continue;
    all.begin = seen.begin < all.begin ? seen.begin : all.begin;
    all.end = seen.end > all.end ? seen.end : all.end;
  }
  return all;
}

// Turns one row's scores into weights exp(score - maximum), 0 where invisible; returns the factor
// for what was summed before.
template <typename Math>
inline float softmax_row(SeenKeys seen, float* scores, float* old_maximum, float* old_sum) {
  const __m512 minus_infinity = _mm512_set1_ps(-__builtin_inff());
  __m512 s[tile_vectors];
  if (seen.empty()) {
    TESTBED_UNROLL
    for (int64_t v = 0; v < tile_vectors; ++v) s[v] = _mm512_setzero_ps();
    Math::put_weights(scores, s);
    return 1.0F;
  }
  const uint64_t below_end = seen.end == 64 ? ~uint64_t{0} : (uint64_t{1} << seen.end) - 1;
  const uint64_t visible = below_end & (~uint64_t{0} << seen.begin);
  TESTBED_UNROLL
  for (int64_t v = 0; v < tile_vectors; ++v) {
    const auto mask = static_cast<__mmask16>(visible >> (16 * v));
    s[v] = _mm512_mask_loadu_ps(minus_infinity, mask, scores + v * 16);
  }
  const __m512 highest = _mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3]));
  const float tile_maximum = _mm512_reduce_max_ps(highest);
  const float maximum = *old_maximum > tile_maximum ? *old_maximum : tile_maximum;
  TESTBED_UNROLL
  for (int64_t v = 0; v < tile_vectors; ++v) {
    const auto mask = static_cast<__mmask16>(visible >> (16 * v));
    s[v] = exp_of_nonpositive(_mm512_sub_ps(s[v], _mm512_set1_ps(maximum)));
    s[v] = _mm512_maskz_mov_ps(mask, s[v]);
  }
  Math::put_weights(scores, s);
  const float sum =
      _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])));
  if (maximum == *old_maximum) {
    *old_sum += sum;
    return 1.0F;
  }
  const float factor = _mm512_cvtss_f32(exp_of_nonpositive(_mm512_set1_ps(*old_maximum - maximum)));
  *old_maximum = maximum;
  *old_sum = *old_sum * factor + sum;
  return factor;
}

// out[r][n_vectors * 16] = out * factor[r] + sum over steps [begin, end) of weight[r] * V, of the
// elements from d on. values(step, d, out): V's.
template <typename Math, int64_t n_rows, int64_t n_vectors, typename Values>
inline void add_values(const float* weights,
                       const float* factor,
                       int64_t begin,
                       int64_t end,
                       int64_t d,
                       const Values& values,
                       float* out,
                       int64_t pitch) {
  __m512 sum[n_rows][n_vectors];
  TESTBED_UNROLL
  for (int64_t r = 0; r < n_rows; ++r) {
    const __m512 keep = _mm512_set1_ps(factor[r]);
    TESTBED_UNROLL
    for (int64_t v = 0; v < n_vectors; ++v) {
      sum[r][v] = _mm512_mul_ps(_mm512_load_ps(out + r * pitch + d + v * 16), keep);
    }
  }
  for (int64_t step = begin; step < end; ++step) {
    __m512 value[n_vectors];
    values(step, d, value);
    TESTBED_UNROLL
    for (int64_t r = 0; r < n_rows; ++r) {
      const __m512 weight = Math::weight(weights + r * tile, step);
      TESTBED_UNROLL
      for (int64_t v = 0; v < n_vectors; ++v) sum[r][v] = Math::add(sum[r][v], weight, value[v]);
    }
  }
  TESTBED_UNROLL
  for (int64_t r = 0; r < n_rows; ++r) {
    TESTBED_UNROLL
    for (int64_t v = 0; v < n_vectors; ++v) {
      _mm512_store_ps(out + r * pitch + d + v * 16, sum[r][v]);
    }
  }
}

// All elements of n_rows rows.
template <typename Math, int64_t n_rows, typename Values>
inline void add_all_values(const AttentionChunk& c,
                           const float* weights,
                           const float* factor,
                           int64_t begin,
                           int64_t end,
                           const Values& values,
                           float* out) {
  constexpr int64_t vectors = n_rows <= 6 ? 4 : 2;
  const int64_t pitch = c.padded_v_dim;
  int64_t d = 0;
  for (; d + 16 * vectors <= pitch; d += 16 * vectors) {
    add_values<Math, n_rows, vectors>(weights, factor, begin, end, d, values, out, pitch);
  }
  for (; d < pitch; d += 32) {
    add_values<Math, n_rows, 2>(weights, factor, begin, end, d, values, out, pitch);
  }
}

// Many rows: a tile of K is transposed and one of V unpacked, once for all of them.
template <typename Math>
class TileOfMany {
 public:
  explicit TileOfMany(const AttentionChunk& c)
      : c_(c), k_(c.scratch), v_(k_ + tile * c.padded_dim), p_(v_ + tile * c.padded_v_dim) {}

  void attend(int64_t first) {
    transpose_keys(c_.k_rows + first);
    by_rows<6>(0, c_.n_rows, [&]<int64_t R>(int64_t row) { score<R>(row); });
    if (c_.softcap != 0.0F) cap_scores(c_.softcap, c_.n_rows, p_);
    float factor[attention_max_rows];
    for (int64_t r = 0; r < c_.n_rows; ++r) {
      factor[r] =
          softmax_row<Math>(SeenKeys(c_, r, first), p_ + r * tile, c_.maximum + r, c_.sum + r);
    }
    const SeenKeys seen = seen_by_some(c_, first);
    const int64_t begin = seen.begin / Math::step_keys;
    const int64_t end = (seen.end + Math::step_keys - 1) / Math::step_keys;
    unpack_values(c_.v_rows + first, begin, end);
    const auto values = [&]<size_t n>(int64_t step, int64_t d, __m512(&value)[n]) {
      TESTBED_UNROLL
      for (size_t v = 0; v < n; ++v) {
        value[v] = _mm512_load_ps(v_ + step * c_.padded_v_dim + d + static_cast<int64_t>(v) * 16);
      }
    };
    by_rows<6>(0, c_.n_rows, [&]<int64_t R>(int64_t row) {
      float* out = c_.out + row * c_.padded_v_dim;
      add_all_values<Math, R>(c_, p_ + row * tile, factor + row, begin, end, values, out);
    });
  }

 private:
  void transpose_keys(const std::byte* const* rows) {
    const int64_t n_units = Math::n_units(c_);
    for (int64_t key = 0; key < tile; key += 16) {
      for (int64_t unit = 0; unit < n_units; unit += 16) {
        const __mmask16 mask = first_words(n_units - unit);
        __m512i units[16];
        TESTBED_UNROLL
        for (int64_t i = 0; i < 16; ++i) units[i] = load_units(rows[key + i], unit, mask);
        transpose(units);
        TESTBED_UNROLL
        for (int64_t i = 0; i < 16; ++i) {
          if (i < n_units - unit) Math::unpack(unit + i, units[i], k_ + key);
        }
      }
    }
  }

  void unpack_values(const std::byte* const* rows, int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      for (int64_t d = 0; d < c_.padded_v_dim; d += 32) {
        __m512 value[2];
        Math::values(c_, rows + step * Math::step_keys, d, value);
        _mm512_store_ps(v_ + step * c_.padded_v_dim + d, value[0]);
        _mm512_store_ps(v_ + step * c_.padded_v_dim + d + 16, value[1]);
      }
    }
  }

  template <int64_t n_rows>
  void score(int64_t row) {
    __m512 sum[n_rows][tile_vectors];
    TESTBED_UNROLL
    for (int64_t r = 0; r < n_rows; ++r) {
      TESTBED_UNROLL
      for (int64_t v = 0; v < tile_vectors; ++v) sum[r][v] = _mm512_setzero_ps();
    }
    const auto* query = Math::query(c_, row);
    const int64_t pitch = Math::query(c_, 1) - Math::query(c_, 0);
    const int64_t n_steps = Math::n_steps(c_);
    for (int64_t step = 0; step < n_steps; ++step) {
      __m512 keys[tile_vectors];
      TESTBED_UNROLL
      for (int64_t v = 0; v < tile_vectors; ++v)
        keys[v] = _mm512_load_ps(k_ + step * tile + v * 16);
      TESTBED_UNROLL
      for (int64_t r = 0; r < n_rows; ++r) {
        const __m512 q = Math::spread(query + r * pitch + step);
        TESTBED_UNROLL
        for (int64_t v = 0; v < tile_vectors; ++v) sum[r][v] = Math::add(sum[r][v], q, keys[v]);
      }
    }
    const __m512 scale = _mm512_set1_ps(c_.scale);
    TESTBED_UNROLL
    for (int64_t r = 0; r < n_rows; ++r) {
      TESTBED_UNROLL
      for (int64_t v = 0; v < tile_vectors; ++v) {
        _mm512_store_ps(p_ + (row + r) * tile + v * 16, _mm512_mul_ps(sum[r][v], scale));
      }
    }
  }

  const AttentionChunk& c_;
  float* k_;  // [steps of head_dim][tile]
  float* v_;  // [steps of keys][padded_v_dim]
  float* p_;  // [n_rows][tile] scores, then weights
};

// Asks the second-level cache (in the first, blocks of one KV head meet in the same few sets) for a
// KV head's 16 rows that come `keys_ahead` after these. Always inline: g++ takes a function that
// only prefetches for one without effect.
constexpr int64_t keys_ahead = 16;
[[gnu::always_inline]] inline void prefetch_rows(const std::byte* const* rows,
                                                 int64_t head_offset,
                                                 int64_t row_bytes) {
  const std::byte* first = rows[keys_ahead];
  if (first == nullptr) return;
  for (int64_t byte = 0; byte < 16 * row_bytes; byte += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(first + head_offset + byte), _MM_HINT_T1);
  }
}

// Few rows of each of several KV heads: decode, which is bound by reads. 16 keys of all heads at a
// time, in the order of memory, and each word goes from the cache to the sums once.
template <typename Math, int64_t n_rows>
class TileOfFew {
 public:
  explicit TileOfFew(const AttentionChunk& c)
      : c_(c),
        v_row_bytes_(c.v_dim * (c.is_bf16 ? 2 : 4)),
        p_(c.scratch + tile * (c.padded_dim + c.padded_v_dim)) {}

  void attend(int64_t first) {
    const SeenKeys seen = seen_by_some(c_, first);
    const int64_t begin = seen.begin / 16 * 16;
    for (int64_t key = begin; key < seen.end; key += 16) {
      for (int64_t h = 0; h < c_.n_kv_heads; ++h) {
        score(h, c_.k_rows + first + key, key);
      }
    }
    if (c_.softcap != 0.0F) cap_scores(c_.softcap, c_.n_kv_heads * n_rows, p_);
    float factor[attention_max_rows];
    for (int64_t row = 0; row < c_.n_kv_heads * n_rows; ++row) {
      factor[row] = softmax_row<Math>(
          SeenKeys(c_, row % n_rows, first), p_ + row * tile, c_.maximum + row, c_.sum + row);
    }
    float ones[n_rows];
    for (float& one : ones) one = 1.0F;
    for (int64_t key = begin; key < seen.end; key += 16) {
      for (int64_t h = 0; h < c_.n_kv_heads; ++h) {
        prefetch_rows(c_.v_rows + first + key, h * c_.v_head_bytes, v_row_bytes_);
        add(h, first, key, seen, key == begin ? factor + h * n_rows : ones);
      }
    }
  }

 private:
  // Of KV head h the 16 keys at rows, the tile's from key on.
  void score(int64_t h, const std::byte* const* rows, int64_t key) {
    __m512 sum[n_rows];
    TESTBED_UNROLL
    for (int64_t r = 0; r < n_rows; ++r) sum[r] = _mm512_setzero_ps();
    const auto* query = Math::query(c_, h * n_rows);
    const int64_t pitch = Math::query(c_, 1) - Math::query(c_, 0);
    const int64_t n_units = Math::n_units(c_);
    const int64_t offset = h * c_.k_head_bytes;
    // A unit of 16 keys is a line: the prefetched keys come to as many lines as there are units.
    const std::byte* ahead = rows[keys_ahead] == nullptr ? nullptr : rows[keys_ahead] + offset;
    for (int64_t unit = 0; unit < n_units; unit += 16) {
      const __mmask16 mask = first_words(n_units - unit);
      __m512i units[16];
      TESTBED_UNROLL
      for (int64_t i = 0; i < 16; ++i) {
        units[i] = load_units(rows[i] == nullptr ? nullptr : rows[i] + offset, unit, mask);
      }
      transpose(units);
      TESTBED_UNROLL
      for (int64_t i = 0; i < 16; ++i) {
        if (i >= n_units - unit) break;
        // Spread over the sums: a burst of them waits for room (0.47 against 0.67 of the read
        // loop).
        if (ahead != nullptr) {
          _mm_prefetch(reinterpret_cast<const char*>(ahead + (unit + i) * 64), _MM_HINT_T1);
        }
        TESTBED_UNROLL
        for (int64_t r = 0; r < n_rows; ++r) {
          sum[r] = Math::dot(sum[r], query + r * pitch, unit + i, units[i]);
        }
      }
    }
    const __m512 scale = _mm512_set1_ps(c_.scale);
    TESTBED_UNROLL
    for (int64_t r = 0; r < n_rows; ++r) {
      _mm512_store_ps(p_ + (h * n_rows + r) * tile + key, _mm512_mul_ps(sum[r], scale));
    }
  }

  void add(int64_t h, int64_t first, int64_t key, SeenKeys seen, const float* factor) {
    const int64_t from = key > seen.begin ? key : seen.begin;
    const int64_t to = key + 16 < seen.end ? key + 16 : seen.end;
    const int64_t offset = h * c_.v_head_bytes;
    const auto values = [&]<size_t n>(int64_t step, int64_t d, __m512(&value)[n]) {
      const std::byte* rows[Math::step_keys];
      TESTBED_UNROLL
      for (int64_t i = 0; i < Math::step_keys; ++i) {
        const std::byte* row = c_.v_rows[first + step * Math::step_keys + i];
        rows[i] = row == nullptr ? nullptr : row + offset;
      }
      Math::values(c_, rows, d, value);
    };
    add_all_values<Math, n_rows>(c_,
                                 p_ + h * n_rows * tile,
                                 factor,
                                 from / Math::step_keys,
                                 (to + Math::step_keys - 1) / Math::step_keys,
                                 values,
                                 c_.out + h * n_rows * c_.padded_v_dim);
  }

  const AttentionChunk& c_;
  int64_t v_row_bytes_;
  float* p_;  // [n_kv_heads * n_rows][tile] scores, then weights
};

template <typename Tile>
void attend_with(const AttentionChunk& c) {
  Tile t(c);
  for (int64_t i = c.first_tile; i < c.end_tile; ++i) t.attend(i * tile);
}

template <typename Math>
void attend_tiles(const AttentionChunk& c) {
  const int64_t n_rows = c.n_kv_heads * c.n_rows;
  for (int64_t r = 0; r < n_rows; ++r) {
    c.maximum[r] = -__builtin_inff();
    c.sum[r] = 0.0F;
  }
  for (int64_t i = 0; i < n_rows * c.padded_v_dim; i += 16) {
    _mm512_store_ps(c.out + i, _mm512_setzero_ps());
  }
  if (c.n_rows > attention_few_rows) {
    attend_with<TileOfMany<Math>>(c);
  } else {
    by_rows<attention_few_rows>(
        0, c.n_rows, [&]<int64_t R>(int64_t) { attend_with<TileOfFew<Math, R>>(c); });
  }
  Math::finish(c);
}

}  // namespace
}  // namespace testbed::cpu
