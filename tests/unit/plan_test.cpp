// The closed forms of `testbed plan`, against counts and against each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/errors.hpp"
#include "kernels/cost.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/plan/batch_limit.hpp"
#include "runtime/plan/chip.hpp"
#include "runtime/plan/fits.hpp"
#include "runtime/plan/kv.hpp"
#include "runtime/plan/links.hpp"
#include "runtime/plan/moe.hpp"
#include "runtime/plan/plan_report.hpp"
#include "runtime/plan/training.hpp"

namespace testbed::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

ModelConfig model(const std::string& name) { return read_model_config(locate_model(name)); }

PlanInputs inputs(const std::string& name, Split split) {
  PlanInputs in;
  in.model = model(name);
  in.cluster = read_cluster("dgx-h100");
  in.split = split;
  in.batch = 4;
  in.context = 2048;
  in.prompt_tokens = 128;
  return in;
}

TEST(PlanRoofline, crossing_is_where_the_gemm_meets_the_ridge) {
  for (const double ridge : {20.0, 138.9, 295.3}) {
    const double m = gemm_crossing(ridge, 4096, 2.0);
    const auto at = [](double tokens) {
      return intensity(
          linear_cost(static_cast<int64_t>(tokens), 4096, 4096, 4096, DType::BF16, DType::BF16));
    };
    EXPECT_LE(at(std::floor(m)), ridge);
    EXPECT_GE(at(std::ceil(m)), ridge);
  }
  // M H / (H + 2 M) stays below H / 2.
  EXPECT_TRUE(std::isinf(gemm_crossing(64.0, 128, 2.0)));
}

TEST(PlanStepOps, matrices_are_the_models_parameters) {
  for (const char* name : {"llama3-70b", "qwen2.5-7b", "qwen3-8b"}) {
    const ModelConfig config = model(name);
    const auto ops = step_ops(config, {}, decode_shape(1, 1), {});
    int64_t matrix_flops = 0;
    for (const PlannedOp& op : ops) {
      if (op.kind == OpKind::linear) matrix_flops += op.cost.flops;
    }
    int64_t vectors = (2 * config.n_layers + 1) * config.d_model;
    if (config.qkv_bias) {
      vectors += config.n_layers * (config.n_heads + 2 * config.n_kv_heads) * config.head_dim;
    }
    if (config.qk_norm) vectors += config.n_layers * 2 * config.head_dim;
    const int64_t table = config.tied_embeddings ? 0 : config.vocab_size * config.d_model;
    EXPECT_EQ(matrix_flops, 2 * (config.n_parameters() - vectors - table)) << name;
  }
}

// tp and pp divide the work and repeat only norms and the bookkeeping around them.
TEST(PlanStepOps, ranks_add_up_to_the_model) {
  const ModelConfig config = model("llama3-70b");
  const StepShape shape = decode_shape(8, 1024);
  const OpCost whole = total_cost(step_ops(config, {}, shape, {}));
  for (const Split split : {Split{8, 1}, Split{1, 4}, Split{4, 2}}) {
    OpCost sum;
    for (int stage = 0; stage < split.pp; ++stage) {
      for (int tp_rank = 0; tp_rank < split.tp; ++tp_rank) {
        ShardPosition position = position_of(split, stage);
        position.tp_rank = tp_rank;
        sum += total_cost(step_ops(config, position, shape, {}));
      }
    }
    EXPECT_EQ(sum.model_flops, whole.model_flops);
    EXPECT_EQ(sum.kv_bytes, whole.kv_bytes);
    EXPECT_EQ(sum.kv_write_bytes, whole.kv_write_bytes);
    const int64_t one_norm = norm_cost(1, config.d_model, false, DType::BF16).weight_bytes;
    // A stage but the first starts with a norm of its own, and adds its last partial without one.
    const int64_t repeated_norms = (split.tp - 1) * (2 * config.n_layers + 1) * one_norm;
    EXPECT_EQ(sum.weight_bytes, whole.weight_bytes + repeated_norms);
  }
}

// The embedding and the head of llama3-8b: 8 gathered rows and all 128,256, of 4096.
TEST(PlanStepOps, tables_are_read_in_a_format_of_their_own) {
  const ModelConfig config = model("llama3-8b");
  const auto bytes_of = [&](const WeightFormat& layers, std::string_view name) {
    const StepFormats formats{number_format(layers), DType::BF16};
    for (const PlannedOp& op : step_ops(config, {}, decode_shape(8, 64), formats)) {
      if (op.name == name) return op.cost.weight_bytes;
    }
    return int64_t{0};
  };
  for (const auto& [name, n_rows] : {std::pair{"embed", int64_t{8}}, {"head", int64_t{128256}}}) {
    const auto as = [rows = n_rows](const WeightFormat& table) {
      return table.n_bytes(rows, 4096);
    };
    EXPECT_EQ(bytes_of(weight_formats::int8_row, name), as(weight_formats::int8_row));
    EXPECT_EQ(bytes_of(weight_formats::int4_g128, name), as(weight_formats::int8_g32));
    EXPECT_EQ(bytes_of(weight_formats::fp8_row, name), as(DType::BF16));
    EXPECT_EQ(bytes_of(weight_formats::q4_0, name), as(weight_formats::q4_0));
  }
}

TEST(PlanStepOps, formats_scale_the_matrices_alone) {
  const ModelConfig config = model("llama3-8b");
  const StepShape shape = decode_shape(1, 64);
  const OpCost bf16 = total_cost(step_ops(config, {}, shape, {}));
  const OpCost int8 = total_cost(step_ops(config, {}, shape, {int8_format, DType::BF16}));
  const int64_t norms = (2 * config.n_layers + 1) * config.d_model * 4;
  EXPECT_EQ(2 * (int8.weight_bytes - norms), bf16.weight_bytes - norms);
  EXPECT_EQ(int8.flops, bf16.flops);
  EXPECT_EQ(int8.kv_bytes, bf16.kv_bytes);
}

TEST(PlanStepRoofline, math_falls_back_to_what_the_device_has) {
  DeviceSpec device;
  device.peak_flops = {{MathType::f32, 1.0}, {MathType::f16, 2.0}};
  EXPECT_EQ(math_on(device, MathType::fp8), MathType::f16);
  EXPECT_EQ(math_on(device, MathType::bf16), MathType::f16);
  EXPECT_EQ(math_on(device, MathType::f32), MathType::f32);
  device.peak_flops.erase(MathType::f32);
  EXPECT_THROW(math_on(device, MathType::f32), ConfigError);
}

TEST(PlanStepRoofline, decode_of_70b_is_bound_by_its_weights) {
  const PlanReport report = make_plan(inputs("llama3-70b", {8, 1}));
  for (const OpRoofline& op : report.decode.roofline.ops)
    EXPECT_TRUE(op.memory_bound()) << op.op.name;
  // 139.0 GB of weights and 4 x 2048 tokens of cache at 8 x 3.35 TB/s; activations are little.
  const double at_least = (139.0e9 + 4 * 2048 * 327680.0) / (8 * 3.35e12);
  EXPECT_GT(report.decode.roofline.seconds, at_least);
  EXPECT_LT(report.decode.roofline.seconds, 1.02 * at_least);
}

TEST(PlanBatchLimit, intensity_at_the_limit_is_the_ridge) {
  const ModelConfig config = model("llama3-70b");
  for (const int64_t context : {1, 256, 1024}) {
    const DecodePass pass = decode_pass(config, context, {});
    const auto batch = compute_bound_batch(pass, 295.3);
    ASSERT_TRUE(batch);
    EXPECT_NEAR(pass.intensity(*batch), 295.3, 1e-6);
  }
}

TEST(PlanBatchLimit, context_limit_is_the_last_with_a_batch) {
  const ModelConfig config = model("llama3-70b");
  const auto pass_at = [&](int64_t context) { return decode_pass(config, context, {}); };
  const auto limit = context_limit(pass_at, 295.3);
  ASSERT_TRUE(limit);
  EXPECT_TRUE(compute_bound_batch(pass_at(*limit), 295.3));
  EXPECT_FALSE(compute_bound_batch(pass_at(*limit + 1), 295.3));
  // Attention of 8 query heads on one KV head is 8 FLOP/byte at any length.
  EXPECT_EQ(context_limit(pass_at, 7.9), std::nullopt);
  EXPECT_EQ(context_limit(pass_at, 1e9), 0);
}

TEST(PlanBatchLimit, smaller_caches_restore_it) {
  const auto limits = batch_limits(model("llama3-70b"), 2048, {}, 295.3);
  ASSERT_EQ(limits.size(), 4U);
  EXPECT_FALSE(limits[0].batch);
  for (size_t i = 1; i < limits.size(); ++i) {
    EXPECT_TRUE(limits[i].batch) << limits[i].change;
    EXPECT_GT(*limits[i].context_limit, *limits[0].context_limit) << limits[i].change;
  }
  const auto at_8k = batch_limits(model("llama3-70b"), 8192, {}, 295.3);
  EXPECT_FALSE(at_8k[1].batch);
  EXPECT_TRUE(at_8k[2].batch);
  EXPECT_TRUE(at_8k[3].batch);
}

TEST(PlanFits, weights_of_the_ranks_are_the_models) {
  const ModelConfig config = model("llama3-70b");
  // Vectors are F32: 4 bytes where a matrix has 2.
  const int64_t norms = (2 * config.n_layers + 1) * config.d_model;
  EXPECT_EQ(resident_weight_bytes(config, {}, bf16_format), 2 * config.n_parameters() + 2 * norms);
  EXPECT_EQ(resident_weight_bytes(config, {}, int8_format), config.n_parameters() + 3 * norms);
  int64_t sum = 0;
  for (int rank = 0; rank < 8; ++rank) {
    sum += resident_weight_bytes(config, {.tp = 8, .tp_rank = rank}, bf16_format);
  }
  EXPECT_EQ(sum, resident_weight_bytes(config, {}, bf16_format) + 28 * norms);
}

TEST(PlanFits, a_user_more_would_not_fit) {
  const ModelConfig config = model("llama3-70b");
  const DeviceSpec h100 = read_cluster("dgx-h100").device;
  constexpr int64_t tokens = 32 << 10;
  const int64_t users = users_of(config, {8, 1}, {}, h100.memory_bytes, tokens);
  const Fit fit = fit_of(config, {8, 1}, {}, h100.memory_bytes);
  EXPECT_GT(users, 0);
  EXPECT_LE(users * tokens * fit.kv_bytes_per_token, fit.free_bytes);
  EXPECT_GT((users + 1) * tokens * fit.kv_bytes_per_token, fit.free_bytes);
  EXPECT_LT(fit_of(config, {1, 1}, {}, h100.memory_bytes).free_bytes, 0);
}

// More ranks than KV heads: each holds a whole one.
TEST(PlanFits, kv_heads_are_replicated_beyond_their_number) {
  const ModelConfig config = model("llama3-70b");
  const auto per_token = [&](int tp) { return fit_of(config, {tp, 1}, {}, 1).kv_bytes_per_token; };
  EXPECT_EQ(per_token(8) * 8, per_token(1));
  EXPECT_EQ(per_token(16), per_token(8));
}

TEST(PlanMoe, expected_experts_equal_an_enumeration) {
  // Two tokens of four experts, top-1: 16 cases, 4 of them with one expert and 12 with two.
  EXPECT_DOUBLE_EQ(expected_experts(4, 1, 2.0), (4 * 1 + 12 * 2) / 16.0);
  EXPECT_DOUBLE_EQ(expected_experts(8, 8, 1.0), 8.0);
}

TEST(PlanTraining, zero_shards_optimizer_then_gradients_then_weights) {
  EXPECT_DOUBLE_EQ(zero_bytes_per_parameter(0, 4), 16.0);
  EXPECT_DOUBLE_EQ(zero_bytes_per_parameter(1, 4), 4.0 + 12.0 / 4);
  EXPECT_DOUBLE_EQ(zero_bytes_per_parameter(2, 4), 2.0 + 14.0 / 4);
  EXPECT_DOUBLE_EQ(zero_bytes_per_parameter(3, 4), 16.0 / 4);
}

TEST(PlanLinks, all_reduces_of_a_step) {
  const PlanReport report = make_plan(inputs("llama3-70b", {8, 1}));
  ASSERT_TRUE(report.decode.links);
  const StepLinks& links = *report.decode.links;
  EXPECT_EQ(links.all_reduces, 161);
  EXPECT_EQ(links.all_reduce_bytes_per_layer, 2 * 4 * 8192 * 2);
  EXPECT_EQ(links.all_reduce_bytes, 161 * 4 * 8192 * 2);
  EXPECT_EQ(links.wire_bytes, links.all_reduce_bytes / 8 * 14);
  EXPECT_FALSE(links.crosses_nodes);
  EXPECT_FALSE(make_plan(inputs("llama3-8b", {1, 1})).decode.links);
}

TEST(PlanReport, levers_gain_what_they_move) {
  const PlanReport report = make_plan(inputs("llama3-70b", {8, 1}));
  ASSERT_FALSE(report.levers.empty());
  EXPECT_EQ(report.levers.front().gain, 1.0);
  for (const Lever& lever : report.levers) {
    if (lever.change == "memory x 2") {
      EXPECT_NEAR(lever.gain, 2.0, 1e-9);
    }
    if (lever.change == "batch x 2") {
      EXPECT_GT(lever.gain, 1.5);
      EXPECT_LT(lever.gain, 2.0);
    }
  }
}

TEST(PlanReport, refuses_what_cannot_be) {
  EXPECT_THROW(make_plan(inputs("llama3-70b", {3, 1})), ConfigError);
  EXPECT_THROW(make_plan(inputs("llama3-70b", {16, 1})), ConfigError);  // 8 devices
  EXPECT_THROW(make_plan(inputs("llama3-70b", {.ep = 2})), ConfigError);
  EXPECT_THROW(make_plan(inputs("qwen3-30b-a3b", {.cp = 2, .ep = 3})), ConfigError);
  PlanInputs endless = inputs("llama3-70b", {.cp = 2});
  endless.prompt_tokens = int64_t{1} << 31;
  EXPECT_THROW(make_plan(endless), ConfigError);
  PlanInputs many = inputs("llama3-70b", {.cp = 2});
  many.batch = int64_t{1} << 20;
  EXPECT_THROW(make_plan(many), ConfigError);
}

TEST(PlanReport, labels_say_what_does_not_fit) {
  PlanInputs in = inputs("llama3-70b", {1, 1});
  in.context = 16384;
  EXPECT_EQ(labels_of(make_plan(in)).size(), 2U);
  EXPECT_EQ(labels_of(make_plan(inputs("llama3-70b", {8, 1}))).size(), 0U);
  EXPECT_THAT(labels_of(make_plan(inputs("llama3-8b", {.cp = 2}))),
              ElementsAre(HasSubstr("what cp and ep send")));
  EXPECT_THAT(labels_of(make_plan(inputs("qwen3-30b-a3b", {.tp = 2, .ep = 2}))),
              ElementsAre(HasSubstr("what cp and ep send")));
  // What most of a file is stored in stands for all of it.
  PlanInputs file = inputs("llama3-8b", {1, 1});
  file.model.stored_dtype = DType::Q4_1;
  file.formats.weights = format_of(DType::Q4_1);
  EXPECT_THAT(labels_of(make_plan(file)), ElementsAre(StartsWith("all matrices taken as q4_1")));
  file.formats.weights = number_format(weight_formats::int8_g32);
  EXPECT_THAT(labels_of(make_plan(file)), IsEmpty());
}

}  // namespace
}  // namespace testbed::plan
