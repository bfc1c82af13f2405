// The readable version of attention's inner step, which the others are compared with.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/dtype.hpp"
#include "kernels/cpu/attention_kernel.hpp"

namespace testbed::cpu {
namespace {

void load_row(const AttentionChunk& c, const std::byte* row, int64_t dim, float* out) {
  if (!c.is_bf16) {
    std::memcpy(out, row, static_cast<size_t>(dim) * sizeof(float));
    return;
  }
  const auto* in = reinterpret_cast<const bf16*>(row);
  for (int64_t d = 0; d < dim; ++d) out[d] = to_f32(in[d]);
}

// out += sum over keys [first, end) of the tile of exp(score - maximum) * v, rescaling what is
// there to the new maximum.
void add_tile(const AttentionChunk& c, int64_t row, int64_t tile, int64_t first, int64_t end) {
  const float* k_tile = c.scratch;
  const float* v_tile = c.scratch + attention_tile * c.padded_dim;
  const float* q = c.q + row * c.padded_dim;
  float* out = c.out + row * c.padded_v_dim;
  float score[attention_tile];
  float maximum = c.maximum[row];
  for (int64_t j = first; j < end; ++j) {
    const float* k = k_tile + (j - tile) * c.padded_dim;
    float sum = 0.0F;
    for (int64_t d = 0; d < c.head_dim; ++d) sum += q[d] * k[d];
    sum *= c.scale;
    score[j - tile] = c.softcap > 0 ? c.softcap * std::tanh(sum / c.softcap) : sum;
    maximum = std::max(maximum, score[j - tile]);
  }
  const float rescale = std::exp(c.maximum[row] - maximum);
  c.maximum[row] = maximum;
  c.sum[row] *= rescale;
  for (int64_t d = 0; d < c.v_dim; ++d) out[d] *= rescale;
  for (int64_t j = first; j < end; ++j) {
    const float p = std::exp(score[j - tile] - maximum);
    const float* v = v_tile + (j - tile) * c.padded_v_dim;
    c.sum[row] += p;
    for (int64_t d = 0; d < c.v_dim; ++d) out[d] += p * v[d];
  }
}

}  // namespace

void attend_chunk_portable(const AttentionChunk& c) {
  std::fill_n(c.maximum, c.n_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(c.sum, c.n_rows, 0.0F);
  std::fill_n(c.out, c.n_rows * c.padded_v_dim, 0.0F);
  float* k_tile = c.scratch;
  float* v_tile = c.scratch + attention_tile * c.padded_dim;
  for (int64_t t = c.first_tile; t < c.end_tile; ++t) {
    const int64_t tile = t * attention_tile;
    for (int64_t j = 0; j < attention_tile; ++j) {
      if (c.k_rows[tile + j] == nullptr) continue;
      load_row(c, c.k_rows[tile + j], c.head_dim, k_tile + j * c.padded_dim);
      load_row(c, c.v_rows[tile + j], c.v_dim, v_tile + j * c.padded_v_dim);
    }
    for (int64_t row = 0; row < c.n_rows; ++row) {
      const int64_t first = std::max<int64_t>(tile, c.first_key[row]);
      const int64_t end = std::min<int64_t>(tile + attention_tile, c.end_key[row]);
      if (first < end) add_tile(c, row, tile, first, end);
    }
  }
}

}  // namespace testbed::cpu
