// What the tests of the elementwise ops share: every level of this processor, F32 and BF16 elements
// as double, and the bound of a result.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "tests/unit/isas.hpp"
#include "tests/unit/tolerance.hpp"

namespace testbed::cpu {

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// Runs test(isa, pool) for each instruction set here, with one thread and with three.
inline void everywhere(const std::function<void(Isa, ThreadPool&)>& test) {
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads, false);
    for (const Isa isa : isas_here()) {
      SCOPED_TRACE(std::string(isa_name(isa)) + ", threads " + std::to_string(n_threads));
      test(isa, pool);
    }
  }
}

inline double at(TensorView t, int64_t i) {
  return t.dtype() == DType::F32 ? t.as<float>()[i] : to_f32(t.as<bf16>()[i]);
}
inline void set(TensorView t, int64_t i, double value) {
  if (t.dtype() == DType::F32) {
    t.as<float>()[i] = static_cast<float>(value);
  } else {
    t.as<bf16>()[i] = to_bf16(static_cast<float>(value));
  }
}

inline Tensor random(DType dtype, Shape shape, unsigned seed, double scale = 1.0) {
  Tensor t(dtype, shape);
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, scale);
  for (int64_t i = 0; i < t.n_elements(); ++i) set(t, i, normal(generator));
  return t;
}

inline Tensor copy(TensorView t) {
  Tensor out(t.dtype(), t.shape());
  std::memcpy(out.data(), t.data(), static_cast<size_t>(t.n_bytes()));
  return out;
}

inline bool same_bits(TensorView a, TensorView b) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(a.n_bytes())) == 0;
}

// n roundings in a row, each relative to the result so far, are at most n u / (1 - n u) of it
// (Higham 2002, lemma 3.1).
inline double roundings(double n) {
  const double nu = n * tolerance::f32_rounding;
  return nu / (1 - nu);
}

// The element was computed in f32 to within error, then stored; subnormals of either type are
// rounded to a multiple of the smallest.
inline void expect_near(TensorView got, int64_t i, double expected, double error) {
  const double stored = tolerance::store(got.dtype(), std::abs(expected) + error);
  const double smallest = got.dtype() == DType::F32 ? 0x1p-149 : 0x1p-133;
  EXPECT_NEAR(at(got, i), expected, error + stored + smallest) << "element " << i;
}

inline const std::vector<DType> dtypes = {DType::F32, DType::BF16};
inline const std::vector<int64_t> widths = {1, 2, 15, 16, 17, 64, 80, 127, 576, 4096};

}  // namespace testbed::cpu
