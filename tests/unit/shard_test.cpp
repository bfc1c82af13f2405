// Which slice a rank owns, which layers a chunk has, which splits are legal, in which order a stage
// works.
#include "parallel/shard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/base/errors.hpp"
#include "parallel/pipeline.hpp"
#include "runtime/config/split.hpp"

namespace testbed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig toy(int64_t n_heads, int64_t n_kv_heads, int64_t n_layers = 4) {
  ModelConfig config;
  config.name = "toy";
  config.n_layers = n_layers;
  config.n_heads = n_heads;
  config.n_kv_heads = n_kv_heads;
  config.head_dim = 16;
  config.d_model = n_heads * 16;
  config.d_ff = 96;
  config.vocab_size = 512;
  config.layer_windows.assign(static_cast<size_t>(n_layers), 0);
  return config;
}

// Equal layers, each of which may begin a chunk.
std::vector<IndexRange> split_equal(int64_t n_layers, int n_chunks, int64_t cost, int64_t head) {
  const std::vector<int64_t> costs(static_cast<size_t>(n_layers), cost);
  std::vector<int64_t> starts(costs.size());
  std::iota(starts.begin(), starts.end(), 0);
  return split_layers(costs, starts, n_chunks, head);
}

int64_t largest_cost(const std::vector<int64_t>& costs,
                     const std::vector<IndexRange>& chunks,
                     int64_t head) {
  int64_t largest = 0;
  for (const IndexRange& chunk : chunks) {
    const auto cost =
        std::accumulate(costs.begin() + chunk.begin, costs.begin() + chunk.end, int64_t{0});
    largest = std::max(largest, cost + (&chunk == &chunks.back() ? head : 0));
  }
  return largest;
}

// Of every way to part the units.
int64_t smallest_largest(const std::vector<int64_t>& costs,
                         const std::vector<int64_t>& starts,
                         size_t first_unit,
                         int n_chunks,
                         int64_t head) {
  const auto sum = [&](size_t from, size_t to) {
    const auto end = to < starts.size() ? starts[to] : static_cast<int64_t>(costs.size());
    return std::accumulate(costs.begin() + starts[from], costs.begin() + end, int64_t{0});
  };
  if (n_chunks == 1) return sum(first_unit, starts.size()) + head;
  int64_t best = INT64_MAX;
  for (size_t next = first_unit + 1; next + static_cast<size_t>(n_chunks) - 1 <= starts.size();
       ++next)
    best = std::min(
        best,
        std::max(sum(first_unit, next), smallest_largest(costs, starts, next, n_chunks - 1, head)));
  return best;
}

TEST(Shard, parts_tile_the_range_and_differ_by_one_granule) {
  for (const int64_t granularity : {1, 32}) {
    for (const int parts : {1, 2, 3, 5, 7}) {
      int64_t next = 0;
      for (int p = 0; p < parts; ++p) {
        const IndexRange range = split_range(96, parts, p, granularity);
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(range.begin % granularity, 0);
        EXPECT_LE(range.size(), (96 / granularity + parts - 1) / parts * granularity);
        next = range.end;
      }
      EXPECT_EQ(next, 96);
    }
  }
}

TEST(Shard, D2_odd_vocabularies_are_covered_once) {
  for (const auto& [vocab, tp] : {std::pair<int64_t, int>{32001, 2}, {32064, 5}, {3, 8}}) {
    int64_t next = 0;
    for (int rank = 0; rank < tp; ++rank) {
      const IndexRange range = vocabulary_shard(vocab, tp, rank);
      EXPECT_EQ(range.begin, next);
      EXPECT_GE(range.size(), 0);
      next = range.end;
    }
    EXPECT_EQ(next, vocab);
  }
}

TEST(Shard, D3_kv_heads_are_replicated_when_tp_exceeds_them) {
  int n_counted = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const HeadShard shard = shard_heads(8, 2, 8, rank);
    EXPECT_EQ(shard.heads, (IndexRange{rank, rank + 1}));
    EXPECT_EQ(shard.kv_heads, (IndexRange{rank / 4, rank / 4 + 1}));
    EXPECT_THAT(shard.head_to_kv, ElementsAre(0));
    n_counted += shard.first_replica ? 1 : 0;
  }
  EXPECT_EQ(n_counted, 2);
  EXPECT_THAT(shard_heads(8, 4, 2, 1).head_to_kv, ElementsAre(0, 0, 1, 1));
}

TEST(Shard, layers_are_split_by_cost_with_the_head) {
  // A head as heavy as three layers: the last stage gets fewer.
  EXPECT_THAT(split_equal(8, 2, 100, 300), ElementsAre(IndexRange{0, 5}, IndexRange{5, 8}));
  EXPECT_THAT(split_equal(4, 4, 1, 1000),
              ElementsAre(IndexRange{0, 1}, IndexRange{1, 2}, IndexRange{2, 3}, IndexRange{3, 4}));
  EXPECT_THAT(split_equal(5, 1, 1, 9), ElementsAre(IndexRange{0, 5}));
  for (int chunks = 1; chunks <= 7; ++chunks) {
    int64_t next = 0;
    for (const IndexRange& range : split_equal(7, chunks, 10, 25)) {
      EXPECT_EQ(range.begin, next);
      EXPECT_GE(range.size(), 1);
      next = range.end;
    }
    EXPECT_EQ(next, 7);
  }
}

TEST(Shard, equal_layers_are_split_evenly) {
  EXPECT_THAT(split_equal(10, 4, 7, 0),
              ElementsAre(IndexRange{0, 3}, IndexRange{3, 5}, IndexRange{5, 7}, IndexRange{7, 10}));
  for (const auto& chunk : split_equal(126, 14, 3'187'675'136, 2'101'346'304))
    EXPECT_LE(chunk.size(), 10);
}

TEST(Shard, unequal_layers_keep_the_largest_chunk_smallest) {
  const std::vector<std::vector<int64_t>> layers{
      {1, 1, 1, 9, 9, 9, 9}, {9, 1, 1, 9, 1, 1, 9, 1}, {3, 5, 7, 5, 3, 4, 4, 8, 2}, {5, 5, 1}};
  for (const auto& costs : layers) {
    for (const auto& starts : {std::vector<int64_t>{0, 1, 2}, {0, 2}, {0}}) {
      std::vector<int64_t> all = starts;  // and every layer from 3 on
      for (auto i = static_cast<int64_t>(3); i < static_cast<int64_t>(costs.size()); ++i)
        all.push_back(i);
      for (const int64_t head : {0, 6, 30}) {
        for (int chunks = 1; chunks <= static_cast<int>(all.size()); ++chunks) {
          const std::vector<IndexRange> split = split_layers(costs, all, chunks, head);
          ASSERT_EQ(static_cast<int>(split.size()), chunks);
          int64_t next = 0;
          for (const IndexRange& range : split) {
            EXPECT_EQ(range.begin, next);
            EXPECT_NE(std::find(all.begin(), all.end(), range.begin), all.end());
            EXPECT_GE(range.size(), 1);
            next = range.end;
          }
          EXPECT_EQ(next, static_cast<int64_t>(costs.size()));
          EXPECT_EQ(largest_cost(costs, split, head),
                    smallest_largest(costs, all, 0, chunks, head));
        }
      }
    }
  }
}

TEST(Pipeline, every_stage_works_in_the_same_order) {
  EXPECT_THAT(pipeline_schedule(3, 2, 1),
              ElementsAre(PipelineSlot{0, 0}, PipelineSlot{1, 0}, PipelineSlot{2, 0}));
  EXPECT_THAT(pipeline_schedule(4, 2, 2),
              ElementsAre(PipelineSlot{0, 0},
                          PipelineSlot{1, 0},
                          PipelineSlot{0, 1},
                          PipelineSlot{1, 1},
                          PipelineSlot{2, 0},
                          PipelineSlot{3, 0},
                          PipelineSlot{2, 1},
                          PipelineSlot{3, 1}));
}

TEST(Split, D1_heads_that_do_not_divide_list_the_legal_degrees) {
  const auto reason = why_illegal(toy(28, 4), {.tp = 8}, {}, 1);
  ASSERT_TRUE(reason);
  EXPECT_THAT(*reason, HasSubstr("28 heads do not divide by 8"));
  EXPECT_THAT(*reason, HasSubstr("1, 2, 4, 28"));
  EXPECT_THAT(legal_tp(toy(28, 4), 1), ElementsAre(1, 2, 4, 28));
}

TEST(Split, D3_three_kv_heads_on_four_ranks_are_refused) {
  EXPECT_TRUE(why_illegal_tp(toy(12, 3), 4, 1));
  EXPECT_FALSE(why_illegal_tp(toy(12, 3), 3, 1));
  EXPECT_FALSE(why_illegal_tp(toy(8, 2), 8, 1));
}

TEST(Split, D4_quantised_blocks_are_cut_unevenly_or_refused) {
  const ModelConfig config = toy(8, 8);  // d_ff 96 = 3 blocks of 32
  EXPECT_FALSE(why_illegal_tp(config, 2, 32));
  EXPECT_EQ(split_range(96, 2, 0, 32).size() + split_range(96, 2, 1, 32).size(), 96);
  EXPECT_TRUE(why_illegal_tp(config, 4, 32));  // a rank would get no block
  EXPECT_TRUE(why_illegal_tp(config, 8, 32));  // a head of 16 columns cuts a block
}

// A width that is no multiple of the group: the last part is short, and is a part.
TEST(Split, D4_widths_are_cut_at_groups_with_a_short_last_one) {
  EXPECT_EQ(split_range(160, 2, 0, 128), (IndexRange{0, 128}));
  EXPECT_EQ(split_range(160, 2, 1, 128), (IndexRange{128, 160}));
  EXPECT_EQ(split_range(168, 4, 1, 32), (IndexRange{64, 128}));
  EXPECT_EQ(split_range(168, 4, 3, 32), (IndexRange{160, 168}));
  EXPECT_EQ(split_range(20, 2, 1, 32), (IndexRange{20, 20}));
  ModelConfig config = toy(8, 8);  // heads of 16: 128 columns of o_proj
  config.d_ff = 70;                // 32, 32 and 6
  EXPECT_FALSE(why_illegal_tp(config, 2, 32));
  EXPECT_TRUE(why_illegal_tp(config, 4, 32));  // one rank more than groups
}

TEST(Split, more_chunks_than_layers_are_refused) {
  EXPECT_TRUE(why_illegal(toy(8, 8), {.pp = 5}, {}, 1));
  EXPECT_TRUE(why_illegal(toy(8, 8), {.pp = 2}, {.virtual_stages = 3}, 1));
  EXPECT_FALSE(why_illegal(toy(8, 8), {.pp = 2}, {.virtual_stages = 2}, 1));
}

TEST(Split, interleaving_takes_up_to_pp_microbatches_or_a_multiple) {
  for (const auto& [microbatches, legal] : {std::pair{1, true}, {2, true}, {3, false}, {4, true}}) {
    const ParallelConfig parallel{.microbatches = microbatches, .virtual_stages = 2};
    EXPECT_EQ(!why_illegal(toy(8, 8), {.pp = 2}, parallel, 1), legal) << microbatches;
  }
}

TEST(Split, D17_world_size_mismatch_shows_the_arithmetic) {
  try {
    resolve_mesh({.tp = 2, .dp = 1}, 3);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("3 ranks \u2260 tp 2 \u00b7 pp 1 \u00b7 cp 1 \u00b7 dp 1 = 2"));
  }
  EXPECT_THROW(resolve_mesh({.tp = 2}, 3), ConfigError);
  EXPECT_EQ(resolve_mesh({.tp = 2}, 8).dp, 4);
  EXPECT_EQ(resolve_mesh({.tp = 2, .cp = 2, .ep = 4}, 8),
            (Mesh{.tp = 2, .cp = 2, .dp = 2, .pp = 1, .ep = 4}));
  EXPECT_EQ(simulated_mesh({.tp = 2, .cp = 4, .ep = 8}),
            (Mesh{.tp = 2, .cp = 4, .dp = 1, .pp = 1, .ep = 8}));
}

}  // namespace
}  // namespace testbed
