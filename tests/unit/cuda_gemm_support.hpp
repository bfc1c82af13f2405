// What the tests of Gemm share: products held against sums in double, and operands.
#pragma once

#include "kernels/cuda/gemm.hpp"
#include "tests/unit/cuda_linear_support.hpp"

namespace testbed::cuda {

struct Sizes {
  int64_t m, n, k;
};

inline void check_linear(
    Gemm& gemm, Queue& queue, const Sizes& s, DType dtype, DType y_dtype, bool biased) {
  SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k << " " << dtype_name(dtype)
                                  << " to " << dtype_name(y_dtype));
  const Tensor x = random(dtype, {s.m, s.k}, 1);
  const Tensor w = random(dtype, {s.n, s.k}, 2);
  const Tensor bias = random(DType::F32, {s.n}, 3);
  const Tensor device_x = to_device(x);
  const Tensor device_w = to_device(w);
  const Tensor device_bias = to_device(bias);
  const Tensor device_y = unwritten(y_dtype, {s.m, s.n});
  gemm.linear(device_x, device_w, biased ? device_bias.view() : TensorView(), device_y);
  const Tensor y = to_host(queue, device_y);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      expect_dot(dot(x, i * s.k, w, j * s.k, s.k),
                 biased ? at(bias, j) : 0.0,
                 biased ? BiasIsAdded::after_it : BiasIsAdded::before_the_store,
                 y,
                 i * s.n + j);
    }
  }
}

struct Operands {
  Tensor x, w, y;
  Operands(int64_t m, int64_t n, int64_t k)
      : x(to_device(random(DType::BF16, {m, k}, 1))),
        w(to_device(random(DType::BF16, {n, k}, 2))),
        y(unwritten(DType::BF16, {m, n})) {}
};

// Bits of e4m3 numbers, and their values: (-1)^s 2^(e - 7) (1 + f / 8), subnormal 2^-6 f / 8.
struct Fp8Values {
  std::vector<uint32_t> bits;  // four numbers in each
  std::vector<double> values;
  Fp8Values(int64_t n, unsigned seed) : bits(static_cast<size_t>(n / 4)) {
    std::mt19937 generator(seed);
    values.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      uint32_t b = generator() & 0xffU;
      if ((b & 0x7fU) == 0x7fU) b ^= 1U;  // NaN
      const auto e = static_cast<int>(b >> 3 & 15U);
      const double f = (b & 7U) / 8.0;
      const double size = e == 0 ? std::ldexp(f, -6) : std::ldexp(1 + f, e - 7);
      values.push_back((b & 0x80U) != 0 ? -size : size);
      bits[static_cast<size_t>(i / 4)] |= b << (8 * (i % 4));
    }
  }
};

}  // namespace testbed::cuda
