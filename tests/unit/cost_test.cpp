// The closed forms that counters, reports and the simulator share.
#include "kernels/cost.hpp"

#include <gtest/gtest.h>

namespace testbed {
namespace {

int64_t pairs_by_counting(int64_t first, int64_t n, int64_t window) {
  int64_t count = 0;
  for (int64_t i = first; i < first + n; ++i) {
    for (int64_t j = 0; j <= i; ++j) count += window == 0 || j > i - window ? 1 : 0;
  }
  return count;
}

TEST(Cost, visible_pairs_and_tokens_equal_a_count) {
  for (const int64_t window : {0, 1, 4, 16, 100}) {
    for (const int64_t first : {0, 3, 15, 16, 40}) {
      for (const int64_t n : {0, 1, 2, 17}) {
        const AttentionSequence s{.n_rows = n, .first_position = first};
        EXPECT_EQ(visible_pairs(s, window), pairs_by_counting(first, n, window))
            << window << " " << first << " " << n;
        int64_t tokens = 0;
        for (int64_t j = 0; j < first + n && n > 0; ++j) {
          tokens += window == 0 || j > first - window ? 1 : 0;
        }
        EXPECT_EQ(visible_tokens(s, window), tokens);
      }
    }
  }
}

TEST(Cost, linear_reads_true_weight_bytes_once) {
  const OpCost cost = linear_cost(3, 5, 7, 5, DType::BF16, DType::F32);
  EXPECT_EQ(cost.flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(cost.weight_bytes, 5 * 7 * 2);
  EXPECT_EQ(linear_cost(3, 5, 7, 0, DType::BF16, DType::F32).model_flops, 0);
}

TEST(Cost, llama3_70b_kv_is_320_kib_per_token) {
  const AttentionSequence s{.n_rows = 1, .first_position = 0};
  const OpCost layer = attention_cost({&s, 1}, 0, 64, 8, 128, DType::BF16);
  EXPECT_EQ(80 * layer.kv_bytes, 327'680);
  EXPECT_EQ(kv_write_cost(1, 8, 128, DType::BF16).kv_write_bytes, layer.kv_bytes);
}

}  // namespace
}  // namespace testbed
