// Experts in the plan: what a rank of an expert group has, and when decode turns compute-bound.
#include <gtest/gtest.h>

#include "runtime/config/presets.hpp"
#include "runtime/plan/batch_limit.hpp"
#include "runtime/plan/fits.hpp"
#include "runtime/plan/links.hpp"
#include "runtime/plan/moe.hpp"

namespace testbed::plan {
namespace {

ModelConfig model(const std::string& name) { return read_model_config(locate_model(name)); }

TEST(PlanExperts, chance_equals_an_enumeration) {
  // Of the 6 pairs of 4 experts one misses both of the first two.
  EXPECT_DOUBLE_EQ(chance_of_any(4, 2, 2), 5.0 / 6.0);
  EXPECT_DOUBLE_EQ(chance_of_any(8, 1, 2), 2.0 / 8.0);
  EXPECT_DOUBLE_EQ(chance_of_any(8, 7, 2), 1.0);
}

TEST(PlanExperts, ranks_add_up_to_the_group) {
  for (const int ep : {1, 2, 3, 8}) {
    for (const int64_t n_tokens : {1, 7, 4096}) {
      int64_t n_pairs = 0;
      int64_t n_touched = 0;
      for (int rank = 0; rank < ep; ++rank) {
        const ExpertLoad load = expert_load(64, 6, ep, rank, {n_tokens, n_tokens, n_tokens});
        EXPECT_LE(load.n_touched, load.n_pairs);
        EXPECT_EQ(load.n_touched == 0, load.n_pairs == 0);
        n_pairs += load.n_pairs;
        n_touched += load.n_touched;
      }
      EXPECT_EQ(n_pairs, 6 * n_tokens);
      EXPECT_NEAR(static_cast<double>(n_touched),
                  expected_experts(64, 6, static_cast<double>(n_tokens)),
                  0.5);
    }
  }
}

// A token goes once to each rank that has any of its experts, and copies go where it goes.
TEST(PlanExperts, tokens_travel_once_to_a_rank) {
  const ExpertLoad one = expert_load(64, 6, 1, 0, {100, 100, 100});
  EXPECT_EQ(one.n_sent, 100);
  EXPECT_EQ(one.n_received, 100);
  const ExpertLoad whole = expert_load(8, 8, 4, 1, {100, 100, 25});
  EXPECT_EQ(whole.n_sent, 25 * 4);
  EXPECT_EQ(whole.n_received, 100);
  const ExpertLoad copied = expert_load(64, 6, 2, 0, {2, 1, 1});
  EXPECT_EQ(copied.n_pairs, 6);
  EXPECT_EQ(copied.n_touched, 3);
}

// Experts go to the ranks of an expert group whole; the rest is split over tp or copied.
TEST(PlanExperts, resident_weights_are_split_over_ep) {
  const ModelConfig config = model("qwen3-30b-a3b");
  const int64_t experts = int64_t{48} * 128 * 3 * 2048 * 768 * 2;  // bytes, bf16
  const int64_t whole = resident_weight_bytes(config, {}, bf16_format);
  for (const int ep : {2, 4, 8}) {
    const ShardPosition position = position_of({.cp = ep, .ep = ep}, 0);
    EXPECT_EQ(whole - resident_weight_bytes(config, position, bf16_format),
              experts / ep * (ep - 1));
  }
}

// Weights grow with the batch: the limit is where the intensity reaches the ridge all the same.
TEST(PlanExperts, batch_limit_counts_touched_experts) {
  const ModelConfig config = model("qwen3-30b-a3b");
  const DecodePass pass = decode_pass(config, 256, {});
  EXPECT_EQ(pass.expert_bytes, 48.0 * 128 * 3 * 2048 * 768 * 2);
  EXPECT_DOUBLE_EQ(pass.weights_read(1.0), pass.weight_bytes + pass.expert_bytes / 128 * 8);
  const auto batch = compute_bound_batch(pass, 100.0);
  ASSERT_TRUE(batch);
  EXPECT_NEAR(pass.intensity(*batch), 100.0, 1e-5);
  // Where few are touched.
  const auto small = compute_bound_batch(pass, 1.5);
  ASSERT_TRUE(small);
  EXPECT_NEAR(pass.intensity(*small), 1.5, 1e-5);
}

TEST(PlanExperts, reductions_of_a_layer) {
  EXPECT_EQ(all_reduces_of_layer(model("llama3-8b"), 0, false), 2);
  EXPECT_EQ(all_reduces_of_layer(model("gemma4-26b-a4b"), 0, false), 3);
  const ModelConfig v3 = model("deepseek-v3");  // shared experts
  EXPECT_EQ(all_reduces_of_layer(v3, 60, true), 2);
  EXPECT_EQ(all_gathers_of_layer(v3, 60, true), 0);
  const ModelConfig mixtral = model("mixtral-8x7b");
  EXPECT_EQ(all_reduces_of_layer(mixtral, 0, true), 1);
  EXPECT_EQ(all_gathers_of_layer(mixtral, 0, true), 1);
  EXPECT_EQ(all_reduces_of_layer(mixtral, 0, false), 2);
}

}  // namespace
}  // namespace testbed::plan
