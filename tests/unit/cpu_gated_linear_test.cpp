// Products whose result is gated in the same section, and x packed by several threads: to the bit
// what separate ops and one thread give, at every level of this processor and in every weight
// format; and what the device counts for them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/float16.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/quantise.hpp"
#include "tests/unit/elementwise_support.hpp"

namespace testbed::cpu {
namespace {

constexpr Activation activations[] = {
    Activation::silu, Activation::gelu_tanh, Activation::clamped_swiglu};

std::vector<WeightFormat> all_formats() {
  std::vector<WeightFormat> formats{DType::F32, DType::F16, DType::BF16};
  for (const weight_formats::Named& named : weight_formats::quantised) {
    formats.push_back(named.format);  // NOLINT(performance-inefficient-vector-operation)
  }
  return formats;
}

// Codes of any value; scales and offsets that keep sums within a few units.
QuantisedTensor random_codes(const WeightFormat& format, int64_t n, int64_t k) {
  QuantisedTensor w(format, n, k);
  const Tensor noise = random(DType::F32, {n, k}, 3);
  for (int64_t i = 0; i < n * k; ++i) {
    const auto bits = std::bit_cast<uint32_t>(noise.as<float>()[i]) >> 8;
    const bool is_int4 = format.coding == WeightCoding::int4;
    w.codes.as<int8_t>()[i] = static_cast<int8_t>(bits & (is_int4 ? 15 : 0x3f));
  }
  for (int64_t i = 0; i < w.scales.n_elements(); ++i) {
    const float scale = 0.01F + 0.001F * static_cast<float>(i % 7);
    if (format.scale_dtype == DType::F32) {
      w.scales.as<float>()[i] = scale;
    } else {
      w.scales.as<f16>()[i] = to_f16(scale);
    }
  }
  for (int64_t i = 0; !w.offsets.empty() && i < w.offsets.n_elements(); ++i) {
    if (format.offset == WeightOffset::zero_point) {
      w.offsets.as<int8_t>()[i] = static_cast<int8_t>(i % 16);
    } else {
      w.offsets.as<f16>()[i] = to_f16(-0.01F * static_cast<float>(i % 5));
    }
  }
  return w;
}

PackedMatrix random_matrix(const WeightFormat& format, int64_t n, int64_t k) {
  PackedMatrix w(n, k, format);
  if (format.is_quantised()) {
    w.store_rows(0, random_codes(format, n, k));
    return w;
  }
  const Tensor values = random(DType::F32, {n, k}, 2);
  const Tensor rows(format.dtype, {n, k});
  for (int64_t i = 0; i < n * k; ++i) {
    const float value = values.as<float>()[i];
    if (format.dtype == DType::F32) rows.as<float>()[i] = value;
    if (format.dtype == DType::F16) rows.as<f16>()[i] = to_f16(value);
    if (format.dtype == DType::BF16) rows.as<bf16>()[i] = to_bf16(value);
  }
  w.store_rows(0, rows);
  return w;
}

// Of a matrix of this format: rows of x as when decoding, and more than one block of them.
void check_gated(const WeightFormat& format, int64_t f, Isa isa, ThreadPool& pool) {
  constexpr int64_t k = 72;
  const PackedMatrix w = random_matrix(format, 2 * f, k);
  const Tensor bias = random(DType::F32, {2 * f}, 4);
  for (const DType dtype : dtypes) {
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 33}) {
      SCOPED_TRACE(std::string(isa_name(isa)) + " " + std::string(format_name(format)) + " m " +
                   std::to_string(m) + " f " + std::to_string(f));
      const Activation activation = activations[(m + f / 16) % 3];
      const Tensor x = random(dtype, {m, k}, 1);
      const float* added = m % 2 == 0 ? bias.as<float>() : nullptr;
      const Tensor products(dtype, {m, 2 * f});
      const Tensor wanted(dtype, {m, f});
      linear(w, x, added, products, pool, isa);
      gated_activation(activation, products, wanted, pool, isa);
      const Tensor gate_up(dtype, {m, 2 * f});
      const Tensor out(dtype, {m, f});
      linear_gated({&w, added, gate_up}, x, activation, out, pool, isa);
      EXPECT_TRUE(same_bits(gate_up, products));
      EXPECT_TRUE(same_bits(out, wanted));
    }
  }
}

TEST(CpuGatedLinear, gives_the_bits_of_the_product_and_the_activation) {
  for (const int n_threads : {1, 2, 3}) {
    ThreadPool pool(n_threads, false);
    for (const Isa isa : isas_here()) {
      for (const WeightFormat& format : all_formats()) check_gated(format, 80, isa, pool);
    }
  }
}

// Fewer panels than threads, shares of four, every activation with every row count.
TEST(CpuGatedLinear, is_cut_at_any_width) {
  ThreadPool pool(3, false);
  for (const Isa isa : isas_here()) {
    for (const int64_t f : {16, 32, 48, 64, 16 * 50}) {
      check_gated(DType::BF16, f, isa, pool);
      check_gated(weight_formats::q4_0, f, isa, pool);
    }
  }
}

TEST(CpuGatedLinear, takes_more_rows_than_are_packed_at_a_time) {
  ThreadPool pool(2, false);
  constexpr int64_t m = 530;
  constexpr int64_t f = 32;
  const PackedMatrix w = random_matrix(DType::BF16, 2 * f, 8);
  const Tensor x = random(DType::BF16, {m, 8}, 1);
  const Tensor products(DType::BF16, {m, 2 * f});
  const Tensor wanted(DType::BF16, {m, f});
  linear(w, x, nullptr, products, pool, best_isa());
  gated_activation(Activation::silu, products, wanted, pool, best_isa());
  const Tensor gate_up(DType::BF16, {m, 2 * f});
  const Tensor out(DType::BF16, {m, f});
  linear_gated({&w, nullptr, gate_up}, x, Activation::silu, out, pool, best_isa());
  EXPECT_TRUE(same_bits(out, wanted));
}

// Leaves what is packed of x full of infinities, which zero weights do not hide.
void spoil_packed(const WeightFormat& format, DType dtype, int64_t k, Isa isa) {
  ThreadPool alone(1, false);
  const Tensor x(dtype, {6, k});
  for (int64_t i = 0; i < x.n_elements(); ++i) set(x, i, infinity);
  const Tensor y(DType::F32, {6, 16});
  linear(random_matrix(format, 16, k), x, nullptr, y, alone, isa);
}

// So many columns that the threads share one tile of x; odd, and not of whole blocks.
TEST(CpuLinearX, packed_by_several_threads_is_what_one_packs) {
  constexpr int64_t k = 6 * 1024 + 37;
  ThreadPool alone(1, false);
  ThreadPool pool(3, false);
  for (const Isa isa : isas_here()) {
    for (const WeightFormat& format : {WeightFormat(DType::BF16),
                                       WeightFormat(DType::F32),
                                       weight_formats::int8_row,
                                       weight_formats::q4_1,
                                       weight_formats::fp8_row}) {
      const PackedMatrix w = random_matrix(format, 32, k);
      for (const DType dtype : dtypes) {
        for (const int64_t m : {1, 2, 5}) {
          SCOPED_TRACE(std::string(isa_name(isa)) + " " + std::string(format_name(format)));
          const Tensor x = random(dtype, {m, k}, 1);
          const Tensor wanted(DType::F32, {m, 32});
          const Tensor y(DType::F32, {m, 32});
          linear(w, x, nullptr, wanted, alone, isa);
          spoil_packed(format, dtype, k + 64, isa);
          linear(w, x, nullptr, y, pool, isa);
          EXPECT_TRUE(same_bits(y, wanted)) << m;
        }
      }
    }
  }
}

class Records final : public CostSink {
 public:
  void on_op(const OpRecord& record) override { records.push_back(record); }
  std::vector<OpRecord> records;
};

// In one section or not (12: the ups begin within a panel), the two ops are counted as themselves.
TEST(CpuGatedLinear, is_counted_as_its_two_ops) {
  CpuDevice device(std::make_shared<ThreadPool>(2, false), best_isa(), DType::BF16);
  for (const int64_t f : {12, 32}) {
    constexpr int64_t k = 40;
    const WeightMatrix w = device.allocate_weight(2 * f, k, DType::BF16);
    device.store_rows(w, 0, random(DType::BF16, {2 * f, k}, 2));
    const Tensor bias = random(DType::F32, {2 * f}, 3);
    for (const int64_t m : {0, 1, 4}) {
      const Tensor x = random(DType::BF16, {m, k}, 1);
      const Tensor products(DType::BF16, {m, 2 * f});
      const Tensor wanted(DType::BF16, {m, f});
      const Tensor gate_up(DType::BF16, {m, 2 * f});
      const Tensor out(DType::BF16, {m, f});
      Records apart;
      device.set_sink(&apart);
      device.linear(x, w, bias, products);
      device.gated_activation(Activation::gelu_tanh, products, wanted);
      Records together;
      device.set_sink(&together);
      device.linear_gated(x, w, bias, Activation::gelu_tanh, gate_up, out);
      device.set_sink(nullptr);
      EXPECT_TRUE(same_bits(out, wanted));
      ASSERT_EQ(together.records.size(), apart.records.size());
      for (size_t i = 0; i < apart.records.size(); ++i) {
        EXPECT_EQ(together.records[i].kind, apart.records[i].kind);
        EXPECT_EQ(together.records[i].cost, apart.records[i].cost);
      }
    }
  }
}

}  // namespace
}  // namespace testbed::cpu
