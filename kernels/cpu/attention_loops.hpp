// attend_chunk() over a vector type: included by one .cpp per instruction set, after its Lanes.
// Everything here has internal linkage. Every score is one chain of sums over head_dim, every
// output one over the keys of a tile: neither depends on how many rows are computed together.
#pragma once

#include "kernels/cpu/attention_kernel.hpp"
#include "kernels/cpu/lanes_math.hpp"
#include "kernels/cpu/unroll.hpp"

namespace testbed::cpu {
namespace {

// Rows x vectors held in registers: Lanes::block_rows x 4.
constexpr int block_vectors = 4;
constexpr int64_t tile_keys = attention_tile;

// One tile's part of the scratch memory.
struct TileMemory {
  float* keys;    // [padded_dim][tile_keys], transposed
  float* values;  // [tile_keys][padded_v_dim]
  float* scores;  // [max_rows][tile_keys], then their exponentials
  float* factor;  // [max_rows] by which earlier sums shrink
};

// Always inline: g++ takes a function that only prefetches for one without effect.
[[gnu::always_inline]] inline void prefetch_row(const std::byte* row, int64_t n_bytes) {
  if (row == nullptr) return;
  for (int64_t i = 0; i < n_bytes; i += 64) _mm_prefetch(row + i, _MM_HINT_T0);
}

int64_t key_bytes(const AttentionChunk& c) { return c.head_dim * (c.is_bf16 ? 2 : 4); }

V load_row_units(const std::byte* row, int64_t unit, int64_t n_units) {
  if (row == nullptr) return Lanes::set1(0.0F);
  return Lanes::load_units(row + 4 * unit, n_units - unit);
}

// Keys of a tile to f32, transposed. A unit of 32 bits is one f32 or two bf16.
void load_keys(const AttentionChunk& c, int64_t tile, float* keys) {
  const int64_t n_units = key_bytes(c) / 4;
  const std::byte* const* rows = c.k_rows + tile;
  for (int64_t j = 0; j < tile_keys; j += width) {
    for (int64_t i = 0; i < width; ++i) prefetch_row(rows[tile_keys + j + i], key_bytes(c));
    for (int64_t unit = 0; unit < n_units; unit += width) {
      V v[width];
      TESTBED_UNROLL
      for (int64_t i = 0; i < width; ++i) v[i] = load_row_units(rows[j + i], unit, n_units);
      Lanes::transpose(v);
      const int64_t n = n_units - unit < width ? n_units - unit : width;
      for (int64_t i = 0; i < n; ++i) {
        if (c.is_bf16) {
          float* out = keys + 2 * (unit + i) * tile_keys + j;
          Lanes::store(out, Lanes::low_half(v[i]));
          Lanes::store(out + tile_keys, Lanes::high_half(v[i]));
        } else {
          Lanes::store(keys + (unit + i) * tile_keys + j, v[i]);
        }
      }
    }
  }
}

void load_value(const AttentionChunk& c, const std::byte* row, float* out) {
  int64_t d = 0;
  if (row != nullptr) {
    const auto* f = reinterpret_cast<const float*>(row);
    const auto* b = reinterpret_cast<const bf16*>(row);
    for (; d + width <= c.v_dim; d += width) {
      Lanes::store(out + d, c.is_bf16 ? Lanes::load(b + d) : Lanes::load(f + d));
    }
    for (; d < c.v_dim; ++d) {
      uint32_t bits = 0;
      __builtin_memcpy(&bits, row + d * (c.is_bf16 ? 2 : 4), c.is_bf16 ? 2 : 4);
      if (c.is_bf16) bits <<= 16;
      __builtin_memcpy(out + d, &bits, 4);
    }
  }
  for (; d < c.padded_v_dim; ++d) out[d] = 0.0F;
}

// Values of keys [first, end) of a tile to f32.
void load_values(const AttentionChunk& c, int64_t tile, int64_t first, int64_t end, float* values) {
  for (int64_t j = 0; j < tile_keys; ++j) {
    prefetch_row(c.v_rows[tile + tile_keys + j], c.v_dim * (c.is_bf16 ? 2 : 4));
    if (j < first || j >= end) continue;
    load_value(c, c.v_rows[tile + j], values + j * c.padded_v_dim);
  }
}

// Apart from score_rows, whose accumulators leave no register for it; not inlined for the same
// reason, like exponentiate: 6 % of the time at -O2.
[[gnu::noinline]] void cap_scores(const AttentionChunk& c, float* scores) {
  const V cap = Lanes::set1(c.softcap);
  for (int64_t i = 0; i < c.n_rows * tile_keys; i += width) {
    const V ratio = Lanes::div(Lanes::load(scores + i), cap);
    Lanes::store(scores + i, Lanes::mul(cap, hyperbolic_tangent(ratio)));
  }
}

// scores[R][tile_keys] of R rows of q.
template <int R>
void score_rows(const AttentionChunk& c, const float* q, const float* keys, float* scores) {
  const V scale = Lanes::set1(c.scale);
  for (int64_t j = 0; j < tile_keys; j += block_vectors * width) {
    V sum[R][block_vectors];
    TESTBED_UNROLL
    for (int r = 0; r < R; ++r) {
      TESTBED_UNROLL
      for (int i = 0; i < block_vectors; ++i) sum[r][i] = Lanes::set1(0.0F);
    }
    for (int64_t d = 0; d < c.head_dim; ++d) {
      V key[block_vectors];
      TESTBED_UNROLL
      for (int i = 0; i < block_vectors; ++i) {
        key[i] = Lanes::load(keys + d * tile_keys + j + i * width);
      }
      TESTBED_UNROLL
      for (int r = 0; r < R; ++r) {
        const V value = Lanes::set1(q[r * c.padded_dim + d]);
        TESTBED_UNROLL
        for (int i = 0; i < block_vectors; ++i) sum[r][i] = Lanes::fma(value, key[i], sum[r][i]);
      }
    }
    TESTBED_UNROLL
    for (int r = 0; r < R; ++r) {
      TESTBED_UNROLL
      for (int i = 0; i < block_vectors; ++i) {
        Lanes::store(scores + r * tile_keys + j + i * width, Lanes::mul(sum[r][i], scale));
      }
    }
  }
}

// Scores of row to exponentials relative to its new maximum; zero for keys it does not see.
[[gnu::noinline]] void exponentiate(const AttentionChunk& c,
                                    int64_t row,
                                    int64_t tile,
                                    const TileMemory& m) {
  float* scores = m.scores + row * tile_keys;
  const auto first = static_cast<float>(c.first_key[row] - tile);
  const auto end = static_cast<float>(c.end_key[row] - tile);
  const V none = Lanes::set1(-__builtin_inff());
  alignas(64) float lanes[width];
  for (int64_t i = 0; i < width; ++i) lanes[i] = static_cast<float>(i);
  const V lane = Lanes::load(lanes);
  const bool sees_none = c.first_key[row] >= tile + tile_keys || c.end_key[row] <= tile ||
                         c.first_key[row] >= c.end_key[row];
  if (sees_none) {
    for (int64_t j = 0; j < tile_keys; j += width) Lanes::store(scores + j, Lanes::set1(0.0F));
    m.factor[row] = 1.0F;
    return;
  }
  V top = none;
  for (int64_t j = 0; j < tile_keys; j += width) {
    const V index = Lanes::add(lane, Lanes::set1(static_cast<float>(j)));
    top = Lanes::max(Lanes::select(index, first, end, Lanes::load(scores + j), none), top);
  }
  Lanes::store(lanes, top);
  float maximum = c.maximum[row];
  for (const float value : lanes) maximum = value > maximum ? value : maximum;
  V sum = Lanes::set1(0.0F);
  for (int64_t j = 0; j < tile_keys; j += width) {
    const V index = Lanes::add(lane, Lanes::set1(static_cast<float>(j)));
    const V e = exponential(Lanes::sub(Lanes::load(scores + j), Lanes::set1(maximum)));
    const V p = Lanes::select(index, first, end, e, Lanes::set1(0.0F));
    Lanes::store(scores + j, p);
    sum = Lanes::add(sum, p);
  }
  Lanes::store(lanes, exponential(Lanes::set1(c.maximum[row] - maximum)));
  m.factor[row] = lanes[0];
  c.sum[row] = c.sum[row] * lanes[0] + sum_lanes(sum);
  c.maximum[row] = maximum;
}

// out[R][C * width] = out * factor + p V over keys [first, end) of the tile.
template <int R, int C>
void add_value_block(const AttentionChunk& c,
                     const float* p,
                     const float* factor,
                     const float* values,
                     int64_t first,
                     int64_t end,
                     float* out) {
  V sum[R][C];
  TESTBED_UNROLL
  for (int r = 0; r < R; ++r) {
    TESTBED_UNROLL
    for (int i = 0; i < C; ++i) {
      sum[r][i] =
          Lanes::mul(Lanes::load(out + r * c.padded_v_dim + i * width), Lanes::set1(factor[r]));
    }
  }
  for (int64_t j = first; j < end; ++j) {
    V value[C];
    TESTBED_UNROLL
    for (int i = 0; i < C; ++i) value[i] = Lanes::load(values + j * c.padded_v_dim + i * width);
    TESTBED_UNROLL
    for (int r = 0; r < R; ++r) {
      const V weight = Lanes::set1(p[r * tile_keys + j]);
      TESTBED_UNROLL
      for (int i = 0; i < C; ++i) sum[r][i] = Lanes::fma(weight, value[i], sum[r][i]);
    }
  }
  TESTBED_UNROLL
  for (int r = 0; r < R; ++r) {
    TESTBED_UNROLL
    for (int i = 0; i < C; ++i) {
      Lanes::store(out + r * c.padded_v_dim + i * width, sum[r][i]);
    }
  }
}

template <int R>
void add_values(
    const AttentionChunk& c, int64_t row, const TileMemory& m, int64_t first, int64_t end) {
  const float* p = m.scores + row * tile_keys;
  float* out = c.out + row * c.padded_v_dim;
  int64_t d = 0;
  for (; d + block_vectors * width <= c.padded_v_dim; d += block_vectors * width) {
    add_value_block<R, block_vectors>(c, p, m.factor + row, m.values + d, first, end, out + d);
  }
  for (; d < c.padded_v_dim; d += width) {
    add_value_block<R, 1>(c, p, m.factor + row, m.values + d, first, end, out + d);
  }
}

// step(row, R) for rows [row, n), as many at a time as registers hold.
template <int R, typename Step>
void last_rows(int64_t row, int64_t n_left, const Step& step) {
  if (n_left == R) {
    step.template operator()<R>(row);
  } else if constexpr (R > 1) {
    last_rows<R - 1>(row, n_left, step);
  }
}
template <typename Step>
void by_rows(int64_t n, const Step& step) {
  int64_t row = 0;
  for (; row + Lanes::block_rows <= n; row += Lanes::block_rows) {
    step.template operator()<Lanes::block_rows>(row);
  }
  if constexpr (Lanes::block_rows > 1) last_rows<Lanes::block_rows - 1>(row, n - row, step);
}

void attend_tile(const AttentionChunk& c, int64_t tile, const TileMemory& m) {
  int64_t first = tile_keys;
  int64_t end = 0;
  for (int64_t row = 0; row < c.n_rows; ++row) {
    const int64_t row_first = c.first_key[row] - tile;
    const int64_t row_end = c.end_key[row] - tile;
    first = row_first < first ? row_first : first;
    end = row_end > end ? row_end : end;
  }
  first = first < 0 ? 0 : first;
  end = end > tile_keys ? tile_keys : end;
  load_keys(c, tile, m.keys);
  by_rows(c.n_rows, [&]<int R>(int64_t row) {
    score_rows<R>(c, c.q + row * c.padded_dim, m.keys, m.scores + row * tile_keys);
  });
  if (c.softcap > 0) cap_scores(c, m.scores);
  for (int64_t row = 0; row < c.n_rows; ++row) exponentiate(c, row, tile, m);
  load_values(c, tile, first, end, m.values);
  by_rows(c.n_rows, [&]<int R>(int64_t row) { add_values<R>(c, row, m, first, end); });
}

void attend(const AttentionChunk& c) {
  for (int64_t row = 0; row < c.n_rows; ++row) {
    c.maximum[row] = -__builtin_inff();
    c.sum[row] = 0.0F;
  }
  for (int64_t i = 0; i < c.n_rows * c.padded_v_dim; ++i) c.out[i] = 0.0F;
  TileMemory m{};
  m.keys = c.scratch;
  m.values = m.keys + tile_keys * c.padded_dim;
  m.scores = m.values + tile_keys * c.padded_v_dim;
  m.factor = m.scores + attention_max_rows * tile_keys;
  for (int64_t t = c.first_tile; t < c.end_tile; ++t) attend_tile(c, t * tile_keys, m);
}

}  // namespace
}  // namespace testbed::cpu
