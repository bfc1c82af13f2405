// MicrobatchRows: what each cp rank makes of a plan. Whole generations are played through caches
// that hold positions instead of numbers: every visible pair must be met exactly once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <tuple>

#include "runtime/model/step_context.hpp"
#include "tests/trials.hpp"
#include "tests/unit/ring_walk.hpp"
#include "tests/unit/serving_cases.hpp"

namespace testbed {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Token = std::pair<int32_t, int64_t>;           // request, position
using Pair = std::tuple<int32_t, int64_t, int64_t>;  // request, query, key
using Pairs = std::multiset<Pair>;
using Block = std::map<int64_t, Token>;  // by place in the block

// One KV group of all cp ranks.
class PlayedCache {
 public:
  PlayedCache(const SchedulerOptions& options, size_t group)
      : window_(options.kv_groups[group].window),
        block_size_(options.block_size),
        blocks_(static_cast<size_t>(options.cp)) {}

  void hold(size_t rank, int64_t slot, Token token) {
    blocks_[rank][static_cast<int32_t>(slot / block_size_)][slot % block_size_] = token;
  }
  const std::vector<std::map<int32_t, Block>>& blocks() const { return blocks_; }

  // The rows against the keys in one block, which must be the request's own.
  void meet(const MicrobatchRows& rows,
            const AttentionSequence& sequence,
            const KvBlock& block,
            const Block& content,
            Pairs& met) const {
    const int32_t request = rows.requests[static_cast<size_t>(sequence.first_row)];
    for (int64_t i = 0; i < block.n_tokens; ++i) {
      ASSERT_EQ(content.count(i), 1U);
      ASSERT_EQ(content.at(i), Token(request, block.first_position + i));
    }
    for (int64_t r = sequence.first_row; r < sequence.first_row + sequence.n_rows; ++r) {
      const int64_t query = rows.positions[static_cast<size_t>(r)];
      for (int64_t i = 0; i < block.n_tokens; ++i) {
        const int64_t key = block.first_position + i;
        if (key <= query && (window_ == 0 || key > query - window_)) {
          met.emplace(request, query, key);
        }
      }
    }
  }

 private:
  int64_t window_;
  int64_t block_size_;
  std::vector<std::map<int32_t, Block>> blocks_;  // [rank]
};

Pairs expected_pairs(const MicrobatchPlan& plan, int64_t window) {
  Pairs pairs;
  for (const PlanSequence& s : plan.sequences) {
    for (int64_t q = s.first_position; q < s.first_position + s.n_rows; ++q) {
      for (int64_t k = window == 0 ? 0 : std::max<int64_t>(0, q - window + 1); k <= q; ++k) {
        pairs.emplace(s.request, q, k);
      }
    }
  }
  return pairs;
}

std::vector<std::unique_ptr<MicrobatchRows>> rows_of_ranks(const MicrobatchPlan& plan,
                                                           const SchedulerOptions& options) {
  std::vector<std::unique_ptr<MicrobatchRows>> ranks;
  for (int rank = 0; rank < options.cp; ++rank) {
    ranks.push_back(std::make_unique<MicrobatchRows>(
        plan, options.kv_groups, options.block_size, options.cp, rank));
  }
  return ranks;
}

class PlayedGeneration {
 public:
  explicit PlayedGeneration(const Job& job) : job_(job) {
    for (size_t g = 0; g < job.options.kv_groups.size(); ++g) caches_.emplace_back(job.options, g);
  }

  void play(const MicrobatchPlan& plan) {
    const auto ranks = rows_of_ranks(plan, job_.options);
    for (size_t g = 0; g < caches_.size(); ++g) {
      hold_cached(plan, g);
      std::set<Token> written;
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const MicrobatchRows& rows = *ranks[rank];
        ASSERT_THAT(rows.slots[g], SizeIs(rows.positions.size()));
        for (size_t r = 0; r < rows.positions.size(); ++r) {
          if (rows.slots[g][r] < 0) continue;
          const Token token{rows.requests[r], rows.positions[r]};
          caches_[g].hold(rank, rows.slots[g][r], token);
          EXPECT_TRUE(written.insert(token).second) << "kept twice";
        }
      }
      EXPECT_EQ(static_cast<int64_t>(written.size()), plan.n_rows());
      EXPECT_EQ(met(ranks, g), expected_pairs(plan, job_.options.kv_groups[g].window));
    }
    check_logits_rows(plan, ranks);
  }

 private:
  // Tokens taken as cached were never written.
  void hold_cached(const MicrobatchPlan& plan, size_t g) {
    const int64_t block_size = job_.options.block_size;
    for (const PlanSequence& s : plan.sequences) {
      const int64_t n_cached = job_.requests[static_cast<size_t>(s.request)].cached_tokens;
      for (int64_t p = 0; p < n_cached; ++p) {
        const auto b = static_cast<size_t>(p / block_size);
        const int32_t block = s.block_tables[g][b];
        if (block < 0) continue;
        const size_t owner = s.owners.empty() ? 0 : static_cast<size_t>(s.owners[b]);
        caches_[g].hold(owner, block * block_size + p % block_size, {s.request, p});
      }
    }
  }

  Pairs met(const std::vector<std::unique_ptr<MicrobatchRows>>& ranks, size_t g) const {
    Pairs pairs;
    if (ranks.front()->cp_use == CpUse::ring) {
      std::vector<const RingPlan*> rings;
      for (const auto& rows : ranks) rings.push_back(&rows->rings[g]);
      walk_ring(rings,
                caches_[g].blocks(),
                [&](size_t rank, const AttentionSequence& s, const KvBlock& b, const Block& held) {
                  caches_[g].meet(*ranks[rank], s, b, held, pairs);
                });
      return pairs;
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const AttentionSequence& s : ranks[rank]->sequences[g]) {
        for (const KvBlock& block : s.blocks) {
          const auto& blocks = caches_[g].blocks()[rank];
          EXPECT_EQ(blocks.count(block.block), 1U);
          caches_[g].meet(*ranks[rank], s, block, blocks.at(block.block), pairs);
        }
      }
    }
    return pairs;
  }

  // A ring has each wanted row on one rank; otherwise all ranks have it.
  static void check_logits_rows(const MicrobatchPlan& plan,
                                const std::vector<std::unique_ptr<MicrobatchRows>>& ranks) {
    for (size_t i = 0; i < plan.logits_rows.size(); ++i) {
      size_t n_holders = 0;
      for (const auto& rows : ranks) {
        ASSERT_THAT(rows->logits_rows, SizeIs(plan.logits_rows.size()));
        const int64_t row = rows->logits_rows[i];
        if (row < 0) continue;
        ++n_holders;
        EXPECT_EQ(rows->requests[static_cast<size_t>(row)], plan.logits_rows[i].request);
        EXPECT_EQ(rows->positions[static_cast<size_t>(row)], plan.logits_rows[i].position);
        EXPECT_EQ(rows->plan_rows[static_cast<size_t>(row)], plan.logits_rows[i].row);
      }
      EXPECT_EQ(n_holders, ranks.front()->cp_use == CpUse::ring ? 1U : ranks.size());
    }
  }

  const Job& job_;
  std::vector<PlayedCache> caches_;  // [KV group]
};

TEST(MicrobatchRows, every_visible_pair_is_met_once_in_any_job) {
  Draws draw(11);
  for (int trial = 0; trial < trials(150); ++trial) {
    const Job job = random_job(draw);
    SCOPED_TRACE(::testing::Message()
                 << "trial " << trial << " cp " << job.options.cp << " blocks of "
                 << job.options.block_size << " steps of " << job.options.max_step_tokens);
    PlayedGeneration generation(job);
    Scheduler scheduler(job.requests, job.options);
    while (const auto plan = scheduler.next()) {
      for (const MicrobatchPlan& microbatch : plan->microbatches) generation.play(microbatch);
      scheduler.update(plan->step, ids_for(*plan, 1));
      if (::testing::Test::HasFailure()) return;
    }
  }
}

SchedulerOptions options(int cp, CpPlacement placement = CpPlacement::zigzag) {
  return {.kv_groups = {{.window = 0, .layers = {0}}},
          .block_size = 4,
          .max_step_tokens = 1 << 20,
          .stop_ids = {},
          .cp = cp,
          .cp_placement = placement};
}

TEST(MicrobatchRows, zigzag_gives_a_rank_the_outer_and_the_inner_runs) {
  const SchedulerOptions on_two = options(2);
  Scheduler scheduler({request_of(3, 16, 2)}, on_two);
  const StepPlan plan = *scheduler.next();  // blocks 0 and 3 on rank 0, 1 and 2 on rank 1
  const auto ranks = rows_of_ranks(plan.microbatches[0], on_two);
  EXPECT_EQ(ranks[0]->cp_use, CpUse::ring);
  EXPECT_THAT(ranks[0]->positions, ElementsAre(0, 1, 2, 3, 12, 13, 14, 15));
  EXPECT_THAT(ranks[1]->positions, ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(ranks[1]->plan_rows, ElementsAreArray(ranks[1]->positions));
  EXPECT_THAT(ranks[0]->slots[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(ranks[0]->logits_rows, ElementsAre(7));
  EXPECT_THAT(ranks[1]->logits_rows, ElementsAre(-1));
  EXPECT_THAT(ranks[1]->requests, Each(3));
  scheduler.update(0, {5});

  const StepPlan decode = *scheduler.next();  // position 16 begins a block: on rank 0
  const auto both = rows_of_ranks(decode.microbatches[0], on_two);
  EXPECT_EQ(both[0]->cp_use, CpUse::merge);
  for (const auto& rows : both) {
    EXPECT_THAT(rows->positions, ElementsAre(16));
    EXPECT_THAT(rows->logits_rows, ElementsAre(0));
    EXPECT_THAT(rows->rings, IsEmpty());
  }
  EXPECT_EQ(both[0]->keys, both[1]->keys);
  EXPECT_THAT(both[0]->slots[0], ElementsAre(8));
  EXPECT_THAT(both[1]->slots[0], ElementsAre(-1));
  EXPECT_THAT(both[0]->sequences[0][0].keys, ElementsAre(PositionRun{0, 4}, PositionRun{12, 5}));
  EXPECT_THAT(both[1]->sequences[0][0].keys, ElementsAre(PositionRun{4, 8}));
}

TEST(MicrobatchRows, row_keys_belong_to_request_and_position_alone) {
  const SchedulerOptions alone = options(1);
  const SchedulerOptions on_four = options(4);
  const std::vector<Request> requests = {request_of(0, 21, 1), request_of(1, 9, 1)};
  const StepPlan whole = *Scheduler(requests, alone).next();
  const StepPlan split = *Scheduler(requests, on_four).next();
  const auto one = rows_of_ranks(whole.microbatches[0], alone);
  std::set<uint64_t> distinct(one[0]->keys.begin(), one[0]->keys.end());
  EXPECT_THAT(distinct, SizeIs(30));
  int64_t n_rows = 0;
  for (const auto& rows : rows_of_ranks(split.microbatches[0], on_four)) {
    n_rows += rows->n_rows();
    for (size_t r = 0; r < rows->keys.size(); ++r) {
      EXPECT_EQ(rows->keys[r], one[0]->keys[static_cast<size_t>(rows->plan_rows[r])]);
    }
  }
  EXPECT_EQ(n_rows, 30);
}

TEST(MicrobatchRows, D9_a_microbatch_without_rows) {
  for (const int cp : {1, 4}) {
    const SchedulerOptions o = options(cp);
    for (const auto& rows : rows_of_ranks({}, o)) {
      EXPECT_EQ(rows->n_rows(), 0);
      EXPECT_EQ(rows->cp_use, CpUse::none);
      EXPECT_THAT(rows->sequences, ElementsAre(IsEmpty()));
    }
  }
}

TEST(MicrobatchRows, prompts_and_decoding_do_not_share_a_microbatch) {
  const SchedulerOptions on_two = options(2);
  MicrobatchPlan plan =
      Scheduler({request_of(0, 4, 1), request_of(1, 4, 1)}, on_two).next()->microbatches[0];
  plan.sequences[1].split = false;
  EXPECT_THROW(MicrobatchRows(plan, on_two.kv_groups, 4, 2, 0), InternalError);
}

// Of the ring's attention on cp ranks in lockstep: mean pairs of a rank / those of the busiest.
double balance(int cp, CpPlacement placement) {
  const SchedulerOptions o = options(cp, placement);
  Scheduler scheduler({request_of(0, 4096, 1)}, o);
  const StepPlan plan = *scheduler.next();
  double sum = 0.0;
  double most = 0.0;
  for (const auto& rows : rows_of_ranks(plan.microbatches[0], o)) {
    double pairs = 0.0;
    for (const int64_t position : rows->positions) pairs += static_cast<double>(position + 1);
    sum += pairs;
    most = std::max(most, pairs);
  }
  return sum / cp / most;
}

TEST(MicrobatchRows, zigzag_is_balanced_and_contiguous_is_not) {
  EXPECT_GT(balance(8, CpPlacement::zigzag), 0.999);
  EXPECT_NEAR(balance(8, CpPlacement::contiguous), 8.0 / 15.0, 0.001);  // n / (2n - 1)
}

}  // namespace
}  // namespace testbed
