// A tile of y = x w^T on tensor cores: bf16 operands, f32 sums. x and w go to shared memory by
// cp.async, n_stages - 1 pieces of depth k ahead of the multiplications; warps share the tile as
// warps_m x warps_n.
// Shared memory holds rows of 64 elements (128 bytes, all banks) in pieces of 16 bytes; piece p of
// row r is at p ^ (r % 8), so that the 8 rows of an ldmatrix lie in different banks.
#pragma once

#include "kernels/cuda/linear_tile.cuh"

namespace testbed::cuda {

template <int tile_rows, int tile_cols, int warps_m, int warps_n, int stages>
struct TensorCoreTile {
  using Operand = bf16;
  static constexpr int n_rows = tile_rows;
  static constexpr int n_cols = tile_cols;
  static constexpr int depth = 64;  // of k in a stage
  static constexpr int n_stages = stages;
  static constexpr int n_threads = warps_m * warps_n * warp_size;
  static constexpr int blocks_per_sm = 3;  // what fits the shared memory of an sm_90
  static constexpr int stage_elements = (n_rows + n_cols) * depth;
  static constexpr int64_t shared_bytes = int64_t{2} * n_stages * stage_elements;

  static constexpr int piece = per_access<bf16>;
  static constexpr int row_pieces = depth / piece;
  static constexpr int rows_at_once = n_threads / row_pieces;
  static constexpr int warp_rows = n_rows / warps_m;
  static constexpr int warp_cols = n_cols / warps_n;
  static constexpr int n_m = warp_rows / 16;  // mma tiles of a warp
  static constexpr int n_n = warp_cols / 8;
  static_assert(warp_rows % 16 == 0 && warp_cols % 16 == 0);
  static_assert(n_rows % rows_at_once == 0 && n_cols % rows_at_once == 0);

  static constexpr int pitch = n_cols + 8;  // of sums in shared memory: 4 rows of pairs, all banks
  static_assert(int64_t{4} * n_rows * pitch <= shared_bytes);

  using Sums = float[n_m][n_n][4];

  __device__ static bf16* place(bf16* matrix, int row, int row_piece) {
    return matrix + row * depth + ((row_piece ^ (row % row_pieces)) * piece);
  }

  // One piece, where rows do not start on 16 bytes.
  __device__ static void copy_by_element(bf16* to, const bf16* from, int n_valid) {
    Words words{};
    for (int i = 0; i < piece; ++i) {
      const uint32_t bits = i < n_valid ? from[i].bits : 0U;
      words.w[i / 2] |= bits << (16 * (i % 2));
    }
    *reinterpret_cast<Words*>(to) = words;
  }

  // k_left elements of each of n_valid rows, zeros around them.
  template <int rows, bool aligned>
  __device__ static void load(
      bf16* matrix, const bf16* from, int64_t stride, int n_valid, int64_t k_left) {
    const int row_piece = static_cast<int>(threadIdx.x) % row_pieces;
    const int first = static_cast<int>(threadIdx.x) / row_pieces;
    const int64_t left = k_left - row_piece * piece;
    for (int i = 0; i < rows / rows_at_once; ++i) {
      const int row = first + i * rows_at_once;
      const bool valid = row < n_valid && left > 0;
      const bf16* source = from + row * stride + row_piece * piece;
      bf16* to = place(matrix, row, row_piece);
      if constexpr (aligned) {
        copy_async_16(to, source, valid);
      } else {
        copy_by_element(to, source, valid ? static_cast<int>(left < piece ? left : piece) : 0);
      }
    }
  }

  template <bool aligned>
  __device__ static void load_stage(bf16* stage, const LinearTile<bf16>& tile, int64_t at) {
    load<n_rows, aligned>(stage, tile.x + at, tile.x_stride, tile.n_rows, tile.k - at);
    load<n_cols, aligned>(stage + n_rows * depth, tile.w + at, tile.k, tile.n_cols, tile.k - at);
  }

  __device__ static void multiply(Sums& sums, bf16* stage, int warp_row, int warp_col) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    bf16* x = stage;
    bf16* w = stage + n_rows * depth;
    for (int k = 0; k < depth / 16; ++k) {
      uint32_t a[n_m][4];
      for (int i = 0; i < n_m; ++i) {
        ldmatrix_x4(a[i], place(x, warp_row + 16 * i + lane % 16, 2 * k + lane / 16));
      }
      for (int j = 0; j < n_n; j += 2) {
        const int row = warp_col + 8 * j + lane / 16 * 8 + lane % 8;
        uint32_t b[4];  // of columns j and j + 1
        ldmatrix_x4(b, place(w, row, 2 * k + lane / 8 % 2));
        const uint32_t left[2] = {b[0], b[1]};
        const uint32_t right[2] = {b[2], b[3]};
        for (int i = 0; i < n_m; ++i) {
          mma_m16n8k16_bf16(sums[i][j], a[i], left);
          mma_m16n8k16_bf16(sums[i][j + 1], a[i], right);
        }
      }
    }
  }

  // Through shared memory, so that a warp writes whole rows of y.
  __device__ static void store(
      const LinearTile<bf16>& tile, const Sums& sums, float* shared, int warp_row, int warp_col) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    __syncthreads();  // the stages are read
    for (int i = 0; i < n_m; ++i) {
      for (int j = 0; j < n_n; ++j) {
        float* at =
            shared + (warp_row + 16 * i + lane / 4) * pitch + warp_col + 8 * j + lane % 4 * 2;
        at[0] = sums[i][j][0];
        at[1] = sums[i][j][1];
        at[8 * pitch] = sums[i][j][2];
        at[8 * pitch + 1] = sums[i][j][3];
      }
    }
    __syncthreads();
    for (int at = 4 * static_cast<int>(threadIdx.x); at < n_rows * n_cols; at += 4 * n_threads) {
      const int row = at / n_cols;
      const int col = at % n_cols;
      float four[4];
      load_row_part(shared + row * pitch + col, four);
      store_four(tile, row, col, four);
    }
  }

  // aligned: every row of x and w starts on 16 bytes (and k fills whole pieces).
  template <bool aligned>
  __device__ static void run(const LinearTile<bf16>& tile) {
    bf16* shared = dynamic_shared<bf16>();
    const int warp = static_cast<int>(threadIdx.x) / warp_size;
    const int warp_row = warp / warps_n * warp_rows;
    const int warp_col = warp % warps_n * warp_cols;
    Sums sums{};
    for (int s = 0; s < n_stages - 1; ++s) {
      if (s * depth < tile.k) load_stage<aligned>(shared + s * stage_elements, tile, s * depth);
      copy_async_commit();
    }
    int stage = 0;
    int next_stage = n_stages - 1;
    for (int64_t at = 0; at < tile.k; at += depth) {
      copy_async_wait<n_stages - 2>();
      __syncthreads();  // all have this stage, and are done with the one that is loaded next
      const int64_t next = at + (n_stages - 1) * depth;
      if (next < tile.k) load_stage<aligned>(shared + next_stage * stage_elements, tile, next);
      copy_async_commit();
      multiply(sums, shared + stage * stage_elements, warp_row, warp_col);
      stage = stage + 1 == n_stages ? 0 : stage + 1;
      next_stage = next_stage + 1 == n_stages ? 0 : next_stage + 1;
    }
    copy_async_wait<0>();
    store(tile, sums, reinterpret_cast<float*>(shared), warp_row, warp_col);
  }
};

}  // namespace testbed::cuda
