#include "kernels/probes/cuda/tensor_cores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "kernels/base/errors.hpp"
#include "kernels/probes/cuda/library_product.hpp"
#include "kernels/probes/cuda/operands.hpp"
#include "kernels/probes/cuda/probe_support.hpp"

namespace testbed::cuda {
namespace {

DType plain_dtype(MathType type) { return type == MathType::bf16 ? DType::BF16 : DType::F32; }

// Values of y by type: f16 and bf16 as they are, f32 and int32.
double value_at(MathType type, const std::vector<uint8_t>& y, int64_t i) {
  const auto get = [&]<typename T>(T value) {
    std::memcpy(&value, y.data() + static_cast<size_t>(i) * sizeof value, sizeof value);
    return value;
  };
  switch (type) {
    case MathType::f16:
      return to_f32(get(f16{}));
    case MathType::bf16:
    case MathType::fp8:
      return to_f32(get(bf16{}));
    case MathType::int8:
      return get(int32_t{});
    default:
      return get(float{});
  }
}

int64_t result_bytes(MathType type) {
  return type == MathType::f16 || type == MathType::bf16 || type == MathType::fp8 ? 2 : 4;
}

// y [n, n] = x x^T. Throws DeviceError for a y that is not that. Every one of the n additions is
// off by 2^-13 of the largest partial sum or less (24 bits in f32; Hopper's fp8 unit keeps 13 or
// more of the largest term); off the diagonal partial sums stay below 4 sqrt(n) 0.58, and errors of
// random sign add up as sqrt(n): 2^-11 of sum |x w| = 0.56 n. Then y is rounded to 8 bits or more.
void check_products(MathType type, const std::vector<uint8_t>& y, int64_t n) {
  constexpr int64_t n_checked = 16;
  for (int64_t c = 0; c < n_checked; ++c) {
    const int64_t row = c * 7919 % n;
    const int64_t column = (c * 104730 + 1 + row) % n;  // n is even: not row
    double sum = 0.0;
    double magnitude = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const double term = operand_value(type, row * n + i) * operand_value(type, column * n + i);
      sum += term;
      magnitude += std::abs(term);
    }
    const double got = value_at(type, y, row * n + column);
    const double bound =
        type == MathType::int8 ? 0.0 : 0x1p-11 * magnitude + 0x1p-8 * std::abs(sum);
    if (!(std::abs(got - sum) <= bound)) {
      throw DeviceError(fmt::format(
          "probe of tensor cores: {} product is {}, not {}", math_name(type), got, sum));
    }
  }
}

// Multiplies; empty where the device or the library does not have the type.
using Multiply = std::function<void()>;

Multiply gemm_product(Gemm& gemm, MathType type, int64_t n, const Tensor& x, const Tensor& y) {
  const DType dtype = plain_dtype(type);
  const TensorView operand(x.data(), dtype, {n, n});
  const TensorView result(y.data(), dtype, {n, n});
  return [&gemm, operand, result] { gemm.linear(operand, operand, {}, result); };
}

Multiply fp8_product(Gemm& gemm, int64_t n, const Tensor& x, const Tensor& y, const Tensor& scale) {
  const Gemm::Fp8Matrix operand{
      .data = x.data(), .n_rows = n, .n_cols = n, .scale = scale.as<float>()};
  const TensorView result(y.data(), DType::BF16, {n, n});
  try {
    gemm.linear_fp8(operand, operand, result);
  } catch (const ConfigError&) {
    return {};  // not on this device
  }
  return [&gemm, operand, result] { gemm.linear_fp8(operand, operand, result); };
}

Multiply library_product(Queue& queue, MathType type, int64_t n, const Tensor& x, const Tensor& y) {
  const std::shared_ptr<LibraryProduct> product = LibraryProduct::find(queue, type, n, n, n);
  if (product == nullptr) return {};
  return [product, &x, &y] { product->multiply(x.data(), x.data(), y.data()); };
}

std::optional<MathRate> measure_type(
    Queue& queue, Gemm& gemm, MathType type, int64_t n, const Effort& effort) {
  const Tensor x = device_tensor(DType::I32, {n * n * operand_bits(type).element_bytes / 4});
  const Tensor y = device_tensor(DType::I32, {n * n * result_bytes(type) / 4});
  const Tensor scale = device_tensor(DType::F32, {1});
  const float one = 1.0F;
  copy_to_device(queue, &one, scale);
  fill_operand(queue, type, x);
  Multiply multiply;
  if (type == MathType::f32 || type == MathType::bf16) {
    multiply = gemm_product(gemm, type, n, x, y);
  } else if (type == MathType::fp8) {
    multiply = fp8_product(gemm, n, x, y, scale);
  } else {
    multiply = library_product(queue, type, n, x, y);
  }
  if (!multiply) return std::nullopt;
  const double seconds = Stopwatch(queue).median_seconds(multiply, effort);
  check_products(type, values_of<uint8_t>(queue, y), n);
  const auto side = static_cast<double>(n);
  return MathRate{.type = type, .by_library = true, .flops = 2.0 * side * side * side / seconds};
}

}  // namespace

std::vector<MathRate> measure_tensor_cores(Queue& queue,
                                           Gemm& gemm,
                                           int64_t n,
                                           const Effort& effort) {
  CHECK(n > 0 && n % 16 == 0);
  std::vector<MathRate> rates;
  for (const MathType type : {MathType::f32,
                              MathType::tf32,
                              MathType::f16,
                              MathType::bf16,
                              MathType::fp8,
                              MathType::int8}) {
    const auto rate = measure_type(queue, gemm, type, n, effort);
    if (rate) rates.push_back(*rate);
  }
  return rates;
}

std::vector<LibraryGemm> measure_gemm(Queue& queue,
                                      Gemm& gemm,
                                      std::span<const GemmShape> shapes,
                                      int64_t rotated_bytes,
                                      const Effort& effort) {
  Stopwatch stopwatch(queue);
  std::vector<LibraryGemm> measured;
  measured.reserve(shapes.size());
  for (const GemmShape& s : shapes) {
    const int64_t n_matrices =
        std::max<int64_t>(2, rotated_bytes / dtype_bytes(DType::BF16, s.n * s.k));
    const Tensor weights = device_tensor(DType::BF16, {n_matrices, s.n * s.k});
    const Tensor x = device_tensor(DType::BF16, {s.m, s.k});
    const Tensor y = device_tensor(DType::BF16, {s.m, s.n});
    fill_operand(queue, MathType::bf16, weights);
    fill_operand(queue, MathType::bf16, x);
    int64_t next = 0;
    const auto multiply = [&] {
      const TensorView w = weights.view().rows(next++ % n_matrices, 1).reshaped({s.n, s.k});
      gemm.linear(x, w, {}, y);
    };
    measured.push_back({.type = MathType::bf16,
                        .m = s.m,
                        .n = s.n,
                        .k = s.k,
                        .seconds = stopwatch.median_seconds(multiply, effort)});
  }
  return measured;
}

}  // namespace testbed::cuda
