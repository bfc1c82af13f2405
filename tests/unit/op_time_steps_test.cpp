// Whole decode steps at batch 1 (benchmarks/measured/decode.csv) as a closed sum of op times: one
// constant per layer is fitted on TP 1 and 8 of llama2-7b; TP 2, TP 4 and llama2-70b are held out.
//
// The ops are those of TransformerBlock: q, k and v apart. The measured program (gpt-fast) reads
// its static cache of 200 tokens whole, calls NCCL's all-reduce twice a layer, and does not shard
// the head.
#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "kernels/cost.hpp"
#include "kernels/sim/op_time.hpp"
#include "runtime/config/device_config.hpp"
#include "runtime/config/presets.hpp"
#include "tests/unit/measured_tables.hpp"

namespace testbed {
namespace {

constexpr int64_t n_tokens = 200;
constexpr DType dtype = DType::BF16;

double op(const DeviceSpec& device, OpKind kind, const OpCost& cost, const OpShape& shape = {}) {
  return pass_op_seconds(device, kind, cost, shape, MathType::bf16);
}

double linear(const DeviceSpec& device, int64_t n, int64_t k) {
  return op(
      device, OpKind::linear, linear_cost(1, n, k, n, dtype, dtype), {.m = 1, .n = n, .k = k});
}

double attention(const DeviceSpec& device, int64_t n_heads, int64_t n_kv_heads, int64_t head_dim) {
  const ContiguousSequence decode(1, n_tokens);
  const AttentionSequence sequence = decode.view();
  return op(
      device,
      OpKind::attention,
      attention_cost({&sequence, 1}, 0, n_heads, {n_kv_heads, head_dim, head_dim, dtype}),
      {.n_sequences = 1, .n_query_rows = 1, .longest_context = n_tokens, .n_kv_heads = n_kv_heads});
}

double layer_s(const DeviceSpec& device, const ModelConfig& model, int64_t tp) {
  const int64_t d = model.d_model;
  const int64_t n_heads = model.n_heads / tp;
  const int64_t n_kv_heads = model.n_kv_heads / tp;
  const int64_t q = n_heads * model.head_dim;
  const int64_t kv = n_kv_heads * model.head_dim;
  const int64_t f = model.d_ff / tp;
  return 2 * op(device, OpKind::norm, norm_cost(1, d, true, dtype)) + linear(device, q, d) +
         2 * linear(device, kv, d) + op(device, OpKind::rope, rope_cost(q + kv, dtype)) +
         op(device,
            OpKind::kv_write,
            kv_write_cost(1, {n_kv_heads, model.head_dim, model.head_dim, dtype})) +
         attention(device, n_heads, n_kv_heads, model.head_dim) + linear(device, d, q) +
         linear(device, 2 * f, d) + op(device, OpKind::activation, activation_cost(1, f, dtype)) +
         linear(device, d, f);
}

double all_reduce_s(int64_t n_gpus, int64_t n_bytes) {
  if (n_gpus == 1) return 0.0;
  for (const MeasuredRow& row : read_measured("collectives.csv"))
    if (row.text("gpu") == "a100_sxm" && row.text("source").starts_with("nccl") &&
        row.text("op") == "all_reduce" && row.text("dtype") == "half" &&
        row.integer("n_gpus") == n_gpus && row.integer("bytes") == n_bytes)
      return row.number("latency_us") * 1e-6;
  throw std::runtime_error("no such all-reduce in the table");
}

TEST(OpTimeSteps, decode_steps_within_eight_percent) {
  const DeviceSpec device = read_device("a100-80");
  for (const MeasuredRow& row : read_measured("decode.csv")) {
    const ModelConfig model = read_model_config(locate_model(row.text("model")));
    const int64_t tp = row.integer("tp");
    const double layer = layer_s(device, model, tp) + 2 * all_reduce_s(tp, 2 * model.d_model);
    const double step = static_cast<double>(model.n_layers) * layer +
                        op(device, OpKind::norm, norm_cost(1, model.d_model, true, dtype)) +
                        linear(device, model.vocab_size, model.d_model);
    const double error = 100.0 * (step * row.number("tokens_per_s") - 1.0);
    const bool fitted = model.name == "llama2-7b" && (tp == 1 || tp == 8);
    std::printf("%s tp %lld: %.1f tokens/s predicted, %+.1f %% step time, %s\n",
                model.name.c_str(),
                static_cast<long long>(tp),
                1.0 / step,
                error,
                fitted ? "fitted" : "held out");
    EXPECT_LE(std::abs(error), 8.0) << model.name << " tp " << tp;
  }
}

}  // namespace
}  // namespace testbed
