// Ops on elements, one read and one write of each. Bound: memory.
#include "kernels/cuda/row_code.cuh"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

__device__ inline float scaled(float x, float factor) { return x * factor; }
__device__ inline float capped(float x, float cap) { return cap * tanhf(x / cap); }
__device__ inline float same(float x, float /*parameter*/) { return x; }

// out = value(x, parameter): n elements read, n written.
template <float (*value)(float, float), typename From, typename To>
__global__ void map_elements(const From* x, To* out, int64_t n, bool wide, float parameter) {
  for_pieces(1, n, [&](int64_t /*row*/, int64_t i, int count) {
    float v[piece];
    unpack(load_piece(x + i, count, wide), v);
    for (int j = 0; j < piece; ++j) v[j] = value(v[j], parameter);
    store_values(out + i, count, wide, v);
  });
}

template <typename T, typename U>
__device__ inline void store_sum(T* to, const U* x, int count, bool wide) {
  const Piece<T> bits = load_piece(to, count, wide);
  const Piece<U> more = load_piece(x, count, wide);
  float sum[piece];
  float v[piece];
  unpack(bits, sum);
  unpack(more, v);
  for (int j = 0; j < piece; ++j) sum[j] += v[j];
  store_values(to, count, wide, sum);
}

// residual += x: 2n elements read, n written.
template <typename T>
__global__ void add_elements(T* residual, const T* x, int64_t n, bool wide) {
  for_pieces(1, n, [&](int64_t /*row*/, int64_t i, int count) {
    store_sum(residual + i, x + i, count, wide);
  });
}

// y [m, n] += bias [n]: m n elements read and written; the bias stays in L2.
template <typename T>
__global__ void add_to_rows(T* y, const float* bias, int64_t m, int64_t n, bool wide) {
  for_pieces(m, n, [&](int64_t row, int64_t column, int count) {
    store_sum(y + row * n + column, bias + column, count, wide);
  });
}

template <float (*value)(float, float), typename From, typename To>
void map(Queue& queue, const From* x, To* out, int64_t n, float parameter) {
  if (n == 0) return;
  const bool wide = is_wide(x) && is_wide(out);
  launch(queue, map_elements<value, From, To>, row_shape(1, n), x, out, n, wide, parameter);
}

}  // namespace

void add(Queue& queue, TensorView residual, TensorView x) {
  CHECK(residual.dtype() == x.dtype() && residual.n_elements() == x.n_elements());
  const int64_t n = x.n_elements();
  if (n == 0) return;
  const bool wide = is_wide(residual.data()) && is_wide(x.data());
  with_type(x.dtype(), [&]<typename T>(T*) {
    launch(queue, add_elements<T>, row_shape(1, n), residual.as<T>(), x.as<T>(), n, wide);
  });
}

void add_bias(Queue& queue, TensorView y, TensorView bias) {
  if (y.n_elements() == 0) return;
  const int64_t n = y.shape()[-1];
  const int64_t m = y.n_elements() / n;
  CHECK(bias.dtype() == DType::F32 && bias.n_elements() == n);
  const bool wide = is_wide(y.data(), row_bytes(y)) && is_wide(bias.data());
  with_type(y.dtype(), [&]<typename T>(T*) {
    launch(queue, add_to_rows<T>, row_shape(m, n), y.as<T>(), bias.as<float>(), m, n, wide);
  });
}

void scale(Queue& queue, TensorView x, float factor) {
  with_type(x.dtype(), [&]<typename T>(T*) {
    map<scaled>(queue, x.as<T>(), x.as<T>(), x.n_elements(), factor);
  });
}

void softcap(Queue& queue, TensorView x, float cap) {
  CHECK(x.dtype() == DType::F32);
  map<capped>(queue, x.as<float>(), x.as<float>(), x.n_elements(), cap);
}

void convert(Queue& queue, TensorView x, TensorView out) {
  CHECK(x.n_elements() == out.n_elements());
  if (x.dtype() == DType::F32 && out.dtype() == DType::BF16) {
    map<same>(queue, x.as<float>(), out.as<bf16>(), x.n_elements(), 0.0F);
  } else {
    CHECK(x.dtype() == DType::BF16 && out.dtype() == DType::F32);
    map<same>(queue, x.as<bf16>(), out.as<float>(), x.n_elements(), 0.0F);
  }
}

}  // namespace testbed::cuda
