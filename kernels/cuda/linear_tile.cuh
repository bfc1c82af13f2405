// What the tiles of expert_linear.cu share: the piece of a product that one block computes, where
// it is in the grouped rows, and how results are stored.
#pragma once

#include "kernels/cuda/device_code.cuh"

namespace testbed::cuda {

// y[i, j] = x row i . w row j + bias[j], i < n_rows, j < n_cols, both at most the tile's size.
// Rows of x and w are contiguous along k.
template <typename T>
struct LinearTile {
  const T* x;
  int64_t x_stride;  // elements between rows
  const T* w;        // [n_cols, k]
  int64_t k;
  const float* bias;  // or nullptr
  void* y;            // F32 or BF16
  int64_t y_stride;
  DType y_dtype;
  bool in_fours;  // n, strides and addresses allow to store four neighbours at once
  int n_rows;
  int n_cols;
};

// y[row, col ...] from the sums of four columns, or as many as the tile has; col % 4 == 0.
template <typename T>
__device__ inline void store_four(const LinearTile<T>& tile, int row, int col, float (&sums)[4]) {
  if (row >= tile.n_rows || col >= tile.n_cols) return;
  const int n_left = tile.n_cols - col;
  if (tile.bias != nullptr) {
    for (int i = 0; i < 4; ++i) sums[i] += i < n_left ? tile.bias[col + i] : 0.0F;
  }
  const int64_t at = row * tile.y_stride + col;
  if (tile.y_dtype == DType::F32) {
    float* y = static_cast<float*>(tile.y) + at;
    if (tile.in_fours) {
      store_row_part(y, sums);
    } else {
      for (int i = 0; i < 4; ++i) {
        if (i < n_left) store_one(y + i, sums[i]);
      }
    }
  } else {
    bf16* y = static_cast<bf16*>(tile.y) + at;
    if (tile.in_fours) {
      struct alignas(8) Four {
        uint32_t pairs[2];
      };
      *reinterpret_cast<Four*>(y) = {pack_bf16x2(sums[0], sums[1]), pack_bf16x2(sums[2], sums[3])};
    } else {
      for (int i = 0; i < 4; ++i) {
        if (i < n_left) store_one(y + i, sums[i]);
      }
    }
  }
}

// Rows of a group, a tile's worth at most.
struct GroupRows {
  int64_t group;  // -1: there is no such tile
  int64_t first;  // row
  int n_rows;
};

// Groups fill ceil(rows / tile_rows) tiles each, in order: whose is tile `index`? Every lane of a
// warp must ask. One read of first_row by each warp, 32 groups at a time.
__device__ inline GroupRows find_group_rows(const int64_t* first_row,
                                            int64_t n_groups,
                                            int64_t index,
                                            int tile_rows) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  for (int64_t base = 0; base < n_groups; base += warp_size) {
    const int64_t group = base + lane;
    const int64_t begin = group < n_groups ? first_row[group] : 0;
    const int64_t end = group < n_groups ? first_row[group + 1] : 0;
    const int n_tiles = static_cast<int>((end - begin + tile_rows - 1) / tile_rows);
    int up_to = n_tiles;  // tiles of this lane's group and those before it
    for (int step = 1; step < warp_size; step *= 2) {
      const int before = __shfl_up_sync(all_lanes, up_to, step);
      if (lane >= step) up_to += before;
    }
    const unsigned beyond = __ballot_sync(all_lanes, index < up_to);
    if (beyond != 0) {
      const int owner = __ffs(static_cast<int>(beyond)) - 1;
      const int64_t in_group = index - __shfl_sync(all_lanes, up_to - n_tiles, owner);
      const int64_t first = __shfl_sync(all_lanes, begin, owner) + in_group * tile_rows;
      const int64_t n_left = __shfl_sync(all_lanes, end, owner) - first;
      return {base + owner, first, static_cast<int>(n_left < tile_rows ? n_left : tile_rows)};
    }
    index -= __shfl_sync(all_lanes, up_to, warp_size - 1);
  }
  return {-1, 0, 0};
}

}  // namespace testbed::cuda
