// Generations that must be alike and are not: the first rank, layer and collective that differ.
#include <gmock/gmock.h>

#include "runtime/accept/divergence.hpp"

namespace testbed {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using What = ResidualMark::What;

constexpr int n_repeats = 3;

// Two steps of two layers; all alike.
MarkedRuns runs_of(const Mesh& mesh) {
  MarkedRuns runs{.mesh = mesh, .places = {}, .hashes = {}, .devices = {}};
  for (int step = 0; step < 2; ++step) {
    runs.places.push_back({.step = step, .site = Site::token_ids, .what = What::ids});
    for (const auto& [layer, site] : {std::pair{-1, Site::embedding},
                                      {0, Site::attention},
                                      {0, Site::mlp},
                                      {1, Site::attention},
                                      {1, Site::mlp}}) {
      for (const What what : {What::partial, What::sum})
        runs.places.push_back({.step = step, .layer = layer, .site = site, .what = what});
    }
  }
  const auto n_ranks = static_cast<size_t>(mesh.world_size());
  runs.devices.assign(n_ranks, "a device");
  std::vector<std::vector<uint64_t>> repeat(n_ranks);
  for (size_t rank = 0; rank < n_ranks; ++rank) {
    for (size_t mark = 0; mark < runs.places.size(); ++mark) {
      const bool is_own = runs.places[mark].what == What::partial;
      repeat[rank].push_back(1000 * mark + (is_own ? rank % static_cast<size_t>(mesh.tp) : 0));
    }
  }
  runs.hashes.assign(n_repeats, repeat);
  return runs;
}

size_t place_of(const MarkedRuns& runs, int step, int layer, Site site, What what) {
  for (size_t i = 0; i < runs.places.size(); ++i) {
    const ResidualMark& place = runs.places[i];
    if (place.step == step && place.layer == layer && place.site == site && place.what == what)
      return i;
  }
  return runs.places.size();
}

// Of these ranks from a place on, to the end of a repeat, as an error spreads.
void spoil(MarkedRuns& runs, int repeat, const std::vector<int>& ranks, size_t from) {
  for (const int rank : ranks) {
    auto& marks = runs.hashes[static_cast<size_t>(repeat)][static_cast<size_t>(rank)];
    for (size_t mark = from; mark < marks.size(); ++mark) marks[mark] ^= 0xdead;
  }
}

std::vector<std::vector<int>> ranks_blamed(const Divergence& divergence) {
  std::vector<std::vector<int>> ranks;
  for (const Blame& blame : divergence.blamed) ranks.push_back(blame.ranks);
  return ranks;
}

TEST(Divergence, NoneWhereAllIsAlike) {
  EXPECT_FALSE(first_divergence(runs_of({.tp = 1})));
  EXPECT_FALSE(first_divergence(runs_of({.tp = 4})));
  EXPECT_FALSE(first_divergence(runs_of({.tp = 2, .dp = 2})));
}

TEST(Divergence, ARankThatGotAnotherSumIsNamedWithLayerAndCollective) {
  MarkedRuns runs = runs_of({.tp = 4});
  const size_t sum = place_of(runs, 1, 0, Site::mlp, What::sum);
  spoil(runs, 2, {3}, sum);
  // From the next all-reduce on all are wrong.
  spoil(runs, 2, {0, 1, 2}, sum + 2);
  const auto found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(ranks_blamed(*found), ElementsAre(ElementsAre(3)));
  EXPECT_EQ(found->blamed.front().kind, Blame::Kind::rank);
  EXPECT_THAT(found->reason, HasSubstr("rank 3: the all-reduce of the MLP of layer 0"));
  EXPECT_THAT(found->reason, HasSubstr("step 1, repeat 3 of 3"));
}

TEST(Divergence, ADeviceThatComputesWronglyIsNamedBeforeTheSumSpreadsIt) {
  MarkedRuns runs = runs_of({.tp = 2, .dp = 2});
  const size_t partial = place_of(runs, 0, 1, Site::attention, What::partial);
  spoil(runs, 0, {2}, partial);
  spoil(runs, 0, {3}, partial + 1);
  const auto found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(ranks_blamed(*found), ElementsAre(ElementsAre(2)));
  EXPECT_EQ(found->blamed.front().kind, Blame::Kind::device);
  EXPECT_THAT(found->reason, HasSubstr("rank 2: its device computes attention of layer 1 wrongly"));
}

TEST(Divergence, ASumThatAllRanksOfAGroupGotWrongIsTheCollectives) {
  MarkedRuns runs = runs_of({.tp = 2, .dp = 2});
  spoil(runs, 1, {0, 1}, place_of(runs, 0, -1, Site::embedding, What::sum));
  const auto found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(ranks_blamed(*found), ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(found->blamed.front().kind, Blame::Kind::layer);
  EXPECT_THAT(found->reason, HasSubstr("the all-reduce of the embedding"));
}

TEST(Divergence, OfThreeReplicasTheMajorityIsRight) {
  MarkedRuns runs = runs_of({.dp = 3});
  for (int repeat = 0; repeat < n_repeats; ++repeat)
    spoil(runs, repeat, {1}, place_of(runs, 0, 1, Site::mlp, What::partial));
  const auto found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(ranks_blamed(*found), ElementsAre(ElementsAre(1)));
  EXPECT_EQ(found->blamed.front().kind, Blame::Kind::device);
  EXPECT_THAT(found->reason, HasSubstr("every time"));
}

TEST(Divergence, OfTwoReplicasTheRepeatTellsIfItCan) {
  MarkedRuns runs = runs_of({.dp = 2});
  spoil(runs, 1, {1}, place_of(runs, 0, 0, Site::mlp, What::partial));
  auto found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(ranks_blamed(*found), ElementsAre(ElementsAre(1)));

  runs = runs_of({.dp = 2});
  for (int repeat = 0; repeat < n_repeats; ++repeat)
    spoil(runs, repeat, {1}, place_of(runs, 0, 0, Site::mlp, What::partial));
  found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->reason, AllOf(HasSubstr("ranks 0, 1 differ"), HasSubstr("has no majority")));
  EXPECT_THAT(found->blamed, IsEmpty());
}

TEST(Divergence, MemoryThatHasChangedStaysWrong) {
  MarkedRuns runs = runs_of({.dp = 4});
  for (int repeat = 1; repeat < n_repeats; ++repeat)
    spoil(runs, repeat, {2}, place_of(runs, 0, 0, Site::attention, What::partial));
  const auto found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->reason, HasSubstr("rank 2"));
  EXPECT_THAT(found->reason, HasSubstr("from then on"));
}

TEST(Divergence, OtherTokensAreTheHeads) {
  MarkedRuns runs = runs_of({.tp = 2});
  spoil(runs, 1, {0, 1}, place_of(runs, 1, -1, Site::token_ids, What::ids));
  const auto found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->reason, HasSubstr("chose other tokens for step 1"));
  EXPECT_THAT(found->blamed, SizeIs(1));
}

TEST(Divergence, UnlikeDevicesNeedNotAgree) {
  MarkedRuns runs = runs_of({.dp = 4});
  for (const int rank : {2, 3}) {
    runs.devices[static_cast<size_t>(rank)] = "another device";
    for (int repeat = 0; repeat < n_repeats; ++repeat) spoil(runs, repeat, {rank}, 1);
  }
  EXPECT_FALSE(first_divergence(runs));
  spoil(runs, 0, {3}, 4);
  const auto found = first_divergence(runs);
  ASSERT_TRUE(found);
  EXPECT_THAT(ranks_blamed(*found), ElementsAre(ElementsAre(3)));
}

}  // namespace
}  // namespace testbed
