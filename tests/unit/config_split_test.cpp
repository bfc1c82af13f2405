// Which splits are legal for the families with experts, latent attention and shared keys and
// values, and where their pipelines are cut. The rest of split.hpp is in shard_test.cpp.
#include <chrono>

#include "runtime/config/model_readers.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed {
namespace {

using test::fixture_path;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig fixture(const std::string& model) {
  return model_config_from_hf(fixture_path("models/" + model));
}
ModelConfig preset(const std::string& name) { return read_model_config(locate_model(name)); }

std::string refusal(const ModelConfig& model, const Mesh& mesh, const ParallelConfig& p = {}) {
  return why_illegal(model, mesh, p, 1).value_or("");
}

TEST(Split, every_kind_of_layer_must_divide) {
  const ModelConfig model = fixture("gemma4_moe");  // 8 heads; 4 KV heads, 2 on full layers
  EXPECT_THAT(legal_tp(model, 1), ElementsAre(1, 2, 4, 8));
  ModelConfig three = model;
  three.n_heads = 12;
  three.full_attention->n_kv_heads = 3;
  EXPECT_THAT(refusal(three, {.tp = 2}), HasSubstr("3 KV heads"));
  EXPECT_THAT(legal_tp(three, 1), ElementsAre(1, 12));
}

TEST(Split, latent_attention_divides_by_heads_alone) {
  EXPECT_THAT(legal_tp(fixture("deepseek_v3"), 1), ElementsAre(1, 2, 4, 8));
  EXPECT_EQ(legal_tp(preset("deepseek-v3"), 1).back(), 128);
}

TEST(Split, experts_are_cut_over_tp_only_without_ep) {
  ModelConfig narrow = fixture("mixtral");  // no dense MLP, 8 heads
  narrow.moe->d_ff = 2;
  EXPECT_THAT(refusal(narrow, {.tp = 4}),
              AllOf(HasSubstr("an expert's width of 2 has no share"), HasSubstr("mixtral: 1, 2")));
  EXPECT_EQ(refusal(narrow, {.tp = 4, .ep = 4}), "");
  ModelConfig shared = fixture("deepseek_v3");
  shared.moe->shared_d_ff = 2;
  EXPECT_THAT(refusal(shared, {.tp = 4, .ep = 4}), HasSubstr("a shared experts' width of 2"));
}

TEST(Split, ep_divides_the_ranks_of_a_stage) {
  const ModelConfig mixtral = fixture("mixtral");  // 8 experts
  EXPECT_EQ(refusal(mixtral, {.tp = 2, .cp = 2, .dp = 2, .ep = 8}), "");
  EXPECT_EQ(refusal(mixtral, {.dp = 3, .ep = 3}), "") << "8 experts on 3 ranks: D9";
  EXPECT_EQ(refusal(mixtral, {.cp = 2, .pp = 3, .ep = 2}), "");
  EXPECT_THAT(refusal(mixtral, {.tp = 2, .dp = 3, .ep = 4}),
              AllOf(HasSubstr("--ep 4"),
                    HasSubstr("tp 2 x cp 1 x dp 3 = 6 ranks"),
                    HasSubstr("legal for mixtral: 1, 2, 3, 6")));
  EXPECT_THAT(refusal(mixtral, {.dp = 16, .ep = 16}),
              AllOf(HasSubstr("only 8 experts"), HasSubstr("1, 2, 4, 8")));
  EXPECT_THAT(refusal(fixture("qwen3"), {.dp = 2, .ep = 2}),
              AllOf(HasSubstr("no experts"), HasSubstr("legal for qwen3: 1")));
}

TEST(Split, experts_are_all_reduced_within_a_tp_group_alone) {
  const ModelConfig mixtral = fixture("mixtral");
  const ParallelConfig all_reduce{.expert_exchange = ExpertExchange::all_reduce};
  EXPECT_EQ(refusal(mixtral, {.tp = 4, .dp = 2, .ep = 4}, all_reduce), "");
  EXPECT_EQ(refusal(mixtral, {.tp = 4}, all_reduce), "");
  EXPECT_THAT(refusal(mixtral, {.tp = 2, .dp = 2, .ep = 4}, all_reduce),
              AllOf(HasSubstr("--expert-exchange all-reduce"), HasSubstr("auto, all-to-all")));
  EXPECT_NE(refusal(mixtral, {.tp = 4, .ep = 2}, all_reduce), "");
  const ParallelConfig all_to_all{.expert_exchange = ExpertExchange::all_to_all};
  EXPECT_EQ(refusal(mixtral, {.tp = 4, .ep = 4}, all_to_all), "");
}

TEST(Split, layers_that_share_keys_and_values_stay_together) {
  const ModelConfig model = fixture("gemma4_dense");  // 3 reads 1, 4 reads 1, 5 reads 2
  EXPECT_THAT(layers_of_chunks(model, 2), ElementsAre(IndexRange{0, 1}, IndexRange{1, 6}));
  EXPECT_EQ(refusal(model, {.pp = 2}), "");
  EXPECT_THAT(refusal(model, {.pp = 3}),
              AllOf(HasSubstr("share keys and values"), HasSubstr("up to 2")));
  EXPECT_NE(refusal(model, {.pp = 2}, {.virtual_stages = 2}), "");
  EXPECT_EQ(refusal(truncated_to(model, 3), {.pp = 3}), "");
}

TEST(Split, dense_layers_weigh_less_than_experts) {
  const ModelConfig v3 = preset("deepseek-v3");
  const std::vector<IndexRange> chunks = layers_of_chunks(v3, 16);
  EXPECT_EQ(chunks.front(), (IndexRange{0, 6})) << "3 dense layers and 3 of experts";
  int64_t largest = 0;
  for (const IndexRange& chunk : chunks) {
    int64_t cost = chunk.end == v3.n_layers ? v3.vocab_size * v3.d_model : 0;
    for (int64_t i = chunk.begin; i < chunk.end; ++i) cost += v3.layer_parameters(i);
    largest = std::max(largest, cost);
  }
  // 58 layers of experts on 16 chunks: at least 4 on one of them.
  EXPECT_LE(largest, 4 * v3.layer_parameters(60) + v3.vocab_size * v3.d_model);
}

TEST(Split, cutting_a_deep_model_is_fast) {
  const ModelConfig model = preset("llama3.1-405b");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(layers_of_chunks(model, 16).back().end, 126);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
}

TEST(Split, devices_of_every_degree_are_counted) {
  ClusterSpec cluster;
  cluster.name = "small";
  const auto reason = why_too_many_devices({.tp = 8, .cp = 4, .dp = 2, .pp = 1024}, cluster);
  ASSERT_TRUE(reason);
  EXPECT_THAT(*reason, HasSubstr("tp 8 x pp 1024 x cp 4 x dp 2 = 65536 devices, and small has"));
}

}  // namespace
}  // namespace testbed
