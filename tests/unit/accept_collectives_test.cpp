// Collectives in an acceptance: groups by host, values of which every sum is exact, who is blamed
// for a wrong one, and who came late.
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <set>

#include "kernels/base/hash.hpp"
#include "runtime/accept/collective_blame.hpp"
#include "runtime/accept/collective_groups.hpp"
#include "runtime/accept/collective_sweep.hpp"
#include "runtime/accept/collective_trial.hpp"
#include "runtime/accept/collective_values.hpp"
#include "runtime/accept/stage.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::string> hosts_of(const std::vector<int>& ranks_on) {
  std::vector<std::string> hosts;
  for (size_t h = 0; h < ranks_on.size(); ++h)
    hosts.insert(hosts.end(), static_cast<size_t>(ranks_on[h]), "host" + std::to_string(h));
  return hosts;
}

TEST(CollectiveGroups, OfOneHostTakeTurns) {
  const std::vector<GroupSet> sets = group_sets(hosts_of({4}));
  ASSERT_THAT(sets, SizeIs(2));
  EXPECT_EQ(sets[0].size, 2);
  EXPECT_EQ(sets[0].scope, "within-host");
  ASSERT_THAT(sets[0].turns, SizeIs(2));
  EXPECT_THAT(sets[0].turns[0], ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(sets[0].turns[1], ElementsAre(ElementsAre(2, 3)));
  EXPECT_EQ(sets[1].size, 4);
  EXPECT_THAT(sets[1].turns, ElementsAre(ElementsAre(ElementsAre(0, 1, 2, 3))));
}

TEST(CollectiveGroups, AreWithinHostsAndBetweenThem) {
  const std::vector<GroupSet> sets = group_sets(hosts_of({4, 4}));
  ASSERT_THAT(sets, SizeIs(5));
  EXPECT_EQ(sets[0].scope, "within-host");
  EXPECT_THAT(sets[0].turns[0], ElementsAre(ElementsAre(0, 1), ElementsAre(4, 5)));
  EXPECT_EQ(sets[1].scope, "between-hosts");
  EXPECT_THAT(sets[1].turns[0], ElementsAre(ElementsAre(0, 4)));
  EXPECT_THAT(sets[1].turns, SizeIs(4));
  EXPECT_THAT(sets[3].turns[1], ElementsAre(ElementsAre(2, 3, 6, 7)));
  EXPECT_EQ(sets[4].size, 8);
  EXPECT_EQ(sets[4].scope, "between-hosts");
}

TEST(CollectiveGroups, EveryRankIsInEachSizeAndNoHostTwiceInATurn) {
  for (const std::vector<int>& ranks_on :
       {std::vector<int>{1}, {2}, {3}, {5}, {2, 1}, {8, 8, 8}, {3, 5}, {1, 1, 1, 1, 1}}) {
    const std::vector<std::string> hosts = hosts_of(ranks_on);
    for (const GroupSet& set : group_sets(hosts)) {
      std::set<int> covered;
      for (const auto& groups : set.turns) {
        std::set<std::string> busy;
        for (const std::vector<int>& group : groups) {
          EXPECT_EQ(group.size(), static_cast<size_t>(set.size));
          EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
          std::set<std::string> of_group;
          for (const int rank : group) of_group.insert(hosts[static_cast<size_t>(rank)]);
          for (const std::string& host : of_group) EXPECT_TRUE(busy.insert(host).second);
          covered.insert(group.begin(), group.end());
        }
      }
      // A host of fewer ranks than the group cannot be within one.
      if (set.scope == "between-hosts" || ranks_on.size() == 1) {
        EXPECT_EQ(covered.size(), hosts.size()) << set.size;
      }
    }
    EXPECT_EQ(group_sets(hosts).back().size, static_cast<int>(hosts.size()));
  }
}

// In whatever order, and rounded after every addition.
uint32_t rounded_sum(const CollectiveValues& values, int64_t call, int64_t offset, uint64_t order) {
  std::vector<int> ranks(static_cast<size_t>(values.n_ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return mix64(order ^ static_cast<uint64_t>(a)) < mix64(order ^ static_cast<uint64_t>(b));
  });
  std::vector<double> parts;
  for (const int rank : ranks)
    parts.push_back(static_cast<double>(values.value(rank, call, offset)));
  // A tree, as some algorithms have: neighbours first.
  while (parts.size() > 1) {
    std::vector<double> sums;
    for (size_t i = 0; i + 1 < parts.size(); i += 2)
      sums.push_back(values.number_of(values.bits_of(parts[i] + parts[i + 1])));
    if (parts.size() % 2 == 1) sums.push_back(parts.back());
    parts = order % 2 == 0 ? sums : [&] {
      double chain = 0.0;
      for (const double part : parts) chain = values.number_of(values.bits_of(chain + part));
      return std::vector<double>{chain};
    }();
  }
  return values.bits_of(parts.front());
}

TEST(CollectiveValues, SumsAreExactInEveryOrder) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const int n : {1, 2, 3, 8, 100, 128, 129, 300, 1024}) {
      const CollectiveValues values(dtype, n, true, 7);
      EXPECT_GE(values.most(), 2) << n;
      for (int64_t offset = 0; offset < 40; ++offset) {
        const auto sum = static_cast<double>(values.sum(3, offset));
        EXPECT_GT(sum, 0.0);
        ASSERT_EQ(values.number_of(values.bits_of(sum)), sum);
        for (const uint64_t order : {0U, 1U, 2U, 3U})
          ASSERT_EQ(rounded_sum(values, 3, offset, order), values.bits_of(sum)) << n;
      }
    }
  }
}

TEST(CollectiveValues, DifferByRankCallAndOffsetAndAreNeverZeroWhereCopied) {
  const CollectiveValues values(DType::BF16, 4, false, 0);
  int same_rank = 0;
  int same_call = 0;
  int same_offset = 0;
  constexpr int n = 1000;
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_GE(values.value(0, 0, i), 1);
    ASSERT_LE(values.value(0, 0, i), 256);
    same_rank += values.value(0, 0, i) == values.value(1, 0, i) ? 1 : 0;
    same_call += values.value(0, 0, i) == values.value(0, 1, i) ? 1 : 0;
    same_offset += values.value(0, 0, i) == values.value(0, 0, i + 4096) ? 1 : 0;
  }
  // One in 256 by chance: 4 of 1000, and 40 with a probability below 1e-20.
  for (const int same : {same_rank, same_call, same_offset}) EXPECT_LT(same, 40);
}

TEST(CollectiveValues, ElementsAreThoseOfTheOffsets) {
  const CollectiveValues values(DType::BF16, 3, true, 11);
  const int64_t first = CollectiveValues::period - 5;
  const int64_t n = 3 * CollectiveValues::period + 17;
  const std::vector<std::byte> mine = values.elements_of(2, 9, first, n);
  const std::vector<std::byte> sums = values.elements_of_sum(9, first, n);
  ASSERT_EQ(mine.size(), static_cast<size_t>(2 * n));
  for (const int64_t i : {int64_t{0}, int64_t{4}, int64_t{5}, CollectiveValues::period, n - 1}) {
    uint16_t bits = 0;
    std::memcpy(&bits, mine.data() + 2 * i, 2);
    EXPECT_EQ(values.number_of(bits), static_cast<double>(values.value(2, 9, first + i)));
    std::memcpy(&bits, sums.data() + 2 * i, 2);
    EXPECT_EQ(values.number_of(bits), static_cast<double>(values.sum(9, first + i)));
  }
}

WrongCall wrong_call(int64_t n_elements, std::vector<WrongElement> elements) {
  return {.call = 5,
          .bytes = 4096,
          .n_elements = n_elements,
          .n_wrong = static_cast<int64_t>(elements.size()),
          .first = std::move(elements)};
}

WrongValues wrong_values(CommOp op, const std::vector<std::vector<WrongElement>>& by_rank) {
  WrongValues wrong{.op = op, .ranks = {}, .by_rank = {}};
  for (size_t r = 0; r < by_rank.size(); ++r) {
    wrong.ranks.push_back(10 + static_cast<int>(r));
    wrong.n_calls.push_back(20);
    const int64_t n = op == CommOp::reduce_scatter ? 512 : 2048;
    std::vector<WrongCall>& calls = wrong.by_rank.emplace_back();
    if (!by_rank[r].empty()) calls.push_back(wrong_call(n, by_rank[r]));
  }
  return wrong;
}

std::vector<int> ranks_blamed(const CollectiveBlame& blame) {
  std::vector<int> ranks;
  for (const Blame& each : blame.blamed)
    ranks.insert(ranks.end(), each.ranks.begin(), each.ranks.end());
  return ranks;
}

// An element of a sum to which one rank contributed something else.
WrongElement with_contribution(const CollectiveValues& values,
                               int rank,
                               int64_t offset,
                               double contribution) {
  const auto sum = static_cast<double>(values.sum(5, offset));
  const auto mine = static_cast<double>(values.value(rank, 5, offset));
  return {.offset = offset,
          .is = values.bits_of(sum - mine + contribution),
          .should_be = values.bits_of(sum)};
}

TEST(CollectiveBlame, OneRankThatSeesAWrongSumAloneReceivedItSo) {
  const CollectiveValues values(DType::BF16, 4, true, 1);
  const WrongElement element = with_contribution(values, 1, 17, 0.0);
  const CollectiveBlame blame =
      blame_for(wrong_values(CommOp::all_reduce, {{}, {}, {element}, {}}), values);
  EXPECT_THAT(ranks_blamed(blame), ElementsAre(12));
  EXPECT_EQ(blame.blamed.front().kind, Blame::Kind::rank);
  EXPECT_THAT(blame.reason, HasSubstr("all_reduce of 4096 bytes over ranks {10,11,12,13}"));
  EXPECT_THAT(blame.reason, HasSubstr("rank 12, offset 17"));
  EXPECT_THAT(blame.reason, HasSubstr("1 of 2048 elements"));
}

TEST(CollectiveBlame, WhatAllSeeIsAContribution) {
  const CollectiveValues values(DType::BF16, 4, true, 1);
  std::vector<WrongElement> missing;
  for (int64_t offset = 30; offset < 36; ++offset)
    missing.push_back(with_contribution(values, 3, offset, 0.0));
  const CollectiveBlame blame =
      blame_for(wrong_values(CommOp::all_reduce, {missing, missing, missing, missing}), values);
  EXPECT_THAT(ranks_blamed(blame), ElementsAre(13));
  EXPECT_THAT(blame.blamed.front().what, HasSubstr("contributed"));
}

TEST(CollectiveBlame, AContributionOfTheCallBeforeAndOneFlippedBitAreFound) {
  const CollectiveValues values(DType::F32, 8, true, 3);
  std::vector<WrongElement> stale;
  std::vector<WrongElement> flipped;
  for (int64_t offset = 0; offset < 4; ++offset) {
    stale.push_back(
        with_contribution(values, 2, offset, static_cast<double>(values.value(2, 4, offset))));
    const uint32_t bits = values.bits_of(static_cast<double>(values.value(6, 5, offset)));
    flipped.push_back(with_contribution(values, 6, offset, values.number_of(bits ^ (1U << 24U))));
  }
  EXPECT_THAT(suspects(values, 5, 0, stale), ElementsAre(2));
  EXPECT_THAT(suspects(values, 5, 0, flipped), ElementsAre(6));
}

TEST(CollectiveBlame, WhatNoContributionExplainsIsNobodys) {
  const CollectiveValues values(DType::F32, 4, true, 3);
  const std::vector<WrongElement> odd{{.offset = 1, .is = values.bits_of(0.5), .should_be = 0}};
  const CollectiveBlame blame =
      blame_for(wrong_values(CommOp::all_reduce, {odd, odd, odd, odd}), values);
  EXPECT_THAT(blame.blamed, IsEmpty());
  EXPECT_THAT(blame.reason, HasSubstr("the same on every rank"));
}

TEST(CollectiveBlame, APartThatAllOthersGotWrongIsItsOwners) {
  const CollectiveValues values(DType::BF16, 4, false, 1);
  // Of 2048 elements in parts of 512: rank 2's.
  const std::vector<WrongElement> part{{.offset = 1100, .is = 1, .should_be = 2}};
  EXPECT_THAT(
      ranks_blamed(blame_for(wrong_values(CommOp::all_gather, {part, part, {}, part}), values)),
      ElementsAre(12));
  EXPECT_THAT(ranks_blamed(blame_for(wrong_values(CommOp::all_gather, {{}, part, {}, {}}), values)),
              ElementsAre(11));
  // Call 5 of 4 ranks: rank 1 is the root.
  EXPECT_THAT(
      ranks_blamed(blame_for(wrong_values(CommOp::broadcast, {part, {}, part, part}), values)),
      ElementsAre(11));
}

TEST(CollectiveBlame, BetweenTwoRanksItIsTheLink) {
  const CollectiveValues values(DType::BF16, 2, false, 1);
  const std::vector<WrongElement> part{{.offset = 100, .is = 1, .should_be = 2}};
  const CollectiveBlame blame = blame_for(wrong_values(CommOp::all_gather, {{}, part}), values);
  EXPECT_THAT(ranks_blamed(blame), ElementsAre(10, 11));
  EXPECT_EQ(blame.blamed.front().kind, Blame::Kind::link);
}

TEST(CollectiveBlame, ExchangesTellSenderReceiverAndLinkApart) {
  const CollectiveValues values(DType::BF16, 4, false, 1);
  const auto from = [](int source) {
    return WrongElement{.offset = source * 512 + 3, .is = 1, .should_be = 2};
  };
  const auto blamed = [&](const std::vector<std::vector<WrongElement>>& by_rank) {
    return ranks_blamed(blame_for(wrong_values(CommOp::all_to_all, by_rank), values));
  };
  EXPECT_THAT(blamed({{from(3)}, {from(3)}, {}, {}}), ElementsAre(13));
  EXPECT_THAT(blamed({{from(1), from(3)}, {}, {}, {}}), ElementsAre(10));
  EXPECT_THAT(blamed({{}, {}, {from(0)}, {}}), ElementsAre(10, 12));
  EXPECT_THAT(blamed({{}, {}, {from(2)}, {}}), ElementsAre(12));
}

TEST(CollectiveBlame, PartsOfASumTellACommonContributor) {
  const CollectiveValues values(DType::F32, 4, true, 1);
  std::vector<std::vector<WrongElement>> by_rank(4);
  for (int rank = 0; rank < 4; ++rank) {
    for (int64_t i = 7; i < 10; ++i) {
      WrongElement element = with_contribution(values, 1, rank * 512 + i, 0.0);
      element.offset = i;
      by_rank[static_cast<size_t>(rank)].push_back(element);
    }
  }
  EXPECT_THAT(ranks_blamed(blame_for(wrong_values(CommOp::reduce_scatter, by_rank), values)),
              ElementsAre(11));
  // One rank's part, by something that nobody sent: its own sum.
  const std::vector<WrongElement> odd{{.offset = 1, .is = values.bits_of(0.5), .should_be = 0}};
  EXPECT_THAT(
      ranks_blamed(blame_for(wrong_values(CommOp::reduce_scatter, {{}, {}, {}, odd}), values)),
      ElementsAre(13));
}

TEST(Latecomer, IsWhoComesLateOftenAndNotWhoIsHitOnce) {
  std::vector<std::vector<double>> gaps(3, std::vector<double>(16, 0.1));
  EXPECT_FALSE(latecomer({4, 5, 6}, gaps));
  for (const size_t call : {3U, 4U, 9U}) gaps[1][call] = 4000.0;  // a scheduler's slices
  EXPECT_FALSE(latecomer({4, 5, 6}, gaps));
  for (size_t call = 2; call < 16; ++call) gaps[2][call] = 5000.0;
  const auto late = latecomer({4, 5, 6}, gaps);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->rank, 6);
  EXPECT_NEAR(late->late_us, 5000.0, 1.0);
  EXPECT_EQ(late->n_late, 14);
  // All alike, as delays on all ranks are: nobody keeps anybody waiting.
  for (std::vector<double>& of_rank : gaps) std::fill(of_rank.begin(), of_rank.end(), 5000.0);
  EXPECT_FALSE(latecomer({4, 5, 6}, gaps));
}

std::vector<PlannedCase> planned(const AcceptConfig& config, const std::vector<int>& ranks_on) {
  const AcceptanceProfile profile;
  return make_collectives_stage()->plan(
      {.config = config, .profile = profile, .hosts = hosts_of(ranks_on)});
}

TEST(CollectivesPlan, HasEveryOperationOnEveryGroup) {
  const std::vector<PlannedCase> cases = planned({}, {2, 2});
  // 2 within, 2 between, 4.
  ASSERT_THAT(cases, SizeIs(15));
  std::set<std::string> names;
  for (const PlannedCase& each : cases) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name;
    EXPECT_FALSE(each.skip);
    EXPECT_GT(each.estimated_s, 0.0);
    EXPECT_GT(each.deadline_s, each.estimated_s);
    EXPECT_THAT(each.explanation, HasSubstr("512 to 1073741824 bytes in 22 sizes"));
  }
  EXPECT_EQ(names.count("all_reduce 2 ranks between-hosts"), 1U);
  EXPECT_EQ(names.count("broadcast 4 ranks between-hosts"), 1U);
}

TEST(CollectivesPlan, QuickHasFewerSizesUpToTheLargestAndNeverNone) {
  AcceptConfig config{.quick = true};
  EXPECT_THAT(planned(config, {2}).front().explanation,
              HasSubstr("512 to 16777216 bytes in 6 sizes"));
  config.most_bytes = 1 << 20;
  EXPECT_THAT(planned(config, {2}).front().explanation,
              HasSubstr("512 to 1048576 bytes in 5 sizes"));
  config.most_bytes = 100;
  EXPECT_TRUE(planned(config, {2}).front().skip);
}

TEST(CollectivesPlan, PayloadsGiveEveryRankAShare) {
  EXPECT_EQ(payload_elements(512, DType::BF16, 2), 256);
  EXPECT_EQ(payload_elements(512, DType::BF16, 3), 255);
  EXPECT_EQ(payload_elements(512, DType::F32, 1024), 0);
}

}  // namespace
}  // namespace testbed
