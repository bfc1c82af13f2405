// A tile of y = x w^T on CUDA cores, in f32 throughout: for checks against a reference, where
// nothing may be rounded to TF32. 64 x 64 results by 256 threads, 4 x 4 each.
#pragma once

#include "kernels/cuda/linear_tile.cuh"

namespace testbed::cuda {

struct SimtTile {
  using Operand = float;
  static constexpr int n_rows = 64;
  static constexpr int n_cols = 64;
  static constexpr int depth = 16;  // of k at once
  static constexpr int side = 16;   // threads along each side of the tile
  static constexpr int n_threads = side * side;
  static constexpr int blocks_per_sm = 2;  // leaves 128 registers per thread
  static constexpr int each = n_rows / side;
  static constexpr int pitch = n_rows + 1;  // of a row of k in shared memory: spreads banks
  static constexpr int64_t shared_bytes = int64_t{4} * 2 * depth * pitch;
  static_assert(n_rows == n_cols && n_threads * per_access<float> == n_rows * depth);

  // Transposes 64 rows of depth elements: thread t takes 4 neighbours of row t / 4.
  template <bool aligned>
  __device__ static void load(
      float* to, const float* from, int64_t stride, int n_valid, int64_t k_left) {
    constexpr int piece = per_access<float>;
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / (depth / piece);
    const int col = thread % (depth / piece) * piece;
    const float* source = from + row * stride + col;
    float values[piece] = {};
    if constexpr (aligned) {
      if (row < n_valid && col < k_left) load_row_part(source, values);
    } else {
      for (int i = 0; i < piece; ++i) {
        if (row < n_valid && col + i < k_left) values[i] = source[i];
      }
    }
    for (int i = 0; i < piece; ++i) to[(col + i) * pitch + row] = values[i];
  }

  // The same of w, whose elements weight(row, k) gives.
  template <typename Weight>
  __device__ static void load_each(
      float* to, const Weight& weight, int n_valid, int64_t at, int64_t k) {
    constexpr int piece = per_access<float>;
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / (depth / piece);
    const int col = thread % (depth / piece) * piece;
    for (int i = 0; i < piece; ++i) {
      const bool valid = row < n_valid && at + col + i < k;
      to[(col + i) * pitch + row] = valid ? weight(row, at + col + i) : 0.0F;
    }
  }

  template <bool aligned>
  __device__ static void run(const LinearTile<float>& tile) {
    multiply<aligned>(tile, [&](float* w, int64_t at) {
      load<aligned>(w, tile.w + at, tile.k, tile.n_cols, tile.k - at);
    });
  }
  template <bool aligned, typename Weight>
  __device__ static void run_with(const LinearTile<float>& tile, const Weight& weight) {
    multiply<aligned>(tile,
                      [&](float* w, int64_t at) { load_each(w, weight, tile.n_cols, at, tile.k); });
  }

 private:
  template <bool aligned, typename LoadWeights>
  __device__ static void multiply(const LinearTile<float>& tile, const LoadWeights& load_weights) {
    float* x = dynamic_shared<float>();
    float* w = x + depth * pitch;
    const int row = static_cast<int>(threadIdx.x) / side * each;
    const int col = static_cast<int>(threadIdx.x) % side * each;
    float sums[each][each] = {};
    for (int64_t at = 0; at < tile.k; at += depth) {
      load<aligned>(x, tile.x + at, tile.x_stride, tile.n_rows, tile.k - at);
      load_weights(w, at);
      __syncthreads();
      for (int k = 0; k < depth; ++k) {
        for (int i = 0; i < each; ++i) {
          const float a = x[k * pitch + row + i];
          for (int j = 0; j < each; ++j) sums[i][j] += a * w[k * pitch + col + j];
        }
      }
      __syncthreads();
    }
    for (int i = 0; i < each; ++i) store_four(tile, row + i, col, sums[i]);
  }
};

}  // namespace testbed::cuda
