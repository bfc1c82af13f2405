// The inner loops of the ops between the matrix products: one row, or one stretch of elements, at a
// time. One set per instruction set, all from the same templates (elementwise_loops.hpp).
#pragma once

#include <cstdint>

#include "kernels/base/dtype.hpp"
#include "kernels/base/row_max.hpp"

namespace testbed::cpu {

// For activations of type T (float or bf16). Sums are in f32, in an order that depends on n alone.
template <typename T>
struct ActivationKernels {
  // sum of x[i]^2.
  float (*sum_squares)(const T* x, int64_t n);
  // residual += x, rounded to T; returns the sum of the squares of what was stored.
  float (*add_sum_squares)(T* residual, const T* x, int64_t n);
  // out = x * factor * weight.
  void (*scale)(const T* x, float factor, const float* weight, T* out, int64_t n);
  // x *= factor.
  void (*multiply)(T* x, float factor, int64_t n);
  // sum += factor * x.
  void (*add_scaled)(float* sum, const T* x, float factor, int64_t n);
  // Whether every x[i] is.
  bool (*finite)(const T* x, int64_t n);
  // out = activation(gate, up), in the order of Activation.
  void (*gated[3])(const T* gate, const T* up, T* out, int64_t n);
  // (low, high) = (low cos - high sin, high cos + low sin), elementwise.
  void (*rotate)(T* low, T* high, const float* cosine, const float* sine, int64_t n);
};

struct ElementwiseKernels {
  ActivationKernels<float> f32;
  ActivationKernels<bf16> bf;
  void (*narrow)(const float* from, bf16* to, int64_t n);
  void (*widen)(const bf16* from, float* to, int64_t n);
  // x = cap * tanh(x / cap).
  void (*softcap)(float* x, float cap, int64_t n);
  RowMax (*row_max)(const float* x, int64_t n);
};

const ElementwiseKernels& elementwise_portable();
const ElementwiseKernels& elementwise_avx2();
const ElementwiseKernels& elementwise_avx512();

}  // namespace testbed::cpu
