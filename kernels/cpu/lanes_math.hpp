// Functions of a vector, over the Lanes that the including file has defined before.
#pragma once

#include <cstdint>

#include "kernels/cpu/unroll.hpp"

namespace testbed::cpu {
namespace {

using V = Lanes::V;
constexpr int64_t width = Lanes::width;

inline float sum_lanes(V v) {
  alignas(64) float lanes[width];
  Lanes::store(lanes, v);
  for (int64_t half = width / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// exp(x) = 2^k exp(r), k = round(x / ln 2), |r| <= ln(2) / 2: the Taylor polynomial of degree 7
// leaves out less than 0.35^8 / 8! = 6e-9 of it. ln 2 is taken off in two parts, the first exact in
// 12 bits so that k times it is. Below -87 and above 88 the ends of the range; NaN stays NaN.
struct ExponentialParts {
  V r;
  V slope;  // (exp(r) - 1) / r
  V power;  // 2^k
};
inline ExponentialParts exponential_parts(V x) {
  x = Lanes::min(Lanes::set1(88.0F), Lanes::max(Lanes::set1(-87.0F), x));
  const V k = Lanes::round(Lanes::mul(x, Lanes::set1(1.44269504F)));
  V r = Lanes::fma(k, Lanes::set1(-0.693359375F), x);
  r = Lanes::fma(k, Lanes::set1(2.12194440e-4F), r);
  constexpr float coefficients[] = {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F};
  V sum = Lanes::set1(1.0F / 5040);
  TESTBED_UNROLL
  for (int i = 0; i < 6; ++i) sum = Lanes::fma(sum, r, Lanes::set1(coefficients[i]));
  return {.r = r, .slope = sum, .power = Lanes::power_of_two(k)};
}

inline V exponential(V x) {
  const ExponentialParts e = exponential_parts(x);
  return Lanes::mul(Lanes::fma(e.slope, e.r, Lanes::set1(1.0F)), e.power);
}

// tanh(x) = m / (m + 2), m = exp(2x) - 1 = 2^k (exp(r) - 1) + (2^k - 1): nothing cancels, so that
// small x keep their relative accuracy.
inline V hyperbolic_tangent(V x) {
  const ExponentialParts e = exponential_parts(Lanes::add(x, x));
  const V rest = Lanes::mul(e.slope, e.r);
  const V m = Lanes::fma(e.power, rest, Lanes::sub(e.power, Lanes::set1(1.0F)));
  return Lanes::div(m, Lanes::add(m, Lanes::set1(2.0F)));
}

}  // namespace
}  // namespace testbed::cpu
