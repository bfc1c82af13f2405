// Pieces of the tensor-core attention kernels: tiles of rows of bf16 in shared memory, in 16-byte
// pieces that are permuted within a row so that ldmatrix meets no bank twice; products of tiles;
// and the online softmax of the accumulators. With g = lane / 4 and t = lane % 4, a lane has rows g
// and g + 8 of its warp's 16, and of each 8 columns 2 t and 2 t + 1 (cuda_arch/ptx.cuh).
#pragma once

#include "kernels/cuda/attention_code.cuh"

namespace testbed::cuda {

constexpr int mma_rows = 16;  // of a warp
constexpr int mma_k = 16;
constexpr int mma_cols = 8;
constexpr int piece = 8;  // elements of bf16 in 16 bytes

// [rows, dim] in shared memory; dim is a multiple of 64, so that 8 pieces can trade places.
template <int dim>
struct SharedTile {
  static_assert(dim % 64 == 0);
  static constexpr int pieces = dim / piece;
  bf16* memory;
  __device__ bf16* at(int row, int p) const { return memory + row * dim + (p ^ (row % 8)) * piece; }
};

__device__ inline int lane_in_warp() { return static_cast<int>(threadIdx.x % warp_size); }

// A operand: rows [row, row + 16), elements [16 k, 16 k + 16).
template <int dim>
__device__ inline void load_a(uint32_t (&a)[4], const SharedTile<dim>& tile, int row, int k) {
  const int lane = lane_in_warp();
  ldmatrix_x4(a, tile.at(row + lane % 16, 2 * k + lane / 16));
}
// B operands of two neighbouring products whose columns are the tile's rows [row, row + 16).
template <int dim>
__device__ inline void load_b(uint32_t (&b)[4], const SharedTile<dim>& tile, int row, int k) {
  const int lane = lane_in_warp();
  ldmatrix_x4(b, tile.at(row + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
}
// B operands of two neighbouring products over the tile's rows [row, row + 16), whose columns are
// its elements [16 n, 16 n + 16).
template <int dim>
__device__ inline void load_b_trans(uint32_t (&b)[4], const SharedTile<dim>& tile, int row, int n) {
  const int lane = lane_in_warp();
  ldmatrix_x4_trans(b, tile.at(row + lane % 16, 2 * n + lane / 16));
}

// scores[16, 8 * n_cols] += q[row ..., :] k[key ..., :]^T.
template <int dim, int n_cols>
__device__ inline void multiply_keys(float (&scores)[n_cols][4],
                                     const SharedTile<dim>& q,
                                     int row,
                                     const SharedTile<dim>& k,
                                     int key) {
#pragma unroll
  for (int i = 0; i < dim / mma_k; ++i) {
    uint32_t a[4];
    load_a(a, q, row, i);
#pragma unroll
    for (int j = 0; j < n_cols; j += 2) {
      uint32_t b[4];
      load_b(b, k, key + j * mma_cols, i);
      mma_m16n8k16_bf16(scores[j], a, {b[0], b[1]});
      mma_m16n8k16_bf16(scores[j + 1], a, {b[2], b[3]});
    }
  }
}

// The weights of 16 keys as an A operand: accumulators of two products lie as one operand does.
__device__ inline void pack_weights(uint32_t (&a)[4],
                                    const float (&low)[4],
                                    const float (&high)[4]) {
  a[0] = pack_bf16x2(low[0], low[1]);
  a[1] = pack_bf16x2(low[2], low[3]);
  a[2] = pack_bf16x2(high[0], high[1]);
  a[3] = pack_bf16x2(high[2], high[3]);
}

// Over the four lanes that hold a row.
__device__ inline float quad_max(float x) { return max_of_lanes<4>(x); }
__device__ inline float quad_sum(float x) { return sum_of_lanes<4>(x); }

// Of a lane's two rows.
struct RowState {
  float maximum[2];
  float sum[2];  // of this lane's columns
};
template <int n_out>
__device__ inline void reset(RowState& state, float (&out)[n_out][4]) {
  for (int i = 0; i < 2; ++i) {
    state.maximum[i] = -INFINITY;
    state.sum[i] = 0.0F;
  }
#pragma unroll
  for (auto& column : out) {
    for (float& x : column) x = 0.0F;
  }
}

// Caps products, where there is a cap; returns what is left to multiply them with.
template <int n_cols>
__device__ inline float cap_scores(float (&scores)[n_cols][4], const AttentionCall& call) {
  if (call.softcap <= 0.0F) return call.scale;
#pragma unroll
  for (auto& column : scores) {
#pragma unroll
    for (float& x : column) x = score_of(x, call.scale, call.softcap);
  }
  return 1.0F;
}

// Products to exponentials relative to the rows' new maximum; out shrinks along with it.
template <int n_cols, int n_out>
__device__ inline void exponentiate(float (&scores)[n_cols][4],
                                    float scale,
                                    RowState& state,
                                    float (&out)[n_out][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < n_cols; ++j)
      top = fmaxf(top, fmaxf(scores[j][2 * i], scores[j][2 * i + 1]));
    const float maximum = fmaxf(state.maximum[i], quad_max(top) * scale);
    const float subtracted = finite_maximum(maximum);
    const float keep = exp2_approximate(state.maximum[i] - subtracted);
    state.maximum[i] = maximum;
    state.sum[i] *= keep;
#pragma unroll
    for (int j = 0; j < n_cols; ++j) {
#pragma unroll
      for (int e = 2 * i; e < 2 * i + 2; ++e) {
        scores[j][e] = exp2_approximate(scores[j][e] * scale - subtracted);
        state.sum[i] += scores[j][e];
      }
    }
#pragma unroll
    for (int n = 0; n < n_out; ++n) {
      out[n][2 * i] *= keep;
      out[n][2 * i + 1] *= keep;
    }
  }
}

// out += weights v, v [8 * n_cols, v_dim].
template <int v_dim, int n_cols>
__device__ inline void add_values(float (&out)[v_dim / mma_cols][4],
                                  const float (&weights)[n_cols][4],
                                  const SharedTile<v_dim>& v) {
#pragma unroll
  for (int i = 0; i < n_cols * mma_cols / mma_k; ++i) {
    uint32_t a[4];
    pack_weights(a, weights[2 * i], weights[2 * i + 1]);
#pragma unroll
    for (int n = 0; n < v_dim / 16; ++n) {
      uint32_t b[4];
      load_b_trans(b, v, i * mma_k, n);
      mma_m16n8k16_bf16(out[2 * n], a, {b[0], b[1]});
      mma_m16n8k16_bf16(out[2 * n + 1], a, {b[2], b[3]});
    }
  }
}

}  // namespace testbed::cuda
