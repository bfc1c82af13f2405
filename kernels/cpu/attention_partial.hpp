// The running state of an online softmax over a block of query rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/elementwise_kernels.hpp"

namespace testbed::cpu {

struct Partial {
  float* maximum = nullptr;  // [n_rows] of the scores, -inf without a visible key
  float* sum = nullptr;      // [n_rows] of exp(score - maximum)
  float* out = nullptr;      // [n_rows, padded_v_dim] unnormalised
};

// A multiple of 64 bytes; padded_v_dim is one of 16 floats.
constexpr int64_t partial_floats(int64_t n_rows, int64_t padded_v_dim) {
  return n_rows * padded_v_dim + (2 * n_rows + 15) / 16 * 16;
}

inline Partial partial_at(float* data, int64_t n_rows, int64_t padded_v_dim) {
  float* maximum = data + n_rows * padded_v_dim;
  return {maximum, maximum + n_rows, data};
}

inline void reset(const Partial& total, int64_t n_rows, int64_t padded_v_dim) {
  std::fill_n(total.maximum, n_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(total.sum, n_rows, 0.0F);
  std::fill_n(total.out, n_rows * padded_v_dim, 0.0F);
}

inline void merge(const Partial& part,
                  int64_t n_rows,
                  int64_t padded_v_dim,
                  const ActivationKernels<float>& kernels,
                  const Partial& total) {
  for (int64_t row = 0; row < n_rows; ++row) {
    if (part.sum[row] == 0.0F) continue;  // no visible key
    const float* from = part.out + row * padded_v_dim;
    float* to = total.out + row * padded_v_dim;
    if (total.sum[row] == 0.0F) {
      total.maximum[row] = part.maximum[row];
      total.sum[row] = part.sum[row];
      std::copy_n(from, padded_v_dim, to);
      continue;
    }
    const float maximum = std::max(total.maximum[row], part.maximum[row]);
    const float keep = std::exp(total.maximum[row] - maximum);
    const float add = std::exp(part.maximum[row] - maximum);
    total.maximum[row] = maximum;
    total.sum[row] = total.sum[row] * keep + part.sum[row] * add;
    kernels.multiply(to, keep, padded_v_dim);
    kernels.add_scaled(to, from, add, padded_v_dim);
  }
}

}  // namespace testbed::cpu
