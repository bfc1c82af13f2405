// Norms and rotary positions on the device against the CPU's readable loops.
#include <gtest/gtest.h>

#include "kernels/cpu/elementwise.hpp"
#include "tests/unit/cuda_rows_support.hpp"

namespace testbed::cuda {
namespace {

// One of each: a warp per row, one to four pieces per thread, wider than registers.
const std::vector<int64_t> widths = {1, 7, 64, 128, 200, 576, 1024, 3000, 4096, 5120, 33000};

// A thread adds at most d / 256 + 8 squares, then ten shuffles; the root halves that. Five more as
// in the reference (cpu_elementwise_test.cpp), whose own chains are of d / 4 + 12.
double norm_bound(int64_t d) {
  const auto n = static_cast<double>(d);
  return roundings((n / 256 + 18) / 2 + 5) + roundings(n / 8 + 12);
}

void expect_norm(TensorView got, TensorView want) {
  const double bound = norm_bound(got.shape()[-1]);
  for (int64_t i = 0; i < got.n_elements(); ++i) {
    expect_close(got, want, i, std::abs(at(want, i)) * bound);
  }
}

TEST(CudaRowsNorm, rms_norm) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    for (const int64_t d : widths) {
      const Tensor x = random(dtype, {5, d}, 1, 3.0);
      const Tensor weight = random(DType::F32, {d}, 2);
      Tensor want(dtype, {5, d});
      cpu::rms_norm(x, weight, 1e-5F, want, pool(), portable);
      const OnDevice on_device(x, shift);
      const OnDevice device_weight(weight, shift);
      const OnDevice out(random(dtype, {5, d}, 3), shift);
      rms_norm(queue, on_device, device_weight, 1e-5F, out);
      const Tensor got = out.download(queue);
      expect_norm(got, want);
      EXPECT_TRUE(same_bits(on_device.download(queue), x));
      rms_norm(queue, on_device, device_weight, 1e-5F, on_device);
      EXPECT_TRUE(same_bits(on_device.download(queue), got));
    }
  });
}

TEST(CudaRowsNorm, add_rms_norm_is_the_norm_of_the_rounded_sum) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    for (const int64_t d : widths) {
      const Tensor residual = random(dtype, {5, d}, 1, 3.0);
      const Tensor x = random(dtype, {5, d}, 2);
      const Tensor weight = random(DType::F32, {d}, 3);
      const OnDevice device_residual(residual, shift);
      const OnDevice on_device(x, shift);
      const OnDevice device_weight(weight, shift);
      const OnDevice out(random(dtype, {5, d}, 4), shift);
      add_rms_norm(queue, device_residual, on_device, device_weight, 1e-6F, out);
      Tensor want(dtype, {5, d});
      cpu::add_rms_norm(residual, x, weight, 1e-6F, want, pool(), portable);
      EXPECT_TRUE(same_bits(device_residual.download(queue), residual));
      const Tensor got = out.download(queue);
      expect_norm(got, want);
      rms_norm(queue, device_residual, device_weight, 1e-6F, out);
      EXPECT_TRUE(same_bits(out.download(queue), got));
    }
  });
}

TEST(CudaRowsNorm, head_norm_in_place_with_and_without_weight) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    for (const int64_t d : {1, 3, 64, 80, 128, 256, 512}) {
      for (const bool weighted : {true, false}) {
        const Tensor x = random(dtype, {3, 7, d}, 1, 3.0);
        const Tensor weight = random(DType::F32, {d}, 2);
        if (!weighted) std::fill_n(weight.as<float>(), d, 1.0F);
        const OnDevice on_device(x, shift);
        const OnDevice device_weight(weight, shift);
        head_norm(queue, on_device, weighted ? device_weight.view() : TensorView(), 1e-6F);
        const TensorView heads = x.view().reshaped({21, d});
        cpu::rms_norm(heads, weight, 1e-6F, heads, pool(), portable);
        expect_norm(on_device.download(queue).view().reshaped({21, d}), heads);
      }
    }
  });
}

TEST(CudaRowsNorm, D22_squares_that_overflow_give_nan_not_zero) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    const Tensor x = random(dtype, {2, 64}, 1);
    set(x, 5, 1e25);
    const OnDevice on_device(x, shift);
    head_norm(queue, TensorView(on_device).reshaped({2, 1, 64}), {}, 1e-5F);
    const Tensor got = on_device.download(queue);
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_TRUE(std::isnan(at(got, i)));
      EXPECT_TRUE(std::isfinite(at(got, 64 + i)));
    }
  });
}

// cos, sin, products and sum are rounded once each, on either side.
TEST(CudaRowsNorm, rope_rotates_halves_and_interleaved_pairs) {
  Queue queue;
  const std::vector<int64_t> positions = {0, 1, 4095, 1'000'003, 1, 131'071};
  const auto m = static_cast<int64_t>(positions.size());
  for_layouts([&](DType dtype, int64_t shift) {
    for (const bool interleaved : {false, true}) {
      for (const int64_t head_dim : {2, 6, 16, 64, 80, 128, 256}) {
        const int64_t n_heads = head_dim == 128 ? 40 : 3;
        std::vector<double> inv_freq(static_cast<size_t>(head_dim / 2));
        for (size_t i = 0; i < inv_freq.size(); ++i) {
          const auto exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
          inv_freq[i] = std::pow(1e4, exponent);
        }
        const Tensor x = random(dtype, {m, n_heads, head_dim}, 1);
        const Tensor before = cpu::copy(x);
        const OnDevice on_device(x, shift);
        rope(queue, on_device, positions, {inv_freq, 1.25, interleaved});
        cpu::rope(x, positions, {inv_freq, 1.25, interleaved}, pool(), portable);
        const Tensor got = on_device.download(queue);
        const int64_t half = head_dim / 2;
        for (int64_t i = 0; i < x.n_elements(); ++i) {
          const int64_t d = i % head_dim;
          const int64_t other = interleaved ? i ^ 1 : d < half ? i + half : i - half;
          const double size = 1.25 * (std::abs(at(before, i)) + std::abs(at(before, other)));
          expect_close(got, x, i, size * 2 * roundings(3));
        }
      }
    }
  });
}

}  // namespace
}  // namespace testbed::cuda
