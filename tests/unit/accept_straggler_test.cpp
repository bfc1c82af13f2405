// Who holds the others up: the slow device and the late rank are named, and nobody where the
// operating system takes turns with the ranks, over twenty seeds each.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <vector>

#include "runtime/accept/straggler.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int n_repeats = 3;
constexpr int n_steps = 7;
constexpr int n_layers = 4;
constexpr double tolerance = 0.5;

struct Faults {
  int slow_device = -1;
  double factor = 1.0;
  int late_rank = -1;
  double late_us = 0.0;
};

// One rank's decode steps: per layer two ops that read 1 MB in 100 us, each followed by an
// all-reduce that is reached 10 us later. `turns`: how likely the operating system is to give the
// core to another for 3 to 6 ms, in each op and each gap.
class NoisyRank {
 public:
  NoisyRank(const Mesh& mesh, int rank, double turns, const Faults& faults, unsigned seed)
      : builder_(mesh, rank),
        turns_(turns),
        op_us_(100.0 * (rank == faults.slow_device ? faults.factor : 1.0)),
        gap_us_(10.0 + (rank == faults.late_rank ? faults.late_us : 0.0)),
        random_(seed * 1000 + static_cast<unsigned>(rank)) {}

  RankTimeline make() {
    for (int repeat = 0; repeat < n_repeats; ++repeat) {
      builder_.repeat(repeat);
      for (int step = 0; step < n_steps; ++step) add_step(step);
    }
    return builder_.t;
  }

 private:
  void add_step(int step) {
    const double begin = now_;
    builder_.at(Phase::decode, step, -1, Site::embedding);
    all_reduce();
    for (int layer = 0; layer < n_layers; ++layer) {
      for (const Site site : {Site::attention, Site::mlp}) {
        builder_.at(Phase::decode, step, layer, site);
        const double op_begin = now_;
        now_ += disturbed(op_us_);
        builder_.op(op_begin, now_, {.weight_bytes = 1'000'000});
        now_ += disturbed(gap_us_);
        all_reduce();
      }
    }
    builder_.at(Phase::decode, step).step(begin, begin, now_, now_);
  }
  // It lasts as long as anything: nobody is judged by it.
  void all_reduce() {
    const double begin = now_;
    now_ += 10'000.0 * uniform_(random_);
    builder_.all_reduce(sequence_++, 4096, begin, now_);
  }
  double disturbed(double us) {
    const double jitter = us * (1.0 + 0.1 * uniform_(random_));
    return uniform_(random_) < turns_ ? jitter + 3000.0 + 3000.0 * uniform_(random_) : jitter;
  }

  RankBuilder builder_;
  double turns_;
  double op_us_;
  double gap_us_;
  std::mt19937 random_;
  std::uniform_real_distribution<double> uniform_{0.0, 1.0};
  double now_ = 0.0;
  int sequence_ = 0;
};

std::vector<RankTimeline> timelines(const Mesh& mesh,
                                    double turns,
                                    const Faults& faults,
                                    unsigned seed) {
  std::vector<RankTimeline> all;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    all.push_back(NoisyRank(mesh, rank, turns, faults, seed).make());
  }
  return all;
}

constexpr double turns_of_a_busy_machine = 0.4;

TEST(Straggler, nobody_is_blamed_without_a_fault) {
  for (const int n : {2, 4, 8}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      for (const double turns : {0.0, 0.1, turns_of_a_busy_machine, 0.8}) {
        EXPECT_THAT(stragglers(timelines({.tp = n}, turns, {}, seed), tolerance), IsEmpty())
            << n << " ranks, seed " << seed << ", turns " << turns;
      }
    }
  }
}

TEST(Straggler, slow_device_is_named_on_a_busy_machine) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto found =
        stragglers(timelines({.tp = 4}, 0.1, {.slow_device = 1, .factor = 4.0}, seed), tolerance);
    ASSERT_EQ(found.size(), 1) << "seed " << seed;
    EXPECT_EQ(found[0].kind, Blame::Kind::device);
    EXPECT_THAT(found[0].ranks, ElementsAre(1));
    EXPECT_EQ(found[0].host, "host0");
    EXPECT_THAT(found[0].what, HasSubstr("reads weights at 2.4"));  // 1 MB in 400 to 440 us
  }
}

TEST(Straggler, late_rank_is_named_on_a_busy_machine) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto found = stragglers(
        timelines({.tp = 4}, turns_of_a_busy_machine, {.late_rank = 2, .late_us = 20'000.0}, seed),
        tolerance);
    ASSERT_EQ(found.size(), 1) << "seed " << seed;
    EXPECT_EQ(found[0].kind, Blame::Kind::rank);
    EXPECT_THAT(found[0].ranks, ElementsAre(2));
  }
}

// On quiet devices a quarter more is enough to be seen with a tolerance of a tenth, and a twentieth
// is not.
TEST(Straggler, tolerance_decides_on_quiet_devices) {
  const auto found = [](double factor) {
    return stragglers(timelines({.tp = 8}, 0.0, {.slow_device = 5, .factor = factor}, 3), 0.10);
  };
  ASSERT_EQ(found(1.25).size(), 1);
  EXPECT_THAT(found(1.25)[0].ranks, ElementsAre(5));
  EXPECT_THAT(found(1.05), IsEmpty());
}

TEST(Straggler, two_may_be_named) {
  const auto found = stragglers(
      timelines(
          {.tp = 8}, 0.0, {.slow_device = 5, .factor = 4.0, .late_rank = 0, .late_us = 1000.0}, 0),
      tolerance);
  ASSERT_EQ(found.size(), 2);
  EXPECT_THAT(found[0].ranks, ElementsAre(0));
  EXPECT_THAT(found[1].ranks, ElementsAre(5));
}

// Stages have different work: a rank is held against those of its own, and without peers not at
// all.
TEST(Straggler, peers_are_the_ranks_of_a_stage) {
  EXPECT_THAT(
      stragglers(timelines({.pp = 4}, 0.0, {.slow_device = 1, .factor = 4.0}, 0), tolerance),
      IsEmpty());
  const Faults slow_stage{.slow_device = 2, .factor = 4.0};
  const Mesh mesh{.tp = 2, .pp = 2};
  EXPECT_EQ(stragglers(timelines(mesh, 0.0, slow_stage, 0), tolerance).size(), 1);
  std::vector<RankTimeline> both_slow = timelines(mesh, 0.0, slow_stage, 0);
  both_slow[3] = NoisyRank(mesh, 3, 0.0, {.slow_device = 3, .factor = 4.0}, 0).make();
  EXPECT_THAT(stragglers(both_slow, tolerance), IsEmpty());
}

// An expert's product costs 20 us and what it reads; rank 1's tokens ask for fewer.
TEST(Straggler, experts_that_fewer_tokens_ask_for_are_no_slow_device) {
  std::vector<RankTimeline> all = timelines({.dp = 2}, 0.0, {}, 0);
  for (RankTimeline& timeline : all) {
    const int64_t bytes = timeline.rank == 1 ? 10'000 : 1'000'000;
    std::vector<OpEvent> ops;
    for (const OpEvent& event : timeline.ops) {
      ops.push_back(event);
      OpEvent expert = event;
      expert.op.kind = OpKind::expert_linear;
      expert.op.cost.weight_bytes = bytes;
      expert.op.begin_ns = event.op.end_ns;
      expert.op.end_ns = event.op.end_ns + 20'000 + bytes / 10;
      ops.push_back(expert);
    }
    timeline.ops = ops;
  }
  EXPECT_THAT(stragglers(all, tolerance), IsEmpty());
}

// What is slow once is not what is wrong.
TEST(Straggler, one_slow_repeat_is_not_enough) {
  std::vector<RankTimeline> all = timelines({.tp = 4}, 0.0, {.slow_device = 1, .factor = 4.0}, 0);
  const std::vector<RankTimeline> healthy = timelines({.tp = 4}, 0.0, {}, 0);
  std::erase_if(all[1].ops, [](const OpEvent& event) { return event.scope.repeat == 2; });
  for (const OpEvent& event : healthy[1].ops) {
    if (event.scope.repeat == 2) all[1].ops.push_back(event);
  }
  EXPECT_THAT(stragglers(all, tolerance), IsEmpty());
}

TEST(Straggler, nothing_decoded_names_nobody) {
  EXPECT_THAT(stragglers({}, tolerance), IsEmpty());
  EXPECT_THAT(stragglers(std::vector<RankTimeline>(4), tolerance), IsEmpty());
}

}  // namespace
}  // namespace testbed
