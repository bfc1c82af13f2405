// The ops between the matrix products. Activations F32 or BF16; arithmetic in f32, one rounding at
// the store.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/routing.hpp"
#include "kernels/base/row_max.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "kernels/device.hpp"

namespace testbed::cpu {

// out = x / sqrt(mean(x^2) + eps) * weight, over the last dimension. x, out [m, d]; weight F32 [d].
// out may be x.
void rms_norm(
    TensorView x, TensorView weight, float eps, TensorView out, ThreadPool& pool, Isa isa);
// residual += x (rounded to its dtype); out = rms_norm(residual).
void add_rms_norm(TensorView residual,
                  TensorView x,
                  TensorView weight,
                  float eps,
                  TensorView out,
                  ThreadPool& pool,
                  Isa isa);
void add(TensorView residual, TensorView x, ThreadPool& pool, Isa isa);
// The cosines and sines of a step's positions, which all its layers ask for: kept for the two sets
// of frequencies that a model may have.
class RotationTables {
 public:
  struct Table {
    std::vector<int64_t> positions;
    std::vector<double> inv_freq;
    double multiplier = 0.0;
    std::vector<float> values;  // [m][2][head_dim / 2]: cosines, sines
  };
  const Table& of(std::span<const int64_t> positions,
                  const RopeFrequencies& frequencies,
                  ThreadPool& pool);

 private:
  std::array<Table, 2> tables_;
  size_t last_ = 0;
};

// Rotates the pairs of x [m, heads, head_dim] in place by positions[row] * inv_freq[i]; cos and sin
// are computed in double, times the multiplier.
void rope(TensorView x,
          std::span<const int64_t> positions,
          const RopeFrequencies& frequencies,
          RotationTables& tables,
          ThreadPool& pool,
          Isa isa);
void rope(TensorView x,
          std::span<const int64_t> positions,
          const RopeFrequencies& frequencies,
          ThreadPool& pool,
          Isa isa);
// out[m, f] = activation(gate, up), gate_up [m, 2f] = gate | up.
void gated_activation(
    Activation activation, TensorView gate_up, TensorView out, ThreadPool& pool, Isa isa);
// The same from two tensors [m, f].
void gated_activation(Activation activation,
                      TensorView gate,
                      TensorView up,
                      TensorView out,
                      ThreadPool& pool,
                      Isa isa);
// x *= factor.
void scale(TensorView x, float factor, ThreadPool& pool, Isa isa);
// x = cap * tanh(x / cap). x F32.
void softcap(TensorView x, float cap, ThreadPool& pool, Isa isa);
bool all_finite(TensorView x, ThreadPool& pool, Isa isa);
// F32 <-> BF16, same number of elements.
void convert(TensorView from, TensorView to, ThreadPool& pool, Isa isa);

// Of each row of x F32 [r, n], n >= 1.
void row_max(TensorView x, std::span<RowMax> out, ThreadPool& pool, Isa isa);

}  // namespace testbed::cpu
