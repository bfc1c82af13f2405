// Root-mean-square norms. A row is read once, kept in registers, and written once. Bound: memory.
#include "kernels/cuda/norm_code.cuh"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

// The row of x [n_rows, d] that a thread works on, with blockDim.x others; more than one row in a
// block only where a row is one warp's. n_rows and beyond: none, for whole warps.
__device__ inline int64_t row_of_thread() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }

template <typename T>
__device__ inline Piece<T> load_or_zeros(const T* row, int p, int64_t d) {
  return norm_count(p, d) > 0 ? load_whole(row + norm_column(p)) : Piece<T>{};
}

// out = x / rms(x) * weight for rows of x [n_rows, d]; with `adds`, x is first residual += x.
// weight nullptr: ones. Rows are aligned, in whole pieces, n_pieces or less for each thread. Reads
// x (and residual), writes out (and residual); the weight stays in L2.
template <typename T, int n_pieces, bool adds>
__global__ void __launch_bounds__(most_norm_threads) norm_rows(
    const T* x, T* residual, const float* weight, T* out, int64_t n_rows, int64_t d, float eps) {
  __shared__ float scratch[warp_size];
  const int64_t row = row_of_thread();
  if (row >= n_rows) return;
  float v[n_pieces][piece];
  for (int p = 0; p < n_pieces; ++p) unpack(load_or_zeros(x + row * d, p, d), v[p]);
  if constexpr (adds) {
    T* const sums = residual + row * d;
    for (int p = 0; p < n_pieces; ++p) {
      float before[piece];
      unpack(load_or_zeros<T>(sums, p, d), before);
      for (int j = 0; j < piece; ++j) v[p][j] = rounded(x, before[j] + v[p][j]);
    }
    for (int p = 0; p < n_pieces; ++p) {
      if (norm_count(p, d) > 0) store_values(sums + norm_column(p), piece, true, v[p]);
    }
  }
  const float factor = inverse_rms(norm_sum_squares(v, scratch), d, eps);
  store_norm(v, factor, weight, d, true, out + row * d);
}

// The same for rows of any width and alignment: a second read, from L2.
template <typename T, bool adds>
__global__ void norm_any_rows(
    const T* x, T* residual, const float* weight, T* out, int64_t n_rows, int64_t d, float eps) {
  __shared__ float scratch[warp_size];
  const int64_t row = row_of_thread();
  if (row >= n_rows) return;
  const int64_t first = int64_t{piece} * threadIdx.x;
  const int64_t step = int64_t{piece} * blockDim.x;
  float sum = 0.0F;
  for (int64_t i = first; i < d; i += step) {
    const int count = count_of(d - i);
    float v[piece];
    unpack(load_some(x + row * d + i, count), v);
    if constexpr (adds) {
      float before[piece];
      unpack(load_some<T>(residual + row * d + i, count), before);
      for (int j = 0; j < piece; ++j) v[j] = rounded(x, before[j] + v[j]);
      store_values(residual + row * d + i, count, false, v);
    }
    for (int j = 0; j < piece; ++j) sum = fmaf(v[j], v[j], sum);
  }
  const float factor = inverse_rms(norm_row_sum(sum, scratch), d, eps);
  const T* const summed = adds ? residual : x;
  for (int64_t i = first; i < d; i += step) {
    const int count = count_of(d - i);
    float v[piece];
    unpack(load_some(summed + row * d + i, count), v);
    scale_by(v, factor, weight, i, count, false);
    store_values(out + row * d + i, count, false, v);
  }
}

struct NormRows {
  TensorView residual;  // empty: nothing is added
  TensorView x;
  TensorView weight;  // empty: ones
  float eps;
  TensorView out;
};

template <typename T>
using NormKernel = void (*)(const T*, T*, const float*, T*, int64_t, int64_t, float);

template <typename T>
void launch_norm(Queue& queue, NormKernel<T> kernel, unsigned n_threads, const NormRows& rows) {
  const int64_t d = rows.x.shape()[-1];
  const int64_t n_rows = rows.x.n_elements() / d;
  const unsigned block_rows = n_threads == warp_size ? 4 : 1;
  launch(queue,
         kernel,
         {dim3(static_cast<unsigned>(divide_up(n_rows, block_rows))), dim3(n_threads, block_rows)},
         rows.x.as<T>(),
         rows.residual.empty() ? nullptr : rows.residual.as<T>(),
         rows.weight.empty() ? nullptr : rows.weight.as<float>(),
         rows.out.as<T>(),
         n_rows,
         d,
         rows.eps);
}

template <typename T, bool adds>
void launch_norm_of_width(Queue& queue, const NormRows& rows) {
  const int64_t d = rows.x.shape()[-1];
  const bool wide = d % piece == 0 && is_wide(rows.x.data()) && is_wide(rows.out.data()) &&
                    is_wide(rows.residual.data()) && is_wide(rows.weight.data());
  if (!wide || d > most_norm_columns) {
    const int64_t n_pieces = std::min<int64_t>(divide_up(d, piece), 256);
    launch_norm<T>(queue, norm_any_rows<T, adds>, norm_threads(n_pieces * piece, 1), rows);
    return;
  }
  with_norm_pieces(d, [&](auto n_pieces) {
    launch_norm<T>(queue, norm_rows<T, n_pieces(), adds>, norm_threads(d, n_pieces()), rows);
  });
}

template <bool adds>
void norm(Queue& queue, const NormRows& rows) {
  if (rows.x.n_elements() == 0) return;
  CHECK(rows.x.dtype() == rows.out.dtype() && rows.x.n_elements() == rows.out.n_elements());
  const TensorView weight = rows.weight;
  CHECK(weight.empty() ||
        (weight.dtype() == DType::F32 && weight.n_elements() == rows.x.shape()[-1]));
  with_type(rows.x.dtype(), [&]<typename T>(T*) { launch_norm_of_width<T, adds>(queue, rows); });
}

}  // namespace

void rms_norm(Queue& queue, TensorView x, TensorView weight, float eps, TensorView out) {
  CHECK(x.empty() || !weight.empty());
  norm<false>(queue, {.residual = {}, .x = x, .weight = weight, .eps = eps, .out = out});
}

void add_rms_norm(
    Queue& queue, TensorView residual, TensorView x, TensorView weight, float eps, TensorView out) {
  CHECK(x.empty() || !weight.empty());
  CHECK(residual.dtype() == x.dtype() && residual.n_elements() == x.n_elements());
  norm<true>(queue, {.residual = residual, .x = x, .weight = weight, .eps = eps, .out = out});
}

void head_norm(Queue& queue, TensorView x, TensorView weight, float eps) {
  norm<false>(queue, {.residual = {}, .x = x, .weight = weight, .eps = eps, .out = x});
}

}  // namespace testbed::cuda
