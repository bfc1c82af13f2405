// Maxima of rows, and whether all is finite: one read. Bound: memory.
#include "kernels/cuda/row_code.cuh"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

constexpr int warps_of_block = 2;  // small: one row is spread over many SMs

// The larger value, the lower index of equals; NaN is never larger.
__device__ inline void take(RowMax& best, RowMax other) {
  const bool better =
      other.value > best.value || (other.value == best.value && other.index < best.index);
  if (better) {
    best.value = other.value;
    best.index = other.index;
  }
  best.finite = best.finite && other.finite;
}

__device__ inline RowMax nothing() { return {-INFINITY, INT32_MAX, true}; }

__device__ inline RowMax warp_best(RowMax best) {
  for (int lanes = warp_size / 2; lanes > 0; lanes /= 2) {
    RowMax other;
    other.value = __shfl_xor_sync(all_lanes, best.value, lanes);
    other.index = __shfl_xor_sync(all_lanes, best.index, lanes);
    other.finite = __shfl_xor_sync(all_lanes, static_cast<int>(best.finite), lanes) != 0;
    take(best, other);
  }
  return best;
}

// parts [n_rows, n_parts]: a warp finds the maximum of every n_parts-th stretch of a row. Reads x
// once.
__global__ void __launch_bounds__(warps_of_block* warp_size)
    max_of_parts(const float* x, RowMax* parts, int64_t n, int64_t n_parts, bool wide) {
  const int64_t row = blockIdx.x;
  const int64_t part = int64_t{blockIdx.y} * warps_of_block + threadIdx.y;
  if (part >= n_parts) return;  // whole warps
  RowMax best = nothing();
  const int64_t step = int64_t{piece} * warp_size * n_parts;
  for (int64_t i = piece * (part * warp_size + threadIdx.x); i < n; i += step) {
    const int count = count_of(n - i);
    float v[piece];
    unpack(load_piece(x + row * n + i, count, wide), v);
    for (int j = 0; j < piece; ++j) {
      if (j < count) take(best, {v[j], static_cast<int32_t>(i + j), is_finite(v[j])});
    }
  }
  best = warp_best(best);
  if (threadIdx.x == 0) parts[row * n_parts + part] = best;
}

// results [n_rows] of the parts, a warp for each row.
__global__ void max_of_rows(const RowMax* parts, int64_t n_parts, RowMax* results) {
  const RowMax* const of_row = parts + blockIdx.x * n_parts;
  RowMax best = nothing();
  for (int64_t i = threadIdx.x; i < n_parts; i += warp_size) take(best, of_row[i]);
  best = warp_best(best);
  if (threadIdx.x != 0) return;
  if (best.index == INT32_MAX) best.index = 0;  // all NaN
  results[blockIdx.x] = best;
}

__global__ void set_one(int32_t* x) { *x = 1; }

// *finite = 0 if an element of x is not: reads x once. Whoever writes, writes the same.
template <typename T>
__global__ void find_not_finite(const T* x, int64_t n, bool wide, int32_t* finite) {
  for_pieces(1, n, [&](int64_t /*row*/, int64_t i, int count) {
    float v[piece];
    unpack(load_piece(x + i, count, wide), v);
    float zero_or_nan = 0.0F;
    for (int j = 0; j < piece; ++j) zero_or_nan = fmaf(v[j], 0.0F, zero_or_nan);
    if (zero_or_nan != 0.0F) *finite = 0;
  });
}

}  // namespace

void row_max(Queue& queue, TensorView logits, RowMax* results) {
  const int64_t n_rows = logits.n_rows();
  if (n_rows == 0) return;
  const int64_t n = logits.row_elements();
  CHECK(logits.dtype() == DType::F32 && n >= 1 && n < INT32_MAX);
  const int64_t n_parts = row_max_parts(n);
  RowMax* const parts = results + n_rows;
  launch(queue,
         max_of_parts,
         {dim3(static_cast<unsigned>(n_rows),
               static_cast<unsigned>(divide_up(n_parts, warps_of_block))),
          dim3(warp_size, warps_of_block)},
         logits.as<float>(),
         parts,
         n,
         n_parts,
         is_wide(logits.data(), row_bytes(logits)));
  launch(queue,
         max_of_rows,
         {dim3(static_cast<unsigned>(n_rows)), dim3(warp_size)},
         parts,
         n_parts,
         results);
}

void all_finite(Queue& queue, TensorView x, int32_t* finite) {
  launch(queue, set_one, {dim3(1), dim3(1)}, finite);
  const int64_t n = x.n_elements();
  if (n == 0) return;
  with_type(x.dtype(), [&]<typename T>(T*) {
    launch(queue, find_not_finite<T>, row_shape(1, n), x.as<T>(), n, is_wide(x.data()), finite);
  });
}

}  // namespace testbed::cuda
