// Two f16, emulated: every result is rounded to f16 (nearest, ties to even) from double, in which a
// multiply-add of f16 is exact. For values from 2^-14 to 65504.
#pragma once

#include <cmath>

namespace testbed::cuda {

struct Half2 {
  float low;
  float high;
};

inline float to_half(double x) {
  constexpr int significant_bits = 11;
  if (x == 0.0) return 0.0F;
  int exponent = 0;
  const double scaled = std::ldexp(std::frexp(x, &exponent), significant_bits);
  return static_cast<float>(std::ldexp(std::nearbyint(scaled), exponent - significant_bits));
}
inline Half2 half2_of(float x) { return {to_half(x), to_half(x)}; }
inline Half2 fma_half2(Half2 a, Half2 b, Half2 c) {
  return {to_half(static_cast<double>(a.low) * b.low + c.low),
          to_half(static_cast<double>(a.high) * b.high + c.high)};
}
inline float low_float(Half2 x) { return x.low; }
inline float high_float(Half2 x) { return x.high; }

}  // namespace testbed::cuda
