// The loops of ElementwiseKernels over a vector type: included by one .cpp per instruction set,
// which first defines `Lanes` in an anonymous namespace. Everything here has internal linkage:
// nothing may be merged with a copy that was compiled for another instruction set.
//
// Lanes: width; V; load(float*), load(bf16*), store(float*, V), store(bf16*, V) (to nearest even);
// set1, add, sub, mul, div, fma(a, b, c) = a b + c, max(a, b) and min(a, b) (b where one is NaN),
// round, power_of_two(integral V).
#pragma once

#include "kernels/cpu/elementwise_kernels.hpp"
#include "kernels/cpu/lanes_math.hpp"
#include "kernels/cpu/unroll.hpp"

namespace testbed::cpu {
namespace {

// What is left at the end of a row goes through a buffer of one vector; the rest of it is zero.
template <typename T>
struct Tail {
  alignas(64) T values[width] = {};
  Tail() = default;
  Tail(const T* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) values[i] = from[i];
  }
  void copy_to(T* to, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) to[i] = values[i];
  }
};

// Four independent sums hide the latency of the addition.
constexpr int64_t n_sums = 4;

template <typename T, typename Value>
float sum_of_squares(int64_t n, const Value& value) {
  V sums[n_sums];
  TESTBED_UNROLL
  for (int64_t s = 0; s < n_sums; ++s) sums[s] = Lanes::set1(0.0F);
  int64_t i = 0;
  for (; i + n_sums * width <= n; i += n_sums * width) {
    TESTBED_UNROLL
    for (int64_t s = 0; s < n_sums; ++s) {
      const V x = value(i + s * width, width);
      sums[s] = Lanes::fma(x, x, sums[s]);
    }
  }
  for (; i < n; i += width) {
    const V x = value(i, n - i < width ? n - i : width);
    sums[0] = Lanes::fma(x, x, sums[0]);
  }
  return sum_lanes(Lanes::add(Lanes::add(sums[0], sums[1]), Lanes::add(sums[2], sums[3])));
}

template <typename T>
float sum_squares(const T* x, int64_t n) {
  return sum_of_squares<T>(n, [x](int64_t i, int64_t count) {
    return count == width ? Lanes::load(x + i) : Lanes::load(Tail<T>(x + i, count).values);
  });
}

template <typename T>
float add_sum_squares(T* residual, const T* x, int64_t n) {
  return sum_of_squares<T>(n, [residual, x](int64_t i, int64_t count) {
    if (count == width) {
      Lanes::store(residual + i, Lanes::add(Lanes::load(residual + i), Lanes::load(x + i)));
      return Lanes::load(residual + i);
    }
    Tail<T> sum(residual + i, count);
    Lanes::store(sum.values,
                 Lanes::add(Lanes::load(sum.values), Lanes::load(Tail<T>(x + i, count).values)));
    sum.copy_to(residual + i, count);
    return Lanes::load(sum.values);
  });
}

template <typename T>
void scale(const T* x, float factor, const float* weight, T* out, int64_t n) {
  const V f = Lanes::set1(factor);
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    Lanes::store(out + i, Lanes::mul(Lanes::mul(Lanes::load(x + i), f), Lanes::load(weight + i)));
  }
  if (i == n) return;
  Tail<T> tail(x + i, n - i);
  const V w = Lanes::load(Tail<float>(weight + i, n - i).values);
  Lanes::store(tail.values, Lanes::mul(Lanes::mul(Lanes::load(tail.values), f), w));
  tail.copy_to(out + i, n - i);
}

// x = value(x), a vector at a time.
template <typename T, typename Value>
void map_in_place(T* x, int64_t n, const Value& value) {
  int64_t i = 0;
  for (; i + width <= n; i += width) Lanes::store(x + i, value(Lanes::load(x + i)));
  if (i == n) return;
  Tail<T> tail(x + i, n - i);
  Lanes::store(tail.values, value(Lanes::load(tail.values)));
  tail.copy_to(x + i, n - i);
}

template <typename T>
void multiply(T* x, float factor, int64_t n) {
  const V f = Lanes::set1(factor);
  map_in_place(x, n, [f](V v) { return Lanes::mul(v, f); });
}

void softcap(float* x, float cap, int64_t n) {
  const V c = Lanes::set1(cap);
  map_in_place(x, n, [c](V v) { return Lanes::mul(c, hyperbolic_tangent(Lanes::div(v, c))); });
}

template <typename T>
void add_scaled(float* sum, const T* x, float factor, int64_t n) {
  const V f = Lanes::set1(factor);
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    Lanes::store(sum + i, Lanes::fma(f, Lanes::load(x + i), Lanes::load(sum + i)));
  }
  if (i == n) return;
  Tail<float> tail(sum + i, n - i);
  const V last = Lanes::load(Tail<T>(x + i, n - i).values);
  Lanes::store(tail.values, Lanes::fma(f, last, Lanes::load(tail.values)));
  tail.copy_to(sum + i, n - i);
}

template <typename T>
bool finite(const T* x, int64_t n) {
  V zero_or_nan = Lanes::set1(0.0F);
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    zero_or_nan = Lanes::fma(Lanes::load(x + i), Lanes::set1(0.0F), zero_or_nan);
  }
  const V last = Lanes::load(Tail<T>(x + i, n - i).values);
  return sum_lanes(Lanes::fma(last, Lanes::set1(0.0F), zero_or_nan)) == 0.0F;
}

// x sigmoid(-y).
V sigmoid_times(V x, V y) { return Lanes::div(x, Lanes::add(Lanes::set1(1.0F), exponential(y))); }

V silu(V gate, V up) {
  return Lanes::mul(sigmoid_times(gate, Lanes::sub(Lanes::set1(0.0F), gate)), up);
}

// g / 2 (1 + tanh(z)) = g / (1 + exp(-2z)), z = sqrt(2 / pi) (g + 0.044715 g^3).
V gelu_tanh(V gate, V up) {
  constexpr float minus_2_root = -1.5957691216F;
  const V square = Lanes::mul(gate, gate);
  const V inner =
      Lanes::fma(square, Lanes::set1(0.044715F * minus_2_root), Lanes::set1(minus_2_root));
  return Lanes::mul(sigmoid_times(gate, Lanes::mul(gate, inner)), up);
}

// min(a, b) and max(a, b) are b where one is NaN: it passes on.
V clamped_swiglu(V gate, V up) {
  const V g = Lanes::min(Lanes::set1(7.0F), gate);
  const V u = Lanes::min(Lanes::set1(7.0F), Lanes::max(Lanes::set1(-7.0F), up));
  return Lanes::mul(sigmoid_times(g, Lanes::mul(Lanes::set1(-1.702F), g)),
                    Lanes::add(u, Lanes::set1(1.0F)));
}

template <typename T, V (*activation)(V, V)>
void gated(const T* gate, const T* up, T* out, int64_t n) {
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    Lanes::store(out + i, activation(Lanes::load(gate + i), Lanes::load(up + i)));
  }
  if (i == n) return;
  Tail<T> tail(gate + i, n - i);
  const V last = Lanes::load(Tail<T>(up + i, n - i).values);
  Lanes::store(tail.values, activation(Lanes::load(tail.values), last));
  tail.copy_to(out + i, n - i);
}

template <typename T>
void rotate_lanes(T* low, T* high, const float* cosine, const float* sine) {
  const V a = Lanes::load(low);
  const V b = Lanes::load(high);
  const V c = Lanes::load(cosine);
  const V s = Lanes::load(sine);
  Lanes::store(low, Lanes::sub(Lanes::mul(a, c), Lanes::mul(b, s)));
  Lanes::store(high, Lanes::add(Lanes::mul(b, c), Lanes::mul(a, s)));
}

template <typename T>
void rotate(T* low, T* high, const float* cosine, const float* sine, int64_t n) {
  int64_t i = 0;
  for (; i + width <= n; i += width) rotate_lanes(low + i, high + i, cosine + i, sine + i);
  if (i == n) return;
  Tail<T> a(low + i, n - i);
  Tail<T> b(high + i, n - i);
  const Tail<float> c(cosine + i, n - i);
  const Tail<float> s(sine + i, n - i);
  rotate_lanes(a.values, b.values, c.values, s.values);
  a.copy_to(low + i, n - i);
  b.copy_to(high + i, n - i);
}

template <typename From, typename To>
void convert(const From* from, To* to, int64_t n) {
  int64_t i = 0;
  for (; i + width <= n; i += width) Lanes::store(to + i, Lanes::load(from + i));
  if (i == n) return;
  Tail<To> tail;
  Lanes::store(tail.values, Lanes::load(Tail<From>(from + i, n - i).values));
  tail.copy_to(to + i, n - i);
}

// The largest of a stretch, NaN passed over; zero_or_nan takes note of what is not finite.
float largest(const float* x, int64_t n, V& zero_or_nan) {
  V maximum = Lanes::set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    const V v = Lanes::load(x + i);
    maximum = Lanes::max(v, maximum);  // keeps the maximum where v is NaN
    zero_or_nan = Lanes::fma(v, Lanes::set1(0.0F), zero_or_nan);
  }
  alignas(64) float lanes[width];
  Lanes::store(lanes, maximum);
  float value = lanes[0];
  for (const float lane : lanes) value = lane > value ? lane : value;
  for (; i < n; ++i) {
    value = x[i] > value ? x[i] : value;
    zero_or_nan = Lanes::fma(Lanes::set1(x[i]), Lanes::set1(0.0F), zero_or_nan);
  }
  return value;
}

// By stretches, so that the index is looked for in one of them.
RowMax row_max(const float* x, int64_t n) {
  constexpr int64_t stretch = 1024;
  V zero_or_nan = Lanes::set1(0.0F);
  RowMax result{.value = -__builtin_inff(), .index = 0, .finite = true};
  int64_t first = 0;
  for (int64_t begin = 0; begin < n; begin += stretch) {
    const float value = largest(x + begin, n - begin < stretch ? n - begin : stretch, zero_or_nan);
    if (value > result.value) {
      result.value = value;
      first = begin;
    }
  }
  result.finite = sum_lanes(zero_or_nan) == 0.0F;
  for (int64_t j = first; j < n; ++j) {
    if (x[j] == result.value) {
      result.index = static_cast<int32_t>(j);
      break;
    }
  }
  return result;
}

template <typename T>
constexpr ActivationKernels<T> activation_kernels = {
    .sum_squares = sum_squares<T>,
    .add_sum_squares = add_sum_squares<T>,
    .scale = scale<T>,
    .multiply = multiply<T>,
    .add_scaled = add_scaled<T>,
    .finite = finite<T>,
    .gated = {gated<T, silu>, gated<T, gelu_tanh>, gated<T, clamped_swiglu>},
    .rotate = rotate<T>};

constexpr ElementwiseKernels kernels = {.f32 = activation_kernels<float>,
                                        .bf = activation_kernels<bf16>,
                                        .narrow = convert<float, bf16>,
                                        .widen = convert<bf16, float>,
                                        .softcap = softcap,
                                        .row_max = row_max};

}  // namespace
}  // namespace testbed::cpu
