// The closed forms of attention and its cache against counting, over runs of positions.
#include "kernels/attention_cost.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/base/contiguous_sequence.hpp"

namespace testbed {
namespace {

using Runs = std::vector<PositionRun>;

struct Count {
  int64_t pairs = 0;
  int64_t tokens = 0;
};

Count count(const Runs& rows, const Runs& keys, int64_t window) {
  Count c;
  for (const PositionRun& key_run : keys) {
    for (int64_t j = key_run.first; j < key_run.end(); ++j) {
      int64_t seen = 0;
      for (const PositionRun& row_run : rows) {
        for (int64_t p = row_run.first; p < row_run.end(); ++p) {
          seen += j <= p && (window == 0 || j > p - window) ? 1 : 0;
        }
      }
      c.pairs += seen;
      c.tokens += seen > 0 ? 1 : 0;
    }
  }
  return c;
}

Runs random_runs(std::mt19937& random) {
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  Runs runs;
  for (int64_t at = below(30); runs.size() < 4 && at < 80; at = runs.back().end() + below(12)) {
    runs.push_back({at, below(20)});  // some empty, some without a gap
  }
  return runs;
}

TEST(AttentionCost, visible_pairs_and_tokens_equal_a_count) {
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    const Runs rows = random_runs(random);
    const Runs keys = random_runs(random);
    for (const int64_t window : {0, 1, 4, 16, 100}) {
      const Count want = count(rows, keys, window);
      ASSERT_EQ(visible_pairs(rows, keys, window), want.pairs) << i << " " << window;
      ASSERT_EQ(visible_tokens(rows, keys, window), want.tokens) << i << " " << window;
    }
  }
}

TEST(AttentionCost, every_pair_is_seen_by_one_rank_of_a_ring) {
  const Runs all{{0, 1000}};
  const Runs ranks[] = {{{0, 250}, {750, 250}}, {{250, 500}}};
  int64_t pairs = 0;
  for (const Runs& rows : ranks) {
    for (const Runs& keys : ranks) pairs += visible_pairs(rows, keys, 0);
    EXPECT_EQ(visible_pairs(rows, all, 0), 1000 * 1001 / 4);  // zigzag: equal work
  }
  EXPECT_EQ(pairs, 1000 * 1001 / 2);
}

// 1M tokens squared, 128 heads of 576 + 512: 1.5e17 FLOPs need 64 bits and no loop over tokens.
TEST(AttentionCost, a_million_tokens) {
  const int64_t n = 1 << 20;
  const ContiguousSequence prefill(n, n);
  const AttentionSequence s = prefill.view();
  const KvShape mla{.n_kv_heads = 1, .head_dim = 576, .v_dim = 512, .v_in_k = true};
  const OpCost cost = attention_cost({&s, 1}, 0, 128, mla);
  EXPECT_EQ(cost.flops, int64_t{2} * (576 + 512) * 128 * (n * (n + 1) / 2));
  EXPECT_EQ(cost.kv_bytes, n * 576 * 2);
  EXPECT_EQ(cost.activation_bytes, n * 128 * (576 + 512) * 2);
}

TEST(AttentionCost, a_partial_result_is_f32_with_its_log_sum_exp) {
  const ContiguousSequence chunk(3, 10);
  const AttentionSequence s = chunk.view();
  const KvShape kv{.n_kv_heads = 2, .head_dim = 24, .v_dim = 16};
  const OpCost whole = attention_cost({&s, 1}, 0, 4, kv);
  const OpCost part = attention_cost({&s, 1}, 0, 4, kv, true);
  EXPECT_EQ(whole.activation_bytes, 3 * 4 * (24 + 16) * 2);
  EXPECT_EQ(part.activation_bytes, 3 * 4 * (24 * 2 + 16 * 4 + 4));
  EXPECT_EQ(part.flops, 2 * (24 + 16) * 4 * (8 + 9 + 10));
  EXPECT_EQ(part.kv_bytes, 10 * 2 * (24 + 16) * 2);
  EXPECT_EQ(merge_attention_cost(3, 4, 16).activation_bytes, 3 * (3 * 4 * (16 + 1) * 4));
  EXPECT_EQ(finish_attention_cost(3, 4, 16, true, DType::BF16).activation_bytes,
            3 * 4 * (17 * 4 + 16 * 2));
  EXPECT_EQ(finish_attention_cost(3, 4, 16, true, DType::BF16).weight_bytes, 4 * 4);
}

TEST(AttentionCost, llama3_70b_kv_is_320_kib_per_token) {
  const ContiguousSequence one(1, 1);
  const AttentionSequence s = one.view();
  const KvShape kv{.n_kv_heads = 8, .head_dim = 128, .v_dim = 128};
  const OpCost layer = attention_cost({&s, 1}, 0, 64, kv);
  EXPECT_EQ(80 * layer.kv_bytes, 327'680);
  EXPECT_EQ(kv_write_cost(1, kv).kv_write_bytes, layer.kv_bytes);
  EXPECT_EQ(gather_blocks_cost(16, kv).activation_bytes, 2 * 16 * layer.kv_bytes);
  EXPECT_EQ(gather_blocks_cost(16, kv).kv_bytes, 0);  // attention counts what is read of the cache
}

// DeepSeek-V3: one latent of 512 and a rotated part of 64 per token and layer, 61 layers, BF16.
TEST(AttentionCost, deepseek_v3_kv_is_70272_bytes_per_token) {
  const KvShape kv{.n_kv_heads = 1, .head_dim = 576, .v_dim = 512, .v_in_k = true};
  EXPECT_EQ(61 * kv_write_cost(1, kv).kv_write_bytes, 70'272);
}

// Keys and values of 128 heads made from the latents of 10 tokens: the cache is read as often as
// without them, and what is made are activations.
TEST(AttentionCost, pages_made_from_the_cache_are_activations) {
  const ContiguousSequence all(10, 10);
  const AttentionSequence s = all.view();
  const KvShape latents{.n_kv_heads = 1, .head_dim = 576, .v_dim = 512, .v_in_k = true};
  const KvShape pages{.n_kv_heads = 128, .head_dim = 192, .v_dim = 128, .cached_elements = 576};
  const OpCost expanded = attention_cost({&s, 1}, 0, 128, pages);
  EXPECT_EQ(expanded.kv_bytes, attention_cost({&s, 1}, 0, 128, latents).kv_bytes);
  EXPECT_EQ(expanded.activation_bytes, 2 * 10 * 128 * (192 + 128) * 2);  // q, out; k, v
  EXPECT_EQ(kv_write_cost(10, pages).kv_write_bytes, 0);
}

}  // namespace
}  // namespace testbed
