// The ops that lay rows out for experts and heads, and their many small products, through the
// device at every level of this processor, against naive double arithmetic; and what they count.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_device.hpp"
#include "tests/unit/elementwise_support.hpp"

namespace testbed::cpu {
namespace {

class Records final : public CostSink {
 public:
  void on_op(const OpRecord& record) override { records.push_back(record); }
  std::vector<OpRecord> records;
};

// Runs test(device) for every instruction set, with one thread and with three, in both dtypes.
void on_devices(const std::function<void(CpuDevice&)>& test) {
  for (const int n_threads : {1, 3}) {
    const auto pool = std::make_shared<ThreadPool>(n_threads, false);
    for (const Isa isa : isas_here()) {
      for (const DType dtype : dtypes) {
        CpuDevice device(pool, isa, dtype);
        SCOPED_TRACE(device.description());
        test(device);
      }
    }
  }
}

struct Matrices {
  std::vector<Tensor> values;  // [n, k] each
  std::vector<WeightMatrix> packed;
  Matrices(Device& device, int64_t count, int64_t n, int64_t k, DType dtype) {
    values.reserve(static_cast<size_t>(count));
    packed.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(random(dtype, {n, k}, static_cast<unsigned>(100 + i)));
      packed.push_back(device.allocate_weight(n, k, dtype));
      device.store_rows(packed.back(), 0, values.back());
    }
  }
};

// y[at] = x row . w row + bias, whose error is that of an f32 sum, then of the store.
void expect_dot(TensorView x,
                int64_t x_at,
                TensorView w,
                int64_t w_row,
                double bias,
                TensorView y,
                int64_t y_at) {
  const int64_t k = w.shape()[1];
  double sum = bias;
  double x2 = bias * bias;
  double w2 = 1;
  for (int64_t i = 0; i < k; ++i) {
    const double a = at(x, x_at + i);
    const double b = at(w, w_row * k + i);
    sum += a * b;
    x2 += a * a;
    w2 += b * b;
  }
  expect_near(y, y_at, sum, tolerance::f32_dot(k + 1, std::sqrt(x2), std::sqrt(w2)));
}

void check_experts(Device& device,
                   const std::vector<int64_t>& first_row,
                   DType weight_dtype,
                   bool with_bias) {
  constexpr int64_t n = 33;
  constexpr int64_t k = 46;
  const ExpertRows experts{first_row};
  const int64_t m = first_row.back();
  const Matrices weights(device, experts.n_experts(), n, k, weight_dtype);
  const Tensor biases = random(DType::F32, {experts.n_experts(), n}, 7);
  const TensorView bias = with_bias ? biases.view() : TensorView();
  const Tensor x = random(device.compute_dtype(), {m, k}, 1);
  const Tensor y(device.compute_dtype(), {m, n});
  device.expert_linear(x, experts, weights.packed, bias, y, m);
  for (int64_t e = 0; e < experts.n_experts(); ++e) {
    for (int64_t row = first_row[static_cast<size_t>(e)];
         row < first_row[static_cast<size_t>(e) + 1];
         ++row) {
      for (int64_t j = 0; j < n; ++j) {
        const double b = with_bias ? at(biases, e * n + j) : 0.0;
        expect_dot(x, row * k, weights.values[static_cast<size_t>(e)], j, b, y, row * n + j);
      }
    }
  }
}

TEST(CpuExperts, expert_linear_takes_each_experts_rows) {
  on_devices([](CpuDevice& device) {
    for (const bool with_bias : {false, true}) {
      check_experts(device, {0, 2, 2, 2, 9, 10}, device.compute_dtype(), with_bias);
      check_experts(device, {0, 0, 20, 20}, device.compute_dtype(), with_bias);
      check_experts(device, {0, 0, 0, 0}, device.compute_dtype(), with_bias);
    }
    check_experts(device, {0, 2, 2, 5}, DType::F32, true);
    check_experts(device, {0}, device.compute_dtype(), false);
  });
}

TEST(CpuExperts, only_experts_with_rows_are_counted) {
  CpuDevice device(std::make_shared<ThreadPool>(1, false), best_isa(), DType::BF16);
  Records sink;
  device.set_sink(&sink);
  check_experts(device, {0, 2, 2, 2, 9, 10}, DType::BF16, true);
  check_experts(device, {0, 0, 0, 0}, DType::BF16, true);
  ASSERT_EQ(sink.records.size(), 1U);
  EXPECT_EQ(sink.records[0].kind, OpKind::expert_linear);
  constexpr int64_t m = 10;
  constexpr int64_t n = 33;
  constexpr int64_t k = 46;
  const OpCost cost{.flops = m * n * k * 2,
                    .model_flops = m * n * k * 2,
                    .weight_bytes = 3 * (n * k * 2 + n * 4),
                    .activation_bytes = m * (n + k) * 2};
  EXPECT_EQ(sink.records[0].cost, cost);
}

// Products that see the same x, in one go: each as by itself, and one record of what they cost.
TEST(CpuExperts, linear_group_is_its_products) {
  on_devices([](CpuDevice& device) {
    constexpr int64_t k = 48;
    const DType dtype = device.compute_dtype();
    const Matrices wide(device, 1, 40, k, dtype);
    const Matrices narrow(device, 2, 10, k, dtype);
    const Tensor bias = random(DType::F32, {10}, 5);
    const std::vector<const WeightMatrix*> weights{
        &wide.packed[0], &narrow.packed[0], &narrow.packed[1]};
    for (const int64_t m : {0, 1, 3, 50}) {
      const Tensor x = random(dtype, {m, k}, 1);
      Records together;
      Records apart;
      std::vector<Tensor> ys;
      ys.reserve(3);
      std::vector<LinearOperands> products;
      products.reserve(3);
      for (const WeightMatrix* weight : weights) {
        ys.emplace_back(dtype, Shape{m, weight->n_rows()});
        products.push_back({weight, weight == weights[1] ? bias.view() : TensorView(), ys.back()});
      }
      device.set_sink(&together);
      device.linear_group(x, products);
      device.set_sink(&apart);
      OpCost cost;
      for (const LinearOperands& p : products) {
        const Tensor want(dtype, p.y.shape());
        device.linear(x, *p.weight, p.bias, want);
        EXPECT_TRUE(same_bits(p.y, want)) << m;
      }
      device.set_sink(nullptr);
      for (const OpRecord& record : apart.records) cost += record.cost;
      ASSERT_EQ(together.records.size(), m == 0 ? 0U : 1U);
      if (m == 0) continue;
      EXPECT_EQ(together.records[0].kind, OpKind::linear);
      EXPECT_EQ(together.records[0].cost, cost);
    }
  });
}

TEST(CpuExperts, head_linear_multiplies_each_head_by_its_own) {
  on_devices([](CpuDevice& device) {
    constexpr int64_t n_heads = 5;
    constexpr int64_t n = 24;
    constexpr int64_t k = 48;
    const Matrices weights(device, n_heads, n, k, device.compute_dtype());
    for (const int64_t m : {0, 1, 7}) {
      const Tensor x = random(device.compute_dtype(), {m, n_heads, k}, 1);
      const Tensor y(device.compute_dtype(), {m, n_heads, n});
      device.head_linear(x, weights.packed, y);
      for (int64_t i = 0; i < m * n_heads; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const Tensor& w = weights.values[static_cast<size_t>(i % n_heads)];
          expect_dot(x, i * k, w, j, 0.0, y, i * n + j);
        }
      }
    }
  });
}

TEST(CpuExperts, gather_rows_copies_and_zeroes) {
  on_devices([](CpuDevice& device) {
    for (const int64_t d : {1, 17, 4096}) {
      const Tensor x = random(device.compute_dtype(), {6, d}, 1);
      const std::vector<int64_t> rows = {5, -1, 0, 0, 3, -1, 2, 5};
      const Tensor out = random(device.compute_dtype(), {8, d}, 2);
      device.gather_rows(x, rows, out);
      for (int64_t i = 0; i < out.n_elements(); ++i) {
        const int64_t row = rows[static_cast<size_t>(i / d)];
        EXPECT_EQ(at(out, i), row < 0 ? 0.0 : at(x, row * d + i % d));
      }
    }
    const Tensor none(device.compute_dtype(), {0, 4});
    device.gather_rows(none, {}, none);
    const Tensor zeros = random(device.compute_dtype(), {1, 4}, 2);
    device.gather_rows(none, std::vector<int64_t>{-1}, zeros);
    EXPECT_EQ(at(zeros, 3), 0.0);
  });
}

TEST(CpuExperts, copy_columns_repeats_rows_and_leaves_the_rest) {
  on_devices([](CpuDevice& device) {
    const DType dtype = device.compute_dtype();
    const Tensor x = random(dtype, {4, 10}, 1);
    const Tensor out = random(dtype, {4, 3, 12}, 2);
    const Tensor before = copy(out);
    device.copy_columns(x, 2, 5, out, 6);
    for (int64_t i = 0; i < out.n_elements(); ++i) {
      const int64_t column = i % 12;
      const bool copied = column >= 6 && column < 11;
      EXPECT_EQ(at(out, i), copied ? at(x, i / 36 * 10 + column - 4) : at(before, i));
    }
    device.copy_columns(Tensor(dtype, {0, 10}), 2, 5, Tensor(dtype, {0, 3, 12}), 6);
  });
}

// Each product and each sum is rounded once in f32, and the store once.
TEST(CpuExperts, combine_rows_sums_in_f32_in_order) {
  on_devices([](CpuDevice& device) {
    for (const int64_t d : {1, 16, 33, 2048}) {
      const Tensor x = random(device.compute_dtype(), {6, d}, 1);
      const std::vector<int64_t> first = {0, 2, 2, 3, 7};
      const std::vector<int64_t> rows = {5, 0, 3, 1, 2, 1, 4};
      const std::vector<float> weights = {.5F, .25F, 2.0F, .1F, -.7F, .3F, 1e-3F};
      const Tensor out = random(device.compute_dtype(), {4, d}, 2);
      device.combine_rows(x, {first, rows, weights}, out);
      for (int64_t i = 0; i < out.n_elements(); ++i) {
        const auto t = static_cast<size_t>(i / d);
        double sum = 0;
        double size = 0;
        for (auto j = static_cast<size_t>(first[t]); j < static_cast<size_t>(first[t + 1]); ++j) {
          const double term = static_cast<double>(weights[j]) * at(x, rows[j] * d + i % d);
          sum += term;
          size += std::abs(term);
        }
        expect_near(out, i, sum, size * roundings(static_cast<double>(first[t + 1] - first[t])));
      }
    }
    const Tensor none(device.compute_dtype(), {0, 8});
    device.combine_rows(none, {std::vector<int64_t>{0}, {}, {}}, none);
  });
}

TEST(CpuExperts, a_term_of_weight_one_alone_is_a_copy) {
  on_devices([](CpuDevice& device) {
    const Tensor x = random(device.compute_dtype(), {3, 100}, 1);
    const Tensor out(device.compute_dtype(), {3, 100});
    const std::vector<int64_t> first = {0, 1, 2, 3};
    const std::vector<int64_t> rows = {0, 1, 2};
    const std::vector<float> weights = {1, 1, 1};
    device.combine_rows(x, {first, rows, weights}, out);
    EXPECT_TRUE(same_bits(x, out));
  });
}

TEST(CpuExperts, costs_are_counted_by_kind) {
  CpuDevice device(std::make_shared<ThreadPool>(1, false), best_isa(), DType::BF16);
  Records sink;
  device.set_sink(&sink);
  const Tensor x = random(DType::BF16, {4, 8}, 1);
  const Tensor out(DType::BF16, {3, 8});
  device.gather_rows(x, std::vector<int64_t>{0, -1, 2}, out);
  device.combine_rows(x,
                      {std::vector<int64_t>{0, 2, 3, 5},
                       std::vector<int64_t>{0, 1, 2, 3, 0},
                       std::vector<float>{1, 1, 1, 1, 1}},
                      out);
  const Tensor logits = random(DType::F32, {4, 8}, 1);
  const Tensor ids(DType::I32, {4, 2});
  const Tensor weights(DType::F32, {4, 2});
  device.route(
      logits, {.rule = {.top_k = 2}, .expert_scale = random(DType::F32, {8}, 1)}, ids, weights);
  device.copy_columns(x, 0, 4, x, 4);
  EXPECT_TRUE(device.all_finite(x));
  device.scale(x, 2.0F);
  device.softcap(logits, 30.0F);
  ASSERT_EQ(sink.records.size(), 7U);
  const auto expect = [&](size_t i, OpKind kind, const OpCost& cost) {
    EXPECT_EQ(sink.records[i].kind, kind) << i;
    EXPECT_EQ(sink.records[i].cost, cost) << i;
  };
  constexpr int64_t d = 8;  // of each row
  expect(0, OpKind::copy, {.activation_bytes = d * (2 + 3) * 2});
  expect(1, OpKind::combine, {.flops = d * 5 * 2, .activation_bytes = d * (5 + 3) * 2});
  expect(2,
         OpKind::router,
         {.flops = d * 4 * 5,
          .weight_bytes = d * 4,
          .activation_bytes = d * 4 * 4 + int64_t{4} * 2 * (4 + 4)});
  expect(3, OpKind::copy, {.activation_bytes = d / 2 * 4 * 2 * 2});
  expect(4, OpKind::copy, {.activation_bytes = d * 4 * 2});
  expect(5, OpKind::activation, {.flops = d * 4, .activation_bytes = d * 4 * 2 * 2});
  expect(6, OpKind::activation, {.flops = d * 4 * 5, .activation_bytes = d * 4 * 2 * 4});
}

TEST(CpuExperts, ops_without_rows_do_and_count_nothing) {
  CpuDevice device(std::make_shared<ThreadPool>(1, false), best_isa(), DType::F32);
  Records sink;
  device.set_sink(&sink);
  const auto none = [](int64_t n) { return TensorView(nullptr, DType::F32, {0, n}); };
  const Tensor norm = random(DType::F32, {16}, 1);
  const Matrices weights(device, 2, 8, 16, DType::F32);
  device.embed({}, weights.packed[0], 0, none(16));
  device.rms_norm(none(16), norm, 1e-5F, none(16));
  device.add_rms_norm(none(16), none(16), norm, 1e-5F, none(16));
  device.add(none(16), none(16));
  device.head_norm(none(32).reshaped({0, 2, 16}), norm, 1e-5F);
  device.linear(none(16), weights.packed[0], {}, none(8));
  const std::vector<double> inv_freq(8, 1.0);
  device.rope(none(32).reshaped({0, 2, 16}), {}, {.inv_freq = inv_freq});
  device.gated_activation(Activation::silu, none(32), none(16));
  device.gated_activation(Activation::gelu_tanh, none(16), none(16), none(16));
  device.scale(none(16), 2.0F);
  device.softcap(none(16), 2.0F);
  device.gather_rows(none(16), {}, none(16));
  device.copy_columns(none(16), 0, 4, none(8), 4);
  device.head_linear(none(32).reshaped({0, 2, 16}), weights.packed, none(16).reshaped({0, 2, 8}));
  device.route(none(16), {.rule = {.top_k = 2}}, {nullptr, DType::I32, {0, 2}}, none(2));
  device.expert_linear(none(16), {std::vector<int64_t>{0, 0, 0}}, weights.packed, {}, none(8), 0);
  device.combine_rows(none(16), {std::vector<int64_t>{0}, {}, {}}, none(16));
  device.row_max(none(16), {});
  EXPECT_TRUE(device.all_finite(none(16)));
  EXPECT_TRUE(sink.records.empty());
}

}  // namespace
}  // namespace testbed::cpu
