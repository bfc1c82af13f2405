// Ring plans against brute force: every (query, key) pair that the mask and the window allow is met
// exactly once, and nothing travels further than it is needed.
#include "parallel/ring_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <tuple>

#include "tests/trials.hpp"
#include "tests/unit/ring_walk.hpp"

namespace testbed {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Case {
  int cp = 1;
  int64_t block_size = 1;
  int64_t window = 0;
};

struct Prompt {
  int64_t first = 0;  // positions before it are cached already
  int64_t n_rows = 0;
  std::vector<int> owners;  // [block]
};

// As seen by `rank`: only first_row differs.
std::vector<RingSequence> ring_of(const std::vector<Prompt>& prompts, const Case& c, int rank) {
  std::vector<RingSequence> ring;
  int64_t first_row = 0;
  int32_t next_block = 0;
  for (const Prompt& prompt : prompts) {
    RingSequence sequence{.first_row = first_row, .rows = {}, .blocks = {}};
    sequence.rows.resize(static_cast<size_t>(c.cp));
    sequence.blocks.resize(static_cast<size_t>(c.cp));
    const int64_t end = prompt.first + prompt.n_rows;
    for (size_t b = 0; b < prompt.owners.size(); ++b) {
      const auto owner = static_cast<size_t>(prompt.owners[b]);
      const int64_t first = static_cast<int64_t>(b) * c.block_size;
      const int64_t n = std::min(c.block_size, end - first);
      sequence.blocks[owner].push_back({next_block++, static_cast<int32_t>(n), first});
      const int64_t first_query = std::max(first, prompt.first);
      if (first + n > first_query) {
        sequence.rows[owner].push_back({first_query, first + n - first_query});
      }
    }
    for (const PositionRun& run : sequence.rows[static_cast<size_t>(rank)]) first_row += run.n;
    ring.push_back(std::move(sequence));
  }
  return ring;
}

std::vector<std::unique_ptr<RingPlan>> plans_of(const std::vector<Prompt>& prompts, const Case& c) {
  std::vector<std::unique_ptr<RingPlan>> plans;
  for (int rank = 0; rank < c.cp; ++rank) {
    plans.push_back(std::make_unique<RingPlan>(ring_of(prompts, c, rank), c.window, c.cp, rank));
  }
  return plans;
}

bool visible(int64_t query, int64_t key, int64_t window) {
  return key <= query && (window == 0 || key > query - window);
}

using Pair = std::tuple<size_t, int64_t, int64_t>;  // prompt, query, key

std::multiset<Pair> unsplit_pairs(const std::vector<Prompt>& prompts, int64_t window) {
  std::multiset<Pair> pairs;
  for (size_t p = 0; p < prompts.size(); ++p) {
    for (int64_t q = prompts[p].first; q < prompts[p].first + prompts[p].n_rows; ++q) {
      for (int64_t k = 0; k <= q; ++k) {
        if (visible(q, k, window)) pairs.emplace(p, q, k);
      }
    }
  }
  return pairs;
}

struct Held {
  size_t prompt = 0;
  KvBlock block;
};

std::multiset<Pair> ring_pairs(const std::vector<Prompt>& prompts, const Case& c) {
  const auto plans = plans_of(prompts, c);
  const std::vector<RingSequence> ring = ring_of(prompts, c, 0);
  std::vector<const RingPlan*> borrowed;
  std::vector<std::map<int32_t, Held>> caches(static_cast<size_t>(c.cp));
  for (size_t rank = 0; rank < caches.size(); ++rank) {
    borrowed.push_back(plans[rank].get());
    for (size_t p = 0; p < ring.size(); ++p) {
      for (const KvBlock& block : ring[p].blocks[rank]) caches[rank][block.block] = {p, block};
    }
  }
  std::multiset<Pair> pairs;
  walk_ring(borrowed,
            caches,
            [&](size_t rank, const AttentionSequence& s, const KvBlock& block, const Held& held) {
              EXPECT_EQ(block.first_position, held.block.first_position);
              EXPECT_EQ(block.n_tokens, held.block.n_tokens);
              EXPECT_THAT(s.rows, ::testing::ElementsAreArray(ring[held.prompt].rows[rank]));
              const size_t before = pairs.size();
              for (const PositionRun& run : s.rows) {
                for (int64_t q = run.first; q < run.end(); ++q) {
                  for (int64_t k = block.first_position; k < block.first_position + block.n_tokens;
                       ++k) {
                    if (visible(q, k, c.window)) pairs.emplace(held.prompt, q, k);
                  }
                }
              }
              EXPECT_GT(pairs.size(), before) << "a block of which nothing is seen";
            });
  return pairs;
}

// Blocks sent in total: those that a rank sees d steps on travel d steps, if it is the last to.
int64_t needed_transfers(const std::vector<Prompt>& prompts, const Case& c) {
  const std::vector<RingSequence> ring = ring_of(prompts, c, 0);
  int64_t n = 0;
  for (const RingSequence& s : ring) {
    for (int owner = 0; owner < c.cp; ++owner) {
      for (const KvBlock& block : s.blocks[static_cast<size_t>(owner)]) {
        int last = 0;
        for (int d = 1; d < c.cp; ++d) {
          for (const PositionRun& run : s.rows[static_cast<size_t>((owner + d) % c.cp)]) {
            for (int64_t q = run.first; q < run.end(); ++q) {
              for (int64_t k = 0; k < block.n_tokens; ++k) {
                if (visible(q, block.first_position + k, c.window)) last = d;
              }
            }
          }
        }
        n += last;
      }
    }
  }
  return n;
}

TEST(RingPlan, every_visible_pair_is_met_once_and_nothing_travels_in_vain) {
  std::mt19937 random(5);
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int trial = 0; trial < trials(300); ++trial) {
    const Case c{.cp = between(1, 8),
                 .block_size = between(1, 16),
                 .window = between(0, 1) == 0 ? 0 : between(1, 40)};
    SCOPED_TRACE(::testing::Message() << "trial " << trial << " cp " << c.cp << " blocks of "
                                      << c.block_size << " window " << c.window);
    std::vector<Prompt> prompts(static_cast<size_t>(between(1, 3)));
    for (Prompt& prompt : prompts) {
      prompt.first = between(0, 1) * between(0, 50);
      prompt.n_rows = between(1, 50);
      const int64_t n_blocks = (prompt.first + prompt.n_rows + c.block_size - 1) / c.block_size;
      for (int64_t b = 0; b < n_blocks; ++b) prompt.owners.push_back(between(0, c.cp - 1));
    }
    EXPECT_EQ(ring_pairs(prompts, c), unsplit_pairs(prompts, c.window));
    int64_t n_sent = 0;
    for (const auto& plan : plans_of(prompts, c)) {
      for (const RingStep& step : plan->steps()) n_sent += static_cast<int64_t>(step.send.size());
    }
    EXPECT_EQ(n_sent, needed_transfers(prompts, c));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RingPlan, later_ranks_blocks_are_not_sent_to_earlier_ones) {
  const Case c{.cp = 4, .block_size = 2};
  const auto plans = plans_of({{.first = 0, .n_rows = 8, .owners = {0, 1, 2, 3}}}, c);
  EXPECT_THAT(plans[0]->steps()[0].send, ElementsAre(0));
  EXPECT_EQ(plans[1]->steps()[0].n_receive, 1);
  EXPECT_THAT(plans[1]->steps()[1].send, ElementsAre(0));  // in the buffer received
  EXPECT_THAT(plans[2]->steps()[2].send, ElementsAre(0));
  for (const RingStep& step : plans[3]->steps()) EXPECT_THAT(step.send, IsEmpty());
  for (const RingStep& step : plans[0]->steps()) {
    EXPECT_EQ(step.n_receive, 0);
    ASSERT_EQ(step.sequences.size(), 1U);  // its rows are listed, whether or not they see anything
    EXPECT_EQ(step.sequences[0].n_rows, 2);
  }
  EXPECT_THAT(plans[0]->steps()[1].sequences[0].blocks, IsEmpty());
}

TEST(RingPlan, D8_a_window_that_hides_a_whole_rank) {
  // 4 ranks with 8 positions each in blocks of 4. The window reaches 4 positions back: of each
  // rank's two blocks only the second goes on, and only one rank further.
  const Case c{.cp = 4, .block_size = 4, .window = 5};
  const auto plans = plans_of({{.first = 0, .n_rows = 32, .owners = {0, 0, 1, 1, 2, 2, 3, 3}}}, c);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(plans[rank]->steps()[0].send, ElementsAre(static_cast<int32_t>(2 * rank + 1)));
  }
  for (const auto& plan : plans) {
    for (size_t step = 1; step < 4; ++step) EXPECT_THAT(plan->steps()[step].send, IsEmpty());
  }
  EXPECT_THAT(plans[3]->steps()[0].send, IsEmpty());
  EXPECT_THAT(plans[3]->steps()[1].sequences[0].blocks, ElementsAre(KvBlock{0, 4, 20}));
  EXPECT_THAT(plans[3]->steps()[2].sequences[0].blocks, IsEmpty());
}

TEST(RingPlan, D8_a_prompt_shorter_than_the_group) {
  const Case c{.cp = 4, .block_size = 1};
  const auto plans = plans_of({{.first = 0, .n_rows = 2, .owners = {0, 2}}}, c);
  for (const size_t rank : {1U, 3U}) {  // without rows; rank 1 passes on
    for (const RingStep& step : plans[rank]->steps()) EXPECT_THAT(step.sequences, IsEmpty());
  }
  EXPECT_THAT(plans[1]->steps()[1].send, ElementsAre(0));
  EXPECT_EQ(plans[2]->steps()[1].n_receive, 1);
  EXPECT_EQ(plans[3]->steps()[2].n_receive, 0);
}

TEST(RingPlan, blocks_side_by_side_are_one_run) {
  const std::vector<KvBlock> blocks = {{7, 4, 0}, {2, 4, 4}, {3, 4, 12}, {9, 1, 16}};
  EXPECT_THAT(runs_of(blocks), ElementsAre(PositionRun{0, 8}, PositionRun{12, 5}));
  EXPECT_THAT(runs_of({}), IsEmpty());
}

}  // namespace
}  // namespace testbed
