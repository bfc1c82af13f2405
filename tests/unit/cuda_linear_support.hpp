// What the tests of the CUDA device's matrix products share: tensors to and from the device, and
// the bound of a dot product.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/queue.hpp"
#include "tests/unit/cuda_copies.hpp"
#include "tests/unit/elementwise_support.hpp"

namespace testbed::cuda {

using cpu::at;
using cpu::random;

inline Tensor to_device(TensorView host) {
  Tensor device = device_tensor(host.dtype(), host.shape());
  copy_to_device(host.data(), device);
  return device;
}

// Behind the queue's work.
inline Tensor to_host(Queue& queue, TensorView device) {
  queue.synchronize();
  Tensor host(device.dtype(), device.shape());
  if (host.n_bytes() == 0) return host;
  check(
      cudaMemcpy(
          host.data(), device.data(), static_cast<size_t>(host.n_bytes()), cudaMemcpyDeviceToHost),
      "cudaMemcpy");
  return host;
}

// NaN of either dtype: what has not been computed shows.
inline Tensor unwritten(DType dtype, Shape shape) {
  Tensor t(dtype, shape);
  if (t.n_bytes() > 0) std::memset(t.data(), 0xff, static_cast<size_t>(t.n_bytes()));
  return to_device(t);
}

// An array that kernels read.
template <typename T>
Tensor device_array(const std::vector<T>& values) {
  static_assert(sizeof(T) % sizeof(int32_t) == 0);
  const auto n = static_cast<int64_t>(values.size() * sizeof(T) / sizeof(int32_t));
  Tensor host(DType::I32, {n});
  if (n > 0) std::memcpy(host.data(), values.data(), static_cast<size_t>(host.n_bytes()));
  return to_device(host);
}

// y[at] = x row . w row + bias: an f32 sum of k + 1 terms, then the store. If the bias is added
// to what has been stored, the product was rounded by a store of its own.
struct DotSum {
  double sum = 0;
  double x2 = 0;
  double w2 = 0;
  int64_t k = 0;
};
inline DotSum dot(TensorView x, int64_t x_at, TensorView w, int64_t w_at, int64_t k) {
  DotSum d{.k = k};
  for (int64_t i = 0; i < k; ++i) {
    const double a = at(x, x_at + i);
    const double b = at(w, w_at + i);
    d.sum += a * b;
    d.x2 += a * a;
    d.w2 += b * b;
  }
  return d;
}
enum class BiasIsAdded : uint8_t { before_the_store, after_it };
inline void expect_dot(const DotSum& d, double bias, BiasIsAdded when, TensorView y, int64_t y_at) {
  double error = tolerance::f32_dot(d.k + 1, std::sqrt(d.x2 + bias * bias), std::sqrt(d.w2 + 1));
  if (when == BiasIsAdded::after_it) error += tolerance::store(y.dtype(), std::abs(d.sum) + error);
  cpu::expect_near(y, y_at, d.sum + bias, error);
}

}  // namespace testbed::cuda
