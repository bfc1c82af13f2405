// Ops on elements and reductions on the device against the CPU's readable loops.
#include <gtest/gtest.h>

#include "kernels/cpu/elementwise.hpp"
#include "tests/unit/cuda_rows_support.hpp"

namespace testbed::cuda {
namespace {

const std::vector<int64_t> widths = {1, 7, 8, 33, 1536, 5001};

TEST(CudaRowsElementwise, add_scale_and_convert_round_once) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    for (const int64_t n : widths) {
      const Tensor x = random(dtype, {3, n}, 1);
      const Tensor y = random(dtype, {3, n}, 2);
      const OnDevice device_x(x, shift);
      const OnDevice device_y(y, shift);
      add(queue, device_x, device_y);
      scale(queue, device_x, 1.7F);
      cpu::add(x, y, pool(), portable);
      cpu::scale(x, 1.7F, pool(), portable);
      EXPECT_TRUE(same_bits(device_x.download(queue), x));
      Tensor converted(dtype == DType::F32 ? DType::BF16 : DType::F32, {3, n});
      const OnDevice out(converted, shift);
      convert(queue, device_x, out);
      cpu::convert(x, converted, pool(), portable);
      EXPECT_TRUE(same_bits(out.download(queue), converted));
    }
  });
}

TEST(CudaRowsElementwise, add_bias_to_every_row) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    for (const int64_t n : widths) {
      const Tensor y = random(dtype, {3, n}, 1);
      const Tensor bias = random(DType::F32, {n}, 2);
      const OnDevice on_device(y, shift);
      add_bias(queue, on_device, OnDevice(bias, shift));
      for (int64_t i = 0; i < 3 * n; ++i) {
        set(y, i, static_cast<float>(at(y, i)) + bias.as<float>()[i % n]);
      }
      EXPECT_TRUE(same_bits(on_device.download(queue), y));
    }
  });
}

// tanhf is off by two units in the last place at most (CUDA C++ Programming Guide), four roundings;
// a quotient and a product more. The reference's bound is nine (cpu_activation_test.cpp).
TEST(CudaRowsElementwise, softcap_keeps_the_accuracy_of_small_logits) {
  Queue queue;
  for (const int64_t shift : shifts) {
    for (const double size : {1e-4, 1.0, 30.0, 1e4}) {
      const Tensor x = random(DType::F32, {2, 1001}, 1, size);
      const OnDevice on_device(x, shift);
      softcap(queue, on_device, 30.0F);
      cpu::softcap(x, 30.0F, pool(), portable);
      const Tensor got = on_device.download(queue);
      for (int64_t i = 0; i < x.n_elements(); ++i) {
        expect_close(got, x, i, std::abs(at(x, i)) * roundings(15));
      }
    }
  }
}

constexpr Activation activations[] = {
    Activation::silu, Activation::gelu_tanh, Activation::clamped_swiglu};

// Of the exponential within: the exponent, and the roundings in it, as in cpu_activation_test.cpp.
struct Exponent {
  double value;
  double n_roundings;
};
Exponent exponent_of(Activation activation, double gate) {
  if (activation == Activation::silu) return {-gate, 0};
  if (activation == Activation::clamped_swiglu) return {-1.702 * std::min(gate, 7.0), 2};
  const double z = std::sqrt(2 / std::acos(-1.0)) * (gate + 0.044715 * gate * gate * gate);
  return {-2 * z, 5};
}

// expf and the quotient are off by two units in the last place at most, four roundings each; the
// sum and the product (two in clamped_swiglu's) are one each: ten, like the reference's. What the
// exponent is off by, counts as often as it is large, on either side. Beyond 87 the true value is
// below |gate| exp(-87) times the factor of up, and so is either result.
void expect_gated(
    Activation activation, double gate, double up, TensorView got, TensorView want, int64_t i) {
  const Exponent e = exponent_of(activation, gate);
  const double n = 10 + e.n_roundings * std::abs(e.value);
  const double factor = activation == Activation::clamped_swiglu ? 8.0 : std::abs(up);
  const double beyond = e.value > 87 ? 2 * std::abs(gate) * factor * std::exp(-87.0) : 0.0;
  expect_close(got, want, i, std::abs(at(want, i)) * roundings(2 * n) + beyond);
}

TEST(CudaRowsElementwise, gates_ups_in_one_tensor_and_in_two) {
  Queue queue;
  for (const Activation activation : activations) {
    for_layouts([&](DType dtype, int64_t shift) {
      for (const int64_t f : widths) {
        const int64_t m = f > 2000 ? 1 : 4;
        const Tensor gate_up = random(dtype, {m, 2 * f}, 1, 20.0);
        Tensor gate(dtype, {m, f});
        Tensor up(dtype, {m, f});
        for (int64_t i = 0; i < m * f; ++i) {
          set(gate, i, at(gate_up, i / f * 2 * f + i % f));
          set(up, i, at(gate_up, i / f * 2 * f + f + i % f));
        }
        Tensor want(dtype, {m, f});
        cpu::gated_activation(activation, gate_up, want, pool(), portable);
        const OnDevice device_gate_up(gate_up, shift);
        const OnDevice out(want, shift);
        gated_activation(queue, activation, device_gate_up, out);
        const Tensor got = out.download(queue);
        for (int64_t i = 0; i < m * f; ++i) {
          expect_gated(activation, at(gate, i), at(up, i), got, want, i);
        }
        const OnDevice device_gate(gate, shift);
        const OnDevice device_up(up, shift);
        const OnDevice again(want, shift);
        gated_activation(queue, activation, device_gate, device_up, again);
        EXPECT_TRUE(same_bits(again.download(queue), got));
      }
    });
  }
}

TEST(CudaRowsElementwise, D22_non_finite_values_are_passed_on_as_the_reference_does) {
  Queue queue;
  for (const Activation activation : activations) {
    for (const float bad : {nan, infinity, -infinity}) {
      for (const int64_t where : {1, 10}) {
        const Tensor gate_up = random(DType::F32, {1, 18}, 1);
        gate_up.as<float>()[where] = bad;
        Tensor want(DType::F32, {1, 9});
        cpu::gated_activation(activation, gate_up, want, pool(), portable);
        const OnDevice on_device(gate_up);
        const OnDevice out(want);
        gated_activation(queue, activation, on_device, out);
        const Tensor got = out.download(queue);
        for (int64_t i = 0; i < 9; ++i) {
          EXPECT_EQ(std::fpclassify(at(got, i)), std::fpclassify(at(want, i)))
              << "activation " << static_cast<int>(activation) << " of " << bad << " at " << where
              << ": " << at(got, i) << " and " << at(want, i);
        }
      }
    }
  }
}

TEST(CudaRowsElementwise, fill_synthetic) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    for (const int64_t n : widths) {
      Tensor want(dtype, {n});
      for (int64_t i = 0; i < n; ++i) set(want, i, 0.01F * static_cast<float>(i % 17 - 8));
      const OnDevice out(Tensor(dtype, {n}), shift);
      fill_synthetic(queue, out);
      EXPECT_TRUE(same_bits(out.download(queue), want));
    }
  });
}

bool all_finite_on(Queue& queue, TensorView x) {
  const OnDevice flag(Tensor(DType::I32, {1}));
  all_finite(queue, x, flag.view().as<int32_t>());
  return flag.download(queue).as<int32_t>()[0] != 0;
}

TEST(CudaRowsElementwise, all_finite_finds_any_element) {
  Queue queue;
  for_layouts([&](DType dtype, int64_t shift) {
    EXPECT_TRUE(all_finite_on(queue, OnDevice(Tensor(dtype, {0, 8}))));
    for (const int64_t n : widths) {
      const Tensor x = random(dtype, {2, n}, 1);
      EXPECT_TRUE(all_finite_on(queue, OnDevice(x, shift)));
      for (const int64_t where : {int64_t{0}, n, 2 * n - 1}) {
        for (const float bad : {nan, infinity, -infinity}) {
          const double before = at(x, where);
          set(x, where, bad);
          EXPECT_FALSE(all_finite_on(queue, OnDevice(x, shift))) << where << " of " << 2 * n;
          set(x, where, before);
        }
      }
    }
  });
}

void expect_row_max(Queue& queue, TensorView x, int64_t shift) {
  const int64_t m = x.n_rows();
  std::vector<RowMax> want(static_cast<size_t>(m));
  cpu::row_max(x, want, pool(), portable);
  constexpr auto words = static_cast<int64_t>(sizeof(RowMax) / sizeof(int32_t));
  const OnDevice on_device(x, shift);
  const OnDevice results(Tensor(DType::I32, {m * (1 + row_max_parts(x.row_elements())), words}));
  row_max(queue, on_device, static_cast<RowMax*>(results.view().data()));
  const Tensor got = results.download(queue);
  for (int64_t r = 0; r < m; ++r) {
    const RowMax& of_row = static_cast<const RowMax*>(got.data())[r];
    const RowMax& expected = want[static_cast<size_t>(r)];
    EXPECT_EQ(of_row.value, expected.value) << "row " << r;
    EXPECT_EQ(of_row.index, expected.index) << "row " << r;
    EXPECT_EQ(of_row.finite, expected.finite) << "row " << r;
  }
}

TEST(CudaRowsElementwise, row_max_is_the_lowest_index_of_equals) {
  Queue queue;
  for (const int64_t shift : shifts) {
    for (const int64_t n : {1, 7, 8, 300, 8200, 140'001}) {
      const Tensor x = random(DType::F32, {3, n}, 1);
      expect_row_max(queue, x, shift);
      for (const int64_t step : {1, 5, 4000}) {
        for (int64_t i = n - 1; i >= 0; i -= step) x.as<float>()[i] = 9.0F;
        expect_row_max(queue, x, shift);
      }
    }
  }
}

TEST(CudaRowsElementwise, row_max_passes_over_nan_and_tells_of_it) {
  Queue queue;
  for (const int64_t shift : shifts) {
    for (const int64_t n : {2, 9, 8200}) {
      for (const float bad : {nan, infinity, -infinity}) {
        const Tensor x = random(DType::F32, {4, n}, 1);
        x.as<float>()[n + n / 2] = bad;
        std::fill_n(x.as<float>() + 2 * n, n, bad);
        std::fill_n(x.as<float>() + 3 * n, n, nan);
        x.as<float>()[3 * n + 1] = bad;
        expect_row_max(queue, x, shift);
      }
    }
  }
}

}  // namespace
}  // namespace testbed::cuda
