// What the tests of quantised weights on the CUDA device share: matrices of each format with every
// kind of code, scale and offset, on the device and as dequantise() reads them.
#pragma once

#include <memory>
#include <string>

#include "kernels/base/float16.hpp"
#include "kernels/cuda/cuda_device.hpp"
#include "tests/unit/cuda_linear_support.hpp"

namespace testbed::cuda {

inline QuantisedTensor random_quantised(const WeightFormat& format,
                                        int64_t n_rows,
                                        int64_t n_cols,
                                        unsigned seed) {
  QuantisedTensor q(format, n_rows, n_cols);
  std::mt19937 generator(seed);
  const auto below = [&](int n) {
    return static_cast<int>(generator() % static_cast<unsigned>(n));
  };
  for (int64_t i = 0; i < q.codes.n_elements(); ++i) {
    int code = format.coding == WeightCoding::int4 ? below(16) : below(256) - 128;
    // Not NaN.
    if (format.coding == WeightCoding::fp8 && (code & 0x7f) == 0x7f) code ^= 1;
    q.codes.view().as<int8_t>()[i] = static_cast<int8_t>(code);
  }
  std::uniform_real_distribution<float> size(0.5F, 2.0F);
  for (int64_t i = 0; i < q.scales.n_elements(); ++i) {
    const float scale = size(generator) / (format.coding == WeightCoding::int4 ? 8.0F : 128.0F);
    if (format.scale_dtype == DType::F32) {
      q.scales.view().as<float>()[i] = scale;
    } else {
      q.scales.view().as<f16>()[i] = to_f16(scale);
    }
  }
  for (int64_t i = 0; i < q.offsets.n_elements(); ++i) {
    if (format.offset == WeightOffset::zero_point) {
      q.offsets.view().as<int8_t>()[i] = static_cast<int8_t>(below(16));
    } else {
      q.offsets.view().as<f16>()[i] = to_f16(-size(generator));
    }
  }
  return q;
}

struct QuantisedCase {
  QuantisedTensor stored;
  Tensor values;      // F32 [n, k]
  Tensor magnitudes;  // of what is added up for a weight: with minima more than the weight's
  WeightMatrix on_device;

  QuantisedCase(
      Device& device, const WeightFormat& format, int64_t n_rows, int64_t n_cols, unsigned seed = 1)
      : stored(random_quantised(format, n_rows, n_cols, seed)),
        values(DType::F32, {n_rows, n_cols}),
        magnitudes(DType::F32, {n_rows, n_cols}),
        on_device(device.allocate_weight(n_rows, n_cols, format)) {
    dequantise(stored, values);
    for (int64_t i = 0; i < values.n_elements(); ++i) {
      float size = std::abs(values.view().as<float>()[i]);
      if (format.offset == WeightOffset::minimum) {
        const int64_t n_groups = format.n_groups(n_cols);
        const int64_t at = i / n_cols * n_groups + i % n_cols / format.group_cols;
        size += 2 * std::abs(to_f32(stored.offsets.view().as<f16>()[at]));
      }
      magnitudes.view().as<float>()[i] = size;
    }
    // Pieces begin and end within strips.
    constexpr int64_t piece = 21;
    for (int64_t row = 0; row < n_rows; row += piece) {
      device.store_rows(on_device, row, stored.view().rows(row, std::min(piece, n_rows - row)));
    }
  }
};

// One element of y = x w^T + bias. Exact weights: a sum in f32 of k products, of a group's scaled
// sums and of the bias; a minimum's product is a term of its own. Rounded ones: each weight by half
// a unit of bf16 more, and the bias is added to a stored product.
enum class Weights : uint8_t { exact, rounded };
inline void expect_product(TensorView x,
                           const QuantisedCase& w,
                           TensorView bias,
                           Weights weights,
                           TensorView y,
                           int64_t x_row,
                           int64_t col) {
  const int64_t k = w.values.shape()[1];
  const int64_t n = w.values.shape()[0];
  DotSum d = dot(x, x_row * k, w.values, col * k, k);
  const DotSum sizes = dot(x, x_row * k, w.magnitudes, col * k, k);
  d.w2 = sizes.w2;
  d.k += 1 + w.stored.scales.shape()[1];
  const double of_bias = bias.empty() ? 0.0 : at(bias, col);
  double error =
      tolerance::f32_dot(d.k + 1, std::sqrt(d.x2 + of_bias * of_bias), std::sqrt(d.w2 + 1));
  if (weights == Weights::rounded) {
    for (int64_t i = 0; i < k; ++i) {
      error +=
          tolerance::bf16_rounding * std::abs(at(x, x_row * k + i) * at(w.values, col * k + i));
    }
    if (!bias.empty()) error += tolerance::store(y.dtype(), std::abs(d.sum) + error);
  }
  cpu::expect_near(y, x_row * n + col, d.sum + of_bias, error);
}

class CudaQuantised : public testing::Test {
 protected:
  std::shared_ptr<CudaStreams> streams_ = std::make_shared<CudaStreams>();
  CudaDevice device_{streams_, DType::BF16, "tested"};
  Queue& queue_ = device_.queue();
};

}  // namespace testbed::cuda
