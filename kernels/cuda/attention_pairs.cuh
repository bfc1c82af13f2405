// What the tensor-core kernels of prompts share: a block's rows are (query, head) pairs of one KV
// head, which see different keys.
#pragma once

#include "kernels/cuda/attention_mma.cuh"

namespace testbed::cuda {

// A block's rows: pair r is query r / n_heads, head r % n_heads.
struct Pairs {
  const AttentionCall& call;
  AttentionTile tile;
  HeadGroup group;
  __device__ bool has(int r) const { return r < tile.n_rows * group.n; }
  __device__ const AttentionRow& row(int r) const { return call.rows[tile.first + r / group.n]; }
  __device__ int32_t head(int r) const { return call.heads[group.first + r % group.n]; }
  // In [m, n_heads].
  __device__ int64_t at(int r) const { return int64_t{row(r).row} * call.n_heads + head(r); }
};

// Rows of a matrix [n, dim] to a tile; row(i) < 0: zeros.
template <int n_threads, int padded, typename Row>
__device__ inline void load_rows(const SharedTile<padded>& tile,
                                 int rows,
                                 const void* matrix,
                                 int stride,
                                 int dim,
                                 const Row& row) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * tile.pieces; i += n_threads) {
    const int r = i / tile.pieces;
    const int p = i % tile.pieces;
    const int64_t from = row(r);
    const bool valid = from >= 0 && p * piece < dim;
    copy_async_16(tile.at(r, p),
                  static_cast<const bf16*>(matrix) + (valid ? from * stride + p * piece : 0),
                  valid);
  }
}

// The keys that one lane's two rows see.
struct SeenKeys {
  int32_t first[2];
  int32_t end[2];
  __device__ SeenKeys(const Pairs& pairs, int first_pair) {
    for (int i = 0; i < 2; ++i) {
      const int r = first_pair + lane_in_warp() / 4 + 8 * i;
      first[i] = pairs.has(r) ? pairs.row(r).first_key : 0;
      end[i] = pairs.has(r) ? pairs.row(r).end_key : 0;
    }
  }
  __device__ bool any_of(int32_t key, int n_keys) const {
    return (first[0] < key + n_keys && end[0] > key) || (first[1] < key + n_keys && end[1] > key);
  }
};

// Scores of keys that a row does not see become -inf. Column c of this lane is key `key` + c.
template <int n_cols>
__device__ inline void mask(float (&scores)[n_cols][4],
                            const SeenKeys& seen,
                            int32_t key,
                            const int64_t* slots) {
#pragma unroll
  for (int j = 0; j < n_cols; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = j * mma_cols + lane_in_warp() % 4 * 2 + i % 2;
      const int32_t k = key + column;
      const bool sees = k >= seen.first[i / 2] && k < seen.end[i / 2];
      if (!sees || slots[column] < 0) scores[j][i] = -INFINITY;
    }
  }
}

__device__ inline void store_pair(const AttentionCall& call, int64_t at, float x, float y) {
  if (call.out_is_f32 != 0) {
    float* out = static_cast<float*>(call.out) + at;
    out[0] = x;
    out[1] = y;
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<bf16*>(call.out) + at) = pack_bf16x2(x, y);
  }
}

}  // namespace testbed::cuda
