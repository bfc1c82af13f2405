// Tokens of experts, and what ranks send one another for them: timelines with known answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/errors.hpp"
#include "runtime/measure/analysis.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;

TEST(Experts, tokens_touched_and_balance_of_a_layer) {
  const RunRecord record = analyse(experts_input());
  ASSERT_TRUE(record.phases.at(0).experts.has_value());
  const ExpertsRecord& experts = *record.phases.at(0).experts;
  EXPECT_EQ(experts.n_experts, 4);
  EXPECT_EQ(experts.top_k, 2);
  EXPECT_EQ(experts.exchange, "all-to-all");
  ASSERT_EQ(experts.per_layer.size(), 1U);
  const ExpertLayerRecord& layer = experts.per_layer[0];
  EXPECT_EQ(layer.layer, 0);
  EXPECT_EQ(layer.passes, 2);  // replicas are apart; repeat 1 is not counted
  EXPECT_THAT(layer.tokens_per_expert, ElementsAre(3, 2, 2, 1));
  EXPECT_DOUBLE_EQ(layer.touched, (3 + 2) / 2.0);
  // 4 (1 - (1/2)^B) for B = 3 and B = 1.
  EXPECT_DOUBLE_EQ(layer.touched_uniform, (3.5 + 2.0) / 2.0);
  EXPECT_DOUBLE_EQ(layer.balance, (8.0 / 4) / 3);
  // expert_linear alone: 1000 to 4000 of the ranks, over two passes.
  EXPECT_EQ(layer.touched_bytes, 5000);
}

TEST(Experts, bytes_between_ranks_are_of_world_ranks) {
  const RunRecord record = analyse(experts_input());
  EXPECT_THAT(record.phases.at(0).experts->all_to_all_bytes,
              ElementsAre(ElementsAre(100, 300, 0, 0),
                          ElementsAre(50, 0, 0, 0),
                          ElementsAre(0, 0, 0, 70),
                          ElementsAre(0, 0, 20, 0)));
}

TEST(Experts, without_an_exchange_there_is_no_matrix) {
  AnalysisInput input = experts_input();
  for (RankTimeline& timeline : input.timelines) {
    for (ExpertEvent& event : timeline.experts) event.sent_bytes.clear();
  }
  EXPECT_TRUE(analyse(input).phases.at(0).experts->all_to_all_bytes.empty());
}

TEST(Experts, a_rank_without_tokens_is_no_pass) {
  AnalysisInput input = experts_input();
  for (ExpertEvent& event : input.timelines[2].experts) {
    event.n_tokens = 0;
    event.tokens_per_expert = {0, 0, 0, 0};
  }
  const RunRecord record = analyse(input);
  const ExpertLayerRecord& layer = record.phases.at(0).experts->per_layer.at(0);
  EXPECT_EQ(layer.passes, 1);
  EXPECT_DOUBLE_EQ(layer.touched, 3.0);
  EXPECT_DOUBLE_EQ(layer.touched_uniform, 3.5);
  EXPECT_DOUBLE_EQ(layer.balance, (6.0 / 4) / 3);
}

TEST(Experts, phases_and_layers_are_apart) {
  AnalysisInput input = experts_input();
  RankBuilder b(input.mesh, 0);
  b.at(Phase::decode, 0, 5, Site::experts).experts(1, {0, 1, 0, 1}, {});
  b.at(Phase::prefill, 0, 0, Site::experts).experts(1, {1, 1, 0, 0}, {});
  for (const ExpertEvent& event : b.t.experts) input.timelines[0].experts.push_back(event);
  const RunRecord record = analyse(input);
  const auto& layers = record.phases.at(0).experts->per_layer;
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_THAT(layers[0].tokens_per_expert, ElementsAre(3, 2, 2, 1));
  EXPECT_EQ(layers[1].layer, 5);
  EXPECT_THAT(layers[1].tokens_per_expert, ElementsAre(0, 1, 0, 1));
  EXPECT_DOUBLE_EQ(layers[1].balance, 0.5);
}

TEST(Experts, a_model_without_them_has_none) {
  EXPECT_FALSE(analyse(late_rank_input()).phases.at(0).experts.has_value());
}

TEST(Experts, tokens_that_do_not_add_up_are_refused) {
  AnalysisInput one_lost = experts_input();
  one_lost.timelines[0].experts[0].tokens_per_expert = {2, 2, 1, 0};
  EXPECT_THROW(analyse(one_lost), Error);
  AnalysisInput other_model = experts_input();
  other_model.run.experts.n_experts = 8;
  EXPECT_THROW(analyse(other_model), Error);
}

TEST(Experts, events_survive_the_wire) {
  const RankTimeline before = experts_input().timelines[0];
  const RankTimeline after = parse_timeline(serialise(before));
  ASSERT_EQ(after.experts.size(), 2U);
  EXPECT_EQ(after.experts[1].scope.repeat, 1);
  EXPECT_EQ(after.experts[1].scope.site, Site::experts);
  EXPECT_EQ(after.experts[0].n_tokens, 3);
  EXPECT_THAT(after.experts[0].tokens_per_expert, ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(after.experts[0].sent_bytes, ElementsAre(100, 300));
  Bytes cut = serialise(before);
  cut.resize(cut.size() - 1);
  EXPECT_THROW(parse_timeline(cut), std::logic_error);
}

}  // namespace
}  // namespace testbed
