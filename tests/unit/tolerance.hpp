// How far a kernel's result may lie from the same sum in double.
//
// f32 dot product of length k, any order of summation: each product and each partial sum is rounded
// once, by at most 2^-24 of its own size. The roundings are independent and of random sign, so they
// add like a random walk of k steps: the deviation is at most 2^-24 sqrt(k) |a| |b|, as no partial
// sum exceeds |a| |b|. Six deviations leave no chance failure.
//
// A store to nearest in a format of p significant bits (f32 24, bf16 8) adds at most 2^-p of the
// value: half of the last bit, which is worth 2^(1-p) of the leading one.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace testbed::tolerance {

constexpr double f32_rounding = 0x1p-24;
constexpr double bf16_rounding = 0x1p-8;

inline double f32_dot(int64_t k, double norm_a, double norm_b) {
  return 6 * f32_rounding * std::sqrt(static_cast<double>(k)) * norm_a * norm_b;
}

// One rounding at the store.
inline double store(DType dtype, double value) {
  return (dtype == DType::BF16 ? bf16_rounding : f32_rounding) * std::abs(value);
}

// Attention's output: a mean of |v| <= largest_v weighted by softmax(s), s a dot product of length
// head_dim. An error e in the scores moves each weight by a factor within exp(2 e), hence the mean
// by 2 e largest_v at most; exp itself (4 units), the sums over n_keys weights, the rescalings of
// the running maximum and the division add roundings of the mean.
inline double attention(int64_t head_dim,
                        double score_norms,  // scale |q| |k|
                        int64_t n_keys,
                        double largest_v) {
  const double scores = f32_dot(head_dim, score_norms, 1.0);
  const double sums = 6 * f32_rounding * (4 + std::sqrt(static_cast<double>(n_keys)));
  return (2 * scores + 2 * sums) * largest_v;
}

}  // namespace testbed::tolerance
