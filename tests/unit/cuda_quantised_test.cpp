// Quantised weights of every format on the CUDA device, against dequantise() and sums in double:
// products of few and many rows, whole and odd units, embeddings.
#include "kernels/base/errors.hpp"
#include "kernels/cuda/quantised.hpp"
#include "tests/unit/cuda_quantised_support.hpp"

namespace testbed::cuda {
namespace {

struct Types {
  DType x;
  DType y;
};
struct Sizes {
  int64_t m, n, k;
};

void check_linear(CudaDevice& device, const QuantisedCase& w, int64_t m, Types t, bool biased) {
  const int64_t n = w.values.shape()[0];
  const int64_t k = w.values.shape()[1];
  SCOPED_TRACE(testing::Message() << format_name(w.stored.format) << " " << m << " x " << n << " x "
                                  << k << " " << dtype_name(t.x) << " to " << dtype_name(t.y));
  const Tensor x = random(t.x, {m, k}, 2);
  const Tensor bias = random(DType::F32, {n}, 3);
  const Tensor device_bias = to_device(bias);
  const Tensor device_y = unwritten(t.y, {m, n});
  device.linear(to_device(x), w.on_device, biased ? device_bias.view() : TensorView(), device_y);
  const Tensor y = to_host(device.queue(), device_y);
  const Weights weights =
      t.x == DType::BF16 && m > most_fused_rows ? Weights::rounded : Weights::exact;
  for (int64_t i = 0; i < m * n; ++i) {
    expect_product(x, w, biased ? bias.view() : TensorView(), weights, y, i / n, i % n);
  }
}

TEST_F(CudaQuantised, products_of_every_format) {
  for (const weight_formats::Named& named : weight_formats::quantised) {
    const QuantisedCase w(device_, named.format, 33, 200);
    for (const int64_t m : {1, 3, 8, 9, 64}) {
      check_linear(device_, w, m, {DType::BF16, DType::BF16}, true);
    }
    check_linear(device_, w, 3, {DType::BF16, DType::F32}, false);
    check_linear(device_, w, 9, {DType::F32, DType::F32}, true);
    check_linear(device_, w, 1, {DType::F32, DType::BF16}, false);
  }
}

// Rows that do not start on 16 bytes, parts of groups and strips.
TEST_F(CudaQuantised, products_of_odd_widths) {
  for (const weight_formats::Named& named : weight_formats::quantised) {
    const QuantisedCase w(device_, named.format, 17, 37);
    for (const int64_t m : {1, 9}) {
      check_linear(device_, w, m, {DType::BF16, DType::BF16}, true);
      check_linear(device_, w, m, {DType::F32, DType::F32}, false);
    }
  }
}

// More strips than a block has, more units than its warps ask for at once.
TEST_F(CudaQuantised, products_of_many_units) {
  for (const WeightFormat& format :
       {weight_formats::int4_g32, weight_formats::int8_g128, weight_formats::fp8_block128}) {
    const QuantisedCase w(device_, format, 84, 64 * 37);
    check_linear(device_, w, 2, {DType::BF16, DType::F32}, true);
    check_linear(device_, w, 17, {DType::BF16, DType::F32}, true);
  }
}

TEST_F(CudaQuantised, many_rows_are_multiplied_by_rounded_weights) {
  for (const weight_formats::Named& named : weight_formats::quantised) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{40, 200}, {19, 37}}) {
      const QuantisedCase w(device_, named.format, n, k);
      const DType y_dtype = k % 8 == 0 ? DType::BF16 : DType::F32;
      check_linear(device_, w, most_fused_rows + 1, {DType::BF16, y_dtype}, k % 8 == 0);
    }
  }
}

// A scratch for two strips: three parts.
TEST_F(CudaQuantised, matrices_are_expanded_in_parts) {
  constexpr Sizes s{70, 75, 96};
  const QuantisedCase w(device_, weight_formats::int4_g32, s.n, s.k);
  const QuantisedLayout layout(w.stored.format, s.n, s.k);
  Gemm gemm(queue_);
  const Tensor scratch = unwritten(DType::BF16, {2 * strip_rows + 3, s.k});
  const Tensor x = random(DType::BF16, {s.m, s.k}, 2);
  const Tensor device_x = to_device(x);
  const Tensor device_y = unwritten(DType::F32, {s.m, s.n});
  // The matrix once more: its address in a WeightMatrix is the device's own.
  const Tensor matrix = device_tensor(DType::I8, {layout.n_bytes});
  fill_bytes(matrix, 0);
  const Tensor codes = to_device(w.stored.codes);
  const Tensor scales = to_device(w.stored.scales);
  const Tensor zeros = to_device(w.stored.offsets);
  store_quantised(queue_,
                  layout,
                  matrix.data(),
                  {.codes = static_cast<const int8_t*>(codes.data()),
                   .scales = scales.data(),
                   .offsets = zeros.data(),
                   .first_row = 0,
                   .n_rows = s.n,
                   .n_groups = w.stored.scales.shape()[1]});
  quantised_linear_expanded(
      queue_,
      gemm,
      {.x = device_x, .y = device_y, .layout = layout, .matrix = matrix.data()},
      scratch);
  const Tensor y = to_host(queue_, device_y);
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    expect_product(x, w, {}, Weights::rounded, y, i / s.n, i % s.n);
  }
}

TEST_F(CudaQuantised, rows_of_x_start_anywhere) {
  constexpr Sizes s{2, 16, 64};
  const QuantisedCase w(device_, weight_formats::q4_1, s.n, s.k);
  const Tensor x = random(DType::BF16, {s.m * s.k + 1}, 2);
  const Tensor device_x = to_device(x);
  const Tensor device_y = unwritten(DType::BF16, {s.m * s.n + 1});
  device_.linear(device_x.view().rows(1, s.m * s.k).reshaped({s.m, s.k}),
                 w.on_device,
                 {},
                 device_y.view().rows(1, s.m * s.n).reshaped({s.m, s.n}));
  const Tensor y = to_host(queue_, device_y);
  EXPECT_TRUE(std::isnan(at(y, 0)));
  const TensorView of_x = x.view().rows(1, s.m * s.k);
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    expect_product(of_x, w, {}, Weights::exact, y.view().rows(1, s.m * s.n), i / s.n, i % s.n);
  }
}

TEST_F(CudaQuantised, no_rows_are_no_work) {
  const QuantisedCase w(device_, weight_formats::int8_row, 16, 64);
  const int64_t before = queue_.n_calls();
  device_.linear(Tensor(DType::BF16, {0, 64}), w.on_device, {}, Tensor(DType::BF16, {0, 16}));
  EXPECT_EQ(queue_.n_calls(), before);
}

TEST_F(CudaQuantised, embeddings_are_the_reference_bit_for_bit) {
  const std::vector<int32_t> ids = {7, 46, 12, 28, 100, 3};  // of [5, 52) here
  for (const weight_formats::Named& named : weight_formats::quantised) {
    for (const int64_t d : {37, 256}) {
      SCOPED_TRACE(testing::Message() << named.name << " " << d);
      const QuantisedCase table(device_, named.format, 47, d);
      for (const DType dtype : {DType::F32, DType::BF16}) {
        const auto m = static_cast<int64_t>(ids.size());
        const Tensor out = unwritten(dtype, {m, d});
        device_.embed(ids, table.on_device, 5, out);
        Tensor expected(dtype, {m, d});
        for (int64_t i = 0; i < m * d; ++i) {
          const int64_t row = ids[static_cast<size_t>(i / d)] - 5;
          const bool here = row >= 0 && row < 47;
          cpu::set(expected, i, here ? at(table.values, row * d + i % d) : 0.0);
        }
        EXPECT_TRUE(cpu::same_bits(to_host(queue_, out), expected));
      }
    }
  }
}

TEST_F(CudaQuantised, every_code_of_fp8_is_expanded_exactly) {
  QuantisedTensor all(weight_formats::fp8_row, 1, 256);
  for (int i = 0; i < 256; ++i) {
    all.codes.view().as<int8_t>()[i] = static_cast<int8_t>((i & 0x7f) == 0x7f ? 0 : i);
  }
  all.scales.view().as<float>()[0] = 1.0F;
  const WeightMatrix w = device_.allocate_weight(1, 256, all.format);
  device_.store_rows(w, 0, all);
  // Columns one by one: x is 1 in one, through the registers of the products.
  Tensor x(DType::BF16, {64, 256});
  Tensor values(DType::F32, {1, 256});
  dequantise(all, values);
  for (int64_t first = 0; first < 256; first += 64) {
    for (int64_t i = 0; i < x.n_elements(); ++i) {
      cpu::set(x, i, i % 256 == first + i / 256 ? 1.0 : 0.0);
    }
    const Tensor device_y = unwritten(DType::F32, {64, 1});
    device_.linear(to_device(x), w, {}, device_y);
    const Tensor y = to_host(queue_, device_y);
    for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(at(y, i), at(values, first + i));
  }
}

TEST_F(CudaQuantised, fp8_weights_that_are_no_numbers_are_refused) {
  QuantisedTensor w(weight_formats::fp8_row, 1, 8);
  w.codes.view().as<int8_t>()[5] = static_cast<int8_t>(0xff);
  const WeightMatrix weight = device_.allocate_weight(1, 8, w.format);
  EXPECT_THROW(device_.store_rows(weight, 0, w), WeightsError);
}

// Few rows in one kernel, many through the library: both in a graph.
TEST_F(CudaQuantised, a_section_replays_as_a_graph) {
  constexpr int64_t n = 24;
  constexpr int64_t k = 64;
  const QuantisedCase w(device_, weight_formats::int4_g128, n, k);
  const Tensor x = to_device(random(DType::BF16, {70, k}, 1));
  const Tensor bias = to_device(random(DType::F32, {n}, 3));
  const Tensor few = unwritten(DType::BF16, {2, n});
  const Tensor many = unwritten(DType::BF16, {70, n});
  const auto work = [&] {
    device_.linear(x.view().rows(0, 2), w.on_device, bias, few);
    device_.linear(x, w.on_device, bias, many);
  };
  work();
  const Tensor few_once = to_host(queue_, few);
  const Tensor many_once = to_host(queue_, many);
  for (int i = 0; i < 4; ++i) {
    for (const Tensor* y : {&few, &many}) {
      check(cudaMemsetAsync(y->data(), 0xff, static_cast<size_t>(y->n_bytes()), queue_.stream()),
            "cudaMemsetAsync");
    }
    device_.section(1, work, {});
    EXPECT_TRUE(cpu::same_bits(to_host(queue_, few), few_once));
    EXPECT_TRUE(cpu::same_bits(to_host(queue_, many), many_once));
  }
  EXPECT_EQ(queue_.stats().captures, 1);
  EXPECT_EQ(queue_.stats().recaptures, 0);
}

}  // namespace
}  // namespace testbed::cuda
