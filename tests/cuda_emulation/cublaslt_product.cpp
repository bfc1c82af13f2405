#include "tests/cuda_emulation/cublaslt_product.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace emulation::blas {

namespace {

// OCP 8-bit floating point specification: exponent of 4 bits with bias 7, mantissa of 3, no
// infinity, all ones is NaN.
float e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  float value = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 8),
                           (exponent == 0 ? 1 : exponent) - 10);
  if ((bits & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x80) != 0 ? -value : value;
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (size_t i = 0; i < all.size(); ++i) all[i] = e4m3(static_cast<uint8_t>(i));
    return all;
  }();
  return values;
}

// n elements from `at` on, as f32.
void widen(const void* matrix, cudaDataType_t type, int64_t at, int64_t n, float* to) {
  const auto* f32 = static_cast<const float*>(matrix) + at;
  const auto* bf16 = static_cast<const testbed::bf16*>(matrix) + at;
  const auto* fp8 = static_cast<const uint8_t*>(matrix) + at;
  const auto& values = e4m3_values();
  for (int64_t i = 0; i < n; ++i) {
    to[i] = type == CUDA_R_32F    ? f32[i]
            : type == CUDA_R_16BF ? testbed::to_f32(bf16[i])
                                  : values[fp8[i]];
  }
}

float dot(const float* a, const float* b, int64_t k) {
  constexpr int64_t n_lanes = 16;
  std::array<float, n_lanes> sums{};
  int64_t at = 0;
  for (; at + n_lanes <= k; at += n_lanes) {
    for (int64_t i = 0; i < n_lanes; ++i) sums[static_cast<size_t>(i)] += a[at + i] * b[at + i];
  }
  for (; at < k; ++at) sums[static_cast<size_t>(at % n_lanes)] += a[at] * b[at];
  float sum = 0.0F;
  for (const float x : sums) sum += x;
  return sum;
}

}  // namespace

int64_t element_bytes(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_8F_E4M3:
      return 1;
    default:
      return 0;
  }
}

void multiply(const Product& p) {
  const float scale =
      (p.scale_a == nullptr ? 1.0F : *p.scale_a) * (p.scale_b == nullptr ? 1.0F : *p.scale_b);
  std::vector<float> b(static_cast<size_t>(p.n * p.k));
  for (int64_t j = 0; j < p.n; ++j) widen(p.b, p.operands, j * p.ldb, p.k, b.data() + j * p.k);
  std::vector<float> a(static_cast<size_t>(p.k));
  for (int64_t i = 0; i < p.m; ++i) {
    widen(p.a, p.operands, i * p.lda, p.k, a.data());
    for (int64_t j = 0; j < p.n; ++j) {
      const float sum = scale * dot(a.data(), b.data() + j * p.k, p.k);
      const int64_t at = j * p.ldd + i;
      if (p.result == CUDA_R_32F) {
        static_cast<float*>(p.d)[at] = sum;
      } else {
        static_cast<testbed::bf16*>(p.d)[at] = testbed::to_bf16(sum);
      }
    }
  }
}

}  // namespace emulation::blas
