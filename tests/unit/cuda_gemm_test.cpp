// Gemm against sums in double. What it asks of the library: cuda_gemm_library_test.cpp.
#include "tests/unit/cuda_gemm_support.hpp"

namespace testbed::cuda {
namespace {

const std::vector<Sizes> sizes = {{1, 64, 64}, {3, 5, 7}, {16, 96, 32}, {33, 17, 130}};

TEST(CudaGemm, products_are_sums_in_f32) {
  Queue queue;
  Gemm gemm(queue);
  for (const Sizes& s : sizes) {
    for (const bool biased : {false, true}) {
      check_linear(gemm, queue, s, DType::BF16, DType::BF16, biased);
      check_linear(gemm, queue, s, DType::BF16, DType::F32, biased);
      check_linear(gemm, queue, s, DType::F32, DType::F32, biased);
    }
  }
}

TEST(CudaGemm, no_rows_are_no_work) {
  Queue queue;
  Gemm gemm(queue);
  const Tensor w = to_device(random(DType::BF16, {8, 16}, 1));
  const Tensor bias = to_device(random(DType::F32, {8}, 1));
  gemm.linear(Tensor(DType::BF16, {0, 16}), w, bias, Tensor(DType::BF16, {0, 8}));
  EXPECT_EQ(queue.n_calls(), 0);
}

TEST(CudaGemm, a_section_replays_as_a_graph) {
  Queue queue;
  Gemm gemm(queue);
  const Operands o(4, 8, 16);
  const Tensor once = [&] {
    gemm.linear(o.x, o.w, {}, o.y);
    return to_host(queue, o.y);
  }();
  for (int i = 0; i < 4; ++i) {
    check(cudaMemsetAsync(o.y.data(), 0xff, static_cast<size_t>(o.y.n_bytes()), queue.stream()),
          "cudaMemsetAsync");
    queue.section(1, [&] { gemm.linear(o.x, o.w, {}, o.y); });
    EXPECT_TRUE(cpu::same_bits(to_host(queue, o.y), once));
  }
  EXPECT_EQ(queue.stats().captures, 1);
  EXPECT_EQ(queue.stats().recaptures, 0);
}

void check_fp8(DType y_dtype) {
  constexpr int64_t m = 5;
  constexpr int64_t n = 16;
  constexpr int64_t k = 48;
  Queue queue;
  Gemm gemm(queue);
  const Fp8Values x(m * k, 1);
  const Fp8Values w(n * k, 2);
  const Tensor x_bits = device_array(x.bits);
  const Tensor w_bits = device_array(w.bits);
  const Tensor y_device = unwritten(y_dtype, {m, n});
  // The scales are the call's, not the plan's.
  for (const float x_scale : {0.5F, 0.375F}) {
    constexpr float w_scale = 0.01F;
    const Tensor scales = device_array<float>({x_scale, w_scale});
    const auto* scale = static_cast<const float*>(scales.data());
    gemm.linear_fp8({x_bits.data(), m, k, scale}, {w_bits.data(), n, k, scale + 1}, y_device);
    const Tensor y = to_host(queue, y_device);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        DotSum d{.k = k};
        for (int64_t l = 0; l < k; ++l) {
          const double a = x.values[static_cast<size_t>(i * k + l)] * x_scale;
          const double b = w.values[static_cast<size_t>(j * k + l)] * w_scale;
          d.sum += a * b;
          d.x2 += a * a;
          d.w2 += b * b;
        }
        // Two more roundings, of the scales' product and of the sum by it.
        const double error = tolerance::f32_dot(k, std::sqrt(d.x2), std::sqrt(d.w2)) +
                             cpu::roundings(2) * std::abs(d.sum);
        cpu::expect_near(y, i * n + j, d.sum, error);
      }
    }
  }
}

TEST(CudaGemm, fp8_products_are_scaled_sums) {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  if (10 * device.major + device.minor < 89) GTEST_SKIP() << "this device has no fp8";
  check_fp8(DType::F32);
  check_fp8(DType::BF16);
}

}  // namespace
}  // namespace testbed::cuda
