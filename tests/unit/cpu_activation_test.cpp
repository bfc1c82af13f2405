// The activations of gated MLPs and the cap on logits, at every level of this processor, against
// double arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/elementwise.hpp"
#include "tests/unit/elementwise_support.hpp"

namespace testbed::cpu {
namespace {

struct Reference {
  double value = 0.0;
  double exponent = 0.0;   // of the exponential within
  double n_roundings = 0;  // of that exponent, relative to it
};

Reference reference(Activation activation, double gate, double up) {
  if (activation == Activation::silu) return {gate / (1 + std::exp(-gate)) * up, -gate, 0};
  if (activation == Activation::gelu_tanh) {
    const double z = std::sqrt(2 / std::acos(-1.0)) * (gate + 0.044715 * gate * gate * gate);
    return {gate / 2 * (1 + std::tanh(z)) * up, -2 * z, 5};
  }
  const double g = std::min(gate, 7.0);
  const double u = std::clamp(up, -7.0, 7.0);
  return {(u + 1) * g / (1 + std::exp(-1.702 * g)), -1.702 * g, 2};
}

// exp is off by a few roundings (its polynomial's last steps, 2^k is exact) and 6e-9 of truncation;
// the sum, the quotient and the products are one each; what the exponent is off by, counts as often
// as it is large. Where exp would pass the end of its range (an exponent above 87) the true value
// is below |gate| exp(-87) times the factor of up.
void check(Activation activation, double gate, double up, TensorView out, int64_t i) {
  const Reference r = reference(activation, gate, up);
  const double n = 10 + r.n_roundings * std::abs(r.exponent);
  const double factor = activation == Activation::clamped_swiglu ? 8.0 : std::abs(up);
  const double beyond = r.exponent > 87 ? std::abs(gate) * factor * std::exp(-87.0) : 0.0;
  // tanh of the reference has cancelled: its own error, of double.
  const double of_reference = std::abs(gate * up) * 0x1p-52;
  expect_near(out, i, r.value, std::abs(r.value) * roundings(n) + beyond + of_reference);
}

constexpr Activation activations[] = {
    Activation::silu, Activation::gelu_tanh, Activation::clamped_swiglu};

TEST(CpuActivation, gates_ups_in_one_tensor_and_in_two) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const Activation activation : activations) {
      SCOPED_TRACE(static_cast<int>(activation));
      for (const DType dtype : dtypes) {
        for (const int64_t f : {1, 15, 16, 33, 1536, 20000, 50001}) {
          const int64_t m = f > 2000 ? 1 : 4;
          const Tensor gate_up = random(dtype, {m, 2 * f}, 1, 20.0);
          Tensor gate(dtype, {m, f});
          Tensor up(dtype, {m, f});
          Tensor out(dtype, {m, f});
          gated_activation(activation, gate_up, out, pool, isa);
          for (int64_t i = 0; i < m * f; ++i) {
            set(gate, i, at(gate_up, i / f * 2 * f + i % f));
            set(up, i, at(gate_up, i / f * 2 * f + f + i % f));
            check(activation, at(gate, i), at(up, i), out, i);
          }
          Tensor same(dtype, {m, f});
          gated_activation(activation, gate, up, same, pool, isa);
          EXPECT_TRUE(same_bits(same, out));
        }
      }
    }
  });
}

TEST(CpuActivation, small_gates_keep_their_relative_accuracy) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const Activation activation : activations) {
      const Tensor gate_up = random(DType::F32, {4, 128}, 1, 1e-3);
      Tensor out(DType::F32, {4, 64});
      gated_activation(activation, gate_up, out, pool, isa);
      for (int64_t i = 0; i < 256; ++i) {
        const int64_t at_gate = i / 64 * 128 + i % 64;
        check(activation, at(gate_up, at_gate), at(gate_up, at_gate + 64), out, i);
      }
    }
  });
}

// A clamp takes infinity for what it is: large.
TEST(CpuActivation, D22_non_finite_values_are_passed_on) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const Activation activation : activations) {
      for (const int64_t f : {3, 16}) {
        for (const float bad : {nan, infinity}) {
          if (activation == Activation::clamped_swiglu && bad == infinity) continue;
          for (const int64_t where : {int64_t{1}, f + 1}) {
            const Tensor gate_up = random(DType::F32, {1, 2 * f}, 1);
            gate_up.as<float>()[where] = bad;
            Tensor out(DType::F32, {1, f});
            gated_activation(activation, gate_up, out, pool, isa);
            EXPECT_FALSE(std::isfinite(out.as<float>()[1]));
            EXPECT_TRUE(std::isfinite(out.as<float>()[0]));
          }
        }
      }
    }
  });
}

// The quotient, exp's polynomial (4), its rest, m, m + 2, the quotient and the product.
TEST(CpuActivation, softcap_keeps_the_accuracy_of_small_logits) {
  everywhere([](Isa isa, ThreadPool& pool) {
    for (const int64_t n : {1, 15, 16, 17, 33000}) {
      for (const double size : {1e-4, 1.0, 30.0, 1e4}) {
        const Tensor before = random(DType::F32, {2, n}, 1, size);
        const Tensor x = copy(before);
        softcap(x, 30.0F, pool, isa);
        for (int64_t i = 0; i < x.n_elements(); ++i) {
          const double expected = 30.0 * std::tanh(at(before, i) / 30.0);
          expect_near(x, i, expected, std::abs(expected) * roundings(9));
        }
      }
    }
  });
}

TEST(CpuActivation, softcap_passes_nan_on) {
  everywhere([](Isa isa, ThreadPool& pool) {
    const Tensor x = random(DType::F32, {1, 20}, 1);
    x.as<float>()[3] = nan;
    x.as<float>()[17] = nan;
    softcap(x, 30.0F, pool, isa);
    for (int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(std::isnan(x.as<float>()[i]), i == 3 || i == 17);
    }
  });
}

}  // namespace
}  // namespace testbed::cpu
