// A row's norm as all kernels take it: which thread has which elements, and in which order squares
// are summed, so that fused and unfused norms have the same bits.
#pragma once

#include <type_traits>

#include "kernels/cuda/row_code.cuh"

namespace testbed::cuda {

// Of a row; with four pieces each, rows of up to 16384 elements stay in registers.
constexpr int most_norm_threads = 512;
constexpr int64_t most_norm_columns = int64_t{4} * piece * most_norm_threads;

// 1 / rms. A sum of squares beyond f32 would make every output zero: NaN, so that it is noticed.
__device__ inline float inverse_rms(float sum_squares, int64_t n, float eps) {
  if (!is_finite(sum_squares)) return as_float(0x7fc00000U);
  return 1.0F / sqrtf(sum_squares / static_cast<float>(n) + eps);
}

// The columns of a row of d that this thread has as its piece p.
__device__ inline int norm_column(int p) {
  return static_cast<int>(piece * (p * blockDim.x + threadIdx.x));
}
__device__ inline int norm_count(int p, int64_t d) {
  return min(piece, max(0, static_cast<int>(d) - norm_column(p)));
}

// The sum over a row's threads, on all of them. scratch: as block_sum.
__device__ inline float norm_row_sum(float x, float* scratch) {
  return blockDim.x == warp_size ? warp_sum(x) : block_sum(x, scratch);
}

// The row's sum of squares, on all of its threads.
template <int n_pieces>
__device__ inline float norm_sum_squares(const float (&v)[n_pieces][piece], float* scratch) {
  float sum = 0.0F;
  for (int p = 0; p < n_pieces; ++p) {
    for (int j = 0; j < piece; ++j) sum = fmaf(v[p][j], v[p][j], sum);
  }
  return norm_row_sum(sum, scratch);
}

// x *= factor * weight[column, ...] (nullptr: ones), one product after the other.
__device__ inline void scale_by(
    float (&x)[piece], float factor, const float* weight, int64_t column, int count, bool wide) {
  for (int j = 0; j < piece; ++j) x[j] *= factor;
  if (weight == nullptr) return;
  float w[piece];
  unpack(load_piece(weight + column, count, wide), w);
  for (int j = 0; j < piece; ++j) x[j] *= w[j];
}

// out [d] = v * factor * weight (nullptr: ones).
template <typename T, int n_pieces>
__device__ inline void store_norm(
    float (&v)[n_pieces][piece], float factor, const float* weight, int64_t d, bool wide, T* out) {
  for (int p = 0; p < n_pieces; ++p) {
    const int count = norm_count(p, d);
    if (count == 0) break;
    scale_by(v[p], factor, weight, norm_column(p), count, wide);
    store_values(out + norm_column(p), count, wide, v[p]);
  }
}

// Calls run with the pieces of a row per thread as an integral_constant: few registers and threads
// where the row allows it, so that an SM has more rows.
template <typename Run>
void with_norm_pieces(int64_t d, const Run& run) {
  CHECK(d <= most_norm_columns);
  const int64_t n_pieces = divide_up(d, piece);
  if (n_pieces <= 128) return run(std::integral_constant<int, 1>{});
  if (n_pieces <= 512) return run(std::integral_constant<int, 2>{});
  return run(std::integral_constant<int, 4>{});
}
inline unsigned norm_threads(int64_t d, int n_pieces) {
  return static_cast<unsigned>(divide_up(divide_up(d, int64_t{piece} * n_pieces), warp_size) *
                               warp_size);
}

}  // namespace testbed::cuda
