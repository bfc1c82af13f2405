// The rows of a planned step on each cp rank, what they attend to, and what that costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/config/presets.hpp"
#include "runtime/plan/step_ops.hpp"
#include "runtime/plan/step_roofline.hpp"
#include "runtime/plan/step_rows.hpp"

namespace testbed::plan {
namespace {

using testing::Each;

ModelConfig model(const std::string& name) { return read_model_config(locate_model(name)); }

// By op, of all cp ranks together.
std::map<std::string, OpCost> costs(const ModelConfig& config, int cp, const StepShape& shape) {
  const Split split{.cp = cp};
  std::map<std::string, OpCost> by_op;
  for (int rank = 0; rank < cp; ++rank) {
    for (const PlannedOp& op : step_ops(config, position_of(split, 0, rank), shape, {})) {
      by_op[std::string(op.name)] += op.cost;
    }
  }
  return by_op;
}

void check_ring(const ModelConfig& config, int cp, const StepShape& shape) {
  const Split split{.cp = cp};
  int64_t n_rows = 0;
  int64_t n_stored = 0;
  int64_t n_logits = 0;
  std::vector<int64_t> n_sent(static_cast<size_t>(cp), 0);  // [ring step]
  std::vector<int64_t> n_arrived(static_cast<size_t>(cp), 0);
  for (int rank = 0; rank < cp; ++rank) {
    const StepRows rows(config, position_of(split, 0, rank), shape);
    n_rows += rows.n_rows();
    n_stored += rows.n_stored();
    n_logits += rows.n_logits();
    const std::vector<AttendedPart> parts = rows.parts(0);
    ASSERT_EQ(parts.size(), static_cast<size_t>(cp));
    for (size_t s = 0; s < parts.size(); ++s) {
      n_sent[s] += parts[s].n_leaving;
      n_arrived[s] += parts[s].n_arrived;
      EXPECT_LE(parts[s].sequences.size(), static_cast<size_t>(shape.batch));
      EXPECT_EQ(parts[s].sequences.empty(), rows.n_rows() == 0);
    }
  }
  EXPECT_EQ(n_rows, shape.n_tokens());
  EXPECT_EQ(n_stored, shape.n_tokens());
  EXPECT_EQ(n_logits, shape.batch);
  for (size_t s = 1; s < n_sent.size(); ++s) EXPECT_EQ(n_arrived[s], n_sent[s - 1]);
  EXPECT_EQ(n_sent.back(), 0);
}

// Shorter than a block for each rank: some have no rows, and pass blocks on all the same.
TEST(PlanRows, short_prompts_leave_ranks_without_rows) {
  const ModelConfig config = model("llama3-8b");
  for (const int64_t prompt : {1, 15, 17, 100, 250}) {
    for (const int64_t batch : {1, 3, 8}) {
      const StepShape shape = prefill_shape(batch, prompt);
      check_ring(config, 8, shape);
      const OpCost alone = costs(config, 1, shape)["attention"];
      const OpCost around = costs(config, 8, shape)["attention"];
      EXPECT_EQ(around.flops, alone.flops) << prompt << " x " << batch;
      EXPECT_EQ(around.model_flops, alone.model_flops) << prompt << " x " << batch;
    }
  }
}

TEST(PlanRows, one_rank_has_all_rows_of_a_block) {
  const StepShape shape = prefill_shape(1, 16);
  std::vector<int64_t> n_rows;
  for (int rank = 0; rank < 8; ++rank) {
    n_rows.push_back(StepRows(model("llama3-8b"), position_of({.cp = 8}, 0, rank), shape).n_rows());
  }
  EXPECT_EQ(std::count(n_rows.begin(), n_rows.end(), 16), 1);
  EXPECT_EQ(std::count(n_rows.begin(), n_rows.end(), 0), 7);
}

// Each request counts the ranks from another one: as many requests as ranks are spread evenly.
TEST(PlanRows, requests_rotate_over_the_ranks) {
  constexpr int cp = 4;
  for (const StepShape& shape : {prefill_shape(cp, 80), decode_shape(cp, 81)}) {
    std::vector<int64_t> n_held;
    std::vector<int64_t> n_logits;
    for (int rank = 0; rank < cp; ++rank) {
      const StepRows rows(model("llama3-8b"), position_of({.cp = cp}, 0, rank), shape);
      n_held.push_back(rows.n_stored());
      n_logits.push_back(rows.n_logits());
    }
    EXPECT_THAT(n_held, Each(shape.n_tokens() / cp));
    EXPECT_THAT(n_logits, Each(shape.decode ? cp : 1));
  }
}

// What a sequence attends to does not depend on the others.
TEST(PlanRows, batches_attend_like_their_sequences) {
  const ModelConfig config = model("gemma3-27b");
  for (const int cp : {1, 4}) {
    const OpCost one = costs(config, cp, prefill_shape(1, 1500))["attention"];
    const OpCost four = costs(config, cp, prefill_shape(4, 1500))["attention"];
    EXPECT_EQ(four.flops, 4 * one.flops);
    EXPECT_EQ(four.kv_bytes, 4 * one.kv_bytes);
    EXPECT_EQ(four.activation_bytes, 4 * one.activation_bytes);
  }
}

// The cache is read as the latents it holds; keys and values of all heads are activations.
TEST(PlanRows, expanded_pages_are_no_cache) {
  const ModelConfig config = model("deepseek-v2");
  constexpr int64_t batch = 3;
  constexpr int64_t prompt = 100;
  auto by_op = costs(config, 1, prefill_shape(batch, prompt));
  const int64_t latents = batch * prompt * 60 * (512 + 64) * 2;  // bytes: layers, bf16
  EXPECT_EQ(by_op["attention"].kv_bytes, latents);
  EXPECT_EQ(by_op["KV write"].kv_write_bytes, latents);
  OpCost all;
  for (const auto& [name, cost] : by_op) all += cost;
  EXPECT_EQ(all.kv_bytes, latents);
  EXPECT_EQ(all.kv_write_bytes, latents);
}

// F32, one a head and layer: with the attention, or where partial results are finished.
TEST(PlanRows, sinks_are_read_once) {
  const ModelConfig config = model("gpt-oss-120b");
  const int64_t sinks = int64_t{36} * 64 * 4;  // bytes
  for (const StepShape& shape : {prefill_shape(2, 300), decode_shape(2, 300)}) {
    auto alone = costs(config, 1, shape);
    EXPECT_EQ(alone["attention"].weight_bytes, sinks);
    EXPECT_EQ(alone.count("finish"), 0U);
    auto over_cp = costs(config, 2, shape);
    EXPECT_EQ(over_cp["attention"].weight_bytes, 0);
    EXPECT_EQ(over_cp["finish"].weight_bytes, 2 * sinks);
  }
}

}  // namespace
}  // namespace testbed::plan
