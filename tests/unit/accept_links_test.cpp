// What the stage links decides by logic alone: who exchanges when, which bytes are wrong, which
// pairs are worse than the others, and who is at fault.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "runtime/accept/byte_pattern.hpp"
#include "runtime/accept/link_blame.hpp"
#include "runtime/accept/pair_cohort.hpp"
#include "runtime/accept/pair_rounds.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST(PairRounds, EveryPairOnceAndEachRankInOnePairARound) {
  EXPECT_THAT(pair_rounds(1), IsEmpty());
  for (int n = 2; n <= 17; ++n) {
    const auto rounds = pair_rounds(n);
    EXPECT_EQ(rounds.size(), static_cast<size_t>(n % 2 == 0 ? n - 1 : n));
    std::set<RankPair> all;
    for (const auto& round : rounds) {
      EXPECT_EQ(round.size(), static_cast<size_t>(n / 2));
      std::set<int> busy;
      for (const RankPair& pair : round) {
        EXPECT_LT(pair.low, pair.high);
        EXPECT_GE(pair.low, 0);
        EXPECT_LT(pair.high, n);
        EXPECT_TRUE(all.insert(pair).second);
        EXPECT_TRUE(busy.insert(pair.low).second && busy.insert(pair.high).second);
      }
    }
    EXPECT_EQ(all.size(), static_cast<size_t>(n * (n - 1) / 2));
  }
}

TEST(BytePattern, TheFirstWrongByteIsNamedWhereverItIs) {
  const uint64_t seed = pattern_seed({7, 1, 3});
  for (const size_t n : {8U, 64U, 77U}) {
    std::vector<std::byte> bytes(n);
    fill_pattern(bytes, seed);
    EXPECT_FALSE(wrong_bytes(bytes, seed));
    for (size_t at = 0; at < n; ++at) {
      const std::byte right = bytes[at];
      bytes[at] ^= std::byte{0x10};
      const auto wrong = wrong_bytes(bytes, seed);
      ASSERT_TRUE(wrong);
      EXPECT_EQ(wrong->first, static_cast<int64_t>(at));
      EXPECT_EQ(wrong->count, 1);
      EXPECT_EQ(wrong->should_be, std::to_integer<uint8_t>(right));
      EXPECT_EQ(wrong->is, std::to_integer<uint8_t>(right ^ std::byte{0x10}));
      bytes[at] = right;
    }
  }
}

// What came of an earlier message, of another pair or shifted is not taken for right: of random
// bytes one in 256 is right by chance.
TEST(BytePattern, BytesOfOtherSeedsAndPlacesAreWrong) {
  const uint64_t seed = pattern_seed({7, 1, 3});
  constexpr int64_t n = 4096;
  std::vector<std::byte> bytes(n + 8);
  for (const uint64_t other : {pattern_seed({7, 1, 4}),
                               pattern_seed({7, 3, 1}),
                               pattern_seed({8, 1, 3}),
                               pattern_seed({7, 1}),
                               seed + 1}) {
    fill_pattern(bytes, other);
    EXPECT_GT(wrong_bytes(std::span(bytes).first(n), seed).value_or(WrongBytes{}).count, n / 2);
  }
  fill_pattern(bytes, seed);
  const auto shifted = wrong_bytes(std::span(bytes).subspan(8), seed);
  EXPECT_GT(shifted.value_or(WrongBytes{}).count, n / 2);
}

std::map<RankPair, Sampled> steady(const std::map<RankPair, double>& values) {
  std::map<RankPair, Sampled> pairs;
  for (const auto& [pair, value] : values) pairs[pair] = {value, value, value};
  return pairs;
}

// Pairs of n ranks, all of the one value but some, without any noise.
std::map<RankPair, Sampled> pair_values(int n, double value, std::map<RankPair, double> but) {
  for (int low = 0; low < n; ++low) {
    for (int high = low + 1; high < n; ++high) but.try_emplace({low, high}, value);
  }
  return steady(but);
}

TEST(PairCohort, ASlowLinkAndASlowDeviceAreFoundAmongFewRanks) {
  constexpr double tolerance = 0.1;
  for (int n = 3; n <= 8; ++n) {
    const auto link = cohort_misses(pair_values(n, 10.0, {{{0, 2}, 5.0}}), tolerance, true);
    EXPECT_THAT(link, ElementsAre(RankPair{0, 2})) << n;
    std::map<RankPair, double> of_device;
    for (int other = 0; other < n; ++other) {
      if (other != 1) of_device[pair_of(1, other)] = 5.0;
    }
    const auto device = cohort_misses(pair_values(n, 10.0, of_device), tolerance, true);
    EXPECT_EQ(device.size(), static_cast<size_t>(n - 1)) << n;
    for (const RankPair& pair : device) EXPECT_TRUE(pair.holds(1));
  }
  EXPECT_THAT(cohort_misses(steady({{{0, 1}, 5.0}}), tolerance, true), IsEmpty());
}

TEST(PairCohort, OnlyTheWorseSideAndOnlyBeyondTheTolerance) {
  const auto pairs = pair_values(5, 10.0, {{{0, 1}, 8.0}, {{1, 2}, 20.0}});
  EXPECT_THAT(cohort_misses(pairs, 0.1, true), ElementsAre(RankPair{0, 1}));
  EXPECT_THAT(cohort_misses(pairs, 0.1, false), ElementsAre(RankPair{1, 2}));
  EXPECT_THAT(cohort_misses(pairs, 0.3, true), IsEmpty());
}

// On a machine whose samples differ by a factor of two a pair that has once been as fast as the
// others usually are at worst does not stand out.
TEST(PairCohort, ADisturbanceThatComesAndGoesIsNoMiss) {
  auto pairs = pair_values(4, 10.0, {});
  for (auto& [pair, of_pair] : pairs) of_pair.worst = 6.0;
  pairs.at({1, 2}) = {.median = 5.0, .best = 6.5, .worst = 4.0};
  EXPECT_THAT(cohort_misses(pairs, 0.1, true), IsEmpty());
  pairs.at({1, 2}).best = 5.5;
  EXPECT_THAT(cohort_misses(pairs, 0.1, true), ElementsAre(RankPair{1, 2}));
}

// A machine on which some pairs share a switch and most do not has no bad links.
TEST(PairCohort, LinksOfTwoKindsAreNotTakenForBad) {
  std::map<RankPair, double> fast;
  for (int low = 0; low < 8; ++low) {
    for (int high = low + 1; high < 8; ++high) {
      if (low / 4 == high / 4) fast[{low, high}] = 24.0;
    }
  }
  EXPECT_THAT(cohort_misses(pair_values(8, 16.0, fast), 0.1, true), IsEmpty());
}

// What was measured one pair at a time is held against the good ones that were, too: one is enough.
TEST(PairsAlone, ASuspectIsHeldAgainstTheGoodOnesThatWereMeasuredAlone) {
  const auto together = pair_values(4, 6.0, {{{1, 3}, 4.0}});
  const std::set<RankPair> suspects{{1, 3}};
  const auto misses = [&](const std::map<RankPair, double>& alone, bool more_is_better) {
    return misses_alone(together, steady(alone), suspects, 0.2, more_is_better);
  };
  EXPECT_THAT(misses({{{1, 3}, 6.0}, {{0, 1}, 12.0}, {{0, 3}, 12.0}}, true),
              ElementsAre(RankPair{1, 3}));
  EXPECT_THAT(misses({{{1, 3}, 6.0}, {{0, 1}, 12.0}}, true), ElementsAre(RankPair{1, 3}));
  EXPECT_THAT(misses({{{1, 3}, 11.0}, {{0, 1}, 12.0}, {{0, 3}, 12.0}}, true), IsEmpty());
  EXPECT_THAT(misses({{{1, 3}, 6.0}, {{0, 1}, 3.0}, {{0, 3}, 3.0}}, false),
              ElementsAre(RankPair{1, 3}));
}

// As many suspects as good ones: their median would be between them.
TEST(PairsAlone, SuspectsDoNotExcuseOneAnother) {
  const std::set<RankPair> suspects{{0, 1}, {0, 2}, {1, 2}};
  const auto together = pair_values(5, 6.0, {{{0, 1}, 4.0}, {{0, 2}, 4.0}, {{1, 2}, 4.0}});
  const auto alone = steady({{{0, 1}, 6.0},
                             {{0, 2}, 6.0},
                             {{1, 2}, 6.0},
                             {{0, 3}, 12.0},
                             {{1, 3}, 12.0},
                             {{2, 3}, 12.0}});
  EXPECT_EQ(misses_alone(together, alone, suspects, 0.2, true), suspects);
  // Without good ones they are all there is to hold them against.
  EXPECT_THAT(
      misses_alone(
          together, steady({{{0, 1}, 6.0}, {{0, 2}, 12.0}, {{1, 2}, 12.0}}), suspects, 0.2, true),
      ElementsAre(RankPair{0, 1}));
}

// Of the good ones some may share a switch, which most pairs, and the suspect, do not.
TEST(PairsAlone, AGoodOneOfAFasterKindCountsAsTheOthers) {
  std::map<RankPair, double> values{{{0, 4}, 8.0}};
  for (int low = 0; low < 8; ++low) {
    for (int high = low + 1; high < 8; ++high) {
      if (low / 4 == high / 4) values[{low, high}] = 24.0;
    }
  }
  const auto together = pair_values(8, 16.0, values);
  const auto misses = [&](double suspect) {
    return misses_alone(
        together, steady({{{0, 4}, suspect}, {{0, 1}, 24.0}, {{4, 5}, 24.0}}), {{0, 4}}, 0.1, true);
  };
  EXPECT_THAT(misses(16.0), IsEmpty());
  EXPECT_THAT(misses(8.0), ElementsAre(RankPair{0, 4}));
}

struct Truth {
  std::set<int> devices;
  std::set<RankPair> links;

  std::set<RankPair> bad(int n) const {
    std::set<RankPair> pairs = links;
    for (const int device : devices) {
      for (int other = 0; other < n; ++other) {
        if (other != device) pairs.insert(pair_of(device, other));
      }
    }
    return pairs;
  }
};

struct Found {
  std::set<int> devices;
  std::set<RankPair> links;
  size_t undecided = 0;
  bool operator==(const Found&) const = default;
};

Found found_in(const std::vector<std::string>& hosts, const std::set<RankPair>& bad) {
  const LinkFaults faults = link_faults(hosts, bad);
  Found found{.undecided = faults.undecided.size()};
  size_t n_explained = faults.undecided.size();
  for (const LinkFault& fault : faults.faults) {
    n_explained += fault.pairs.size();
    EXPECT_FALSE(fault.blame.what.empty());
    EXPECT_EQ(fault.blame.host, hosts[static_cast<size_t>(fault.blame.ranks.front())]);
    if (fault.blame.kind == Blame::Kind::device) {
      EXPECT_TRUE(found.devices.insert(fault.blame.ranks.front()).second);
    } else {
      EXPECT_EQ(fault.blame.kind, Blame::Kind::link);
      EXPECT_TRUE(found.links.insert({fault.blame.ranks.front(), fault.blame.ranks.back()}).second);
    }
  }
  EXPECT_EQ(n_explained, bad.size());  // each pair is explained once
  return found;
}

std::vector<RankPair> all_pairs(int n) {
  std::vector<RankPair> pairs;
  for (const auto& round : pair_rounds(n)) pairs.insert(pairs.end(), round.begin(), round.end());
  return pairs;
}

// All single and double faults on one host. expected: what can be told of them.
void expect_of_all_faults(const std::vector<std::string>& hosts) {
  const auto n = static_cast<int>(hosts.size());
  const auto expect = [&](const Truth& truth, const Found& expected) {
    EXPECT_EQ(found_in(hosts, truth.bad(n)), expected)
        << n << " ranks, devices " << testing::PrintToString(truth.devices) << ", "
        << truth.links.size() << " links";
  };
  const Found all_bad{.devices = {}, .links = {}, .undecided = n == 2 ? 0U : 3U};
  const std::vector<RankPair> pairs = all_pairs(n);
  expect({}, {});
  if (n == 2) {  // one pair: the link is blamed whatever is at fault
    const Found link{.devices = {}, .links = {{0, 1}}};
    expect({.devices = {0}, .links = {}}, link);
    expect({.devices = {0, 1}, .links = {}}, link);
    expect({.devices = {}, .links = {{0, 1}}}, link);
    return;
  }
  for (int device = 0; device < n; ++device) {
    expect({{device}, {}}, {{device}, {}});
    // Of three ranks two bad ones leave no good pair.
    for (int other = device + 1; other < n; ++other) {
      expect({{device, other}, {}}, n == 3 ? all_bad : Found{{device, other}, {}});
    }
    for (const RankPair& link : pairs) {
      if (link.holds(device)) {
        expect({{device}, {link}}, {{device}, {}});
      } else {
        expect({{device}, {link}}, n == 3 ? all_bad : Found{{device}, {link}});
      }
    }
  }
  for (const RankPair& link : pairs) {
    expect({{}, {link}}, {{}, {link}});
    for (const RankPair& other : pairs) {
      if (!(link < other)) continue;
      // Of three ranks two bad links are all that the rank between them has.
      const int between = other.holds(link.low) ? link.low : link.high;
      expect({{}, {link, other}}, n == 3 ? Found{{between}, {}} : Found{{}, {link, other}});
    }
  }
}

TEST(LinkBlame, AllSingleAndDoubleFaultsOfTwoToEightRanksOnOneHost) {
  for (int n = 2; n <= 8; ++n) {
    expect_of_all_faults(std::vector<std::string>(static_cast<size_t>(n), "a"));
  }
}

TEST(LinkBlame, AllSingleAndDoubleFaultsOfOneRankAHost) {
  for (int n = 2; n <= 8; ++n) {
    std::vector<std::string> hosts;
    for (int r = 0; r < n; ++r) hosts.push_back("h" + std::to_string(r));
    expect_of_all_faults(hosts);
  }
}

TEST(LinkBlame, TwoRanksAreSaidNotToBeToldApart) {
  const LinkFaults faults = link_faults({"a", "b"}, {{0, 1}});
  ASSERT_EQ(faults.faults.size(), 1U);
  EXPECT_THAT(faults.faults.front().blame.what, HasSubstr("cannot be told apart"));
}

const std::vector<std::string> two_hosts{"a", "a", "b", "b"};
const std::vector<std::string> three_hosts{"a", "a", "b", "b", "c", "c"};

TEST(LinkBlame, WhatJoinsTwoHostsIsOneLink) {
  const std::set<RankPair> bad{{0, 2}, {0, 3}, {1, 2}, {1, 3}};
  for (const auto& hosts : {two_hosts, three_hosts}) {
    const LinkFaults faults = link_faults(hosts, bad);
    ASSERT_EQ(faults.faults.size(), 1U);
    EXPECT_EQ(faults.faults.front().blame.kind, Blame::Kind::link);
    EXPECT_THAT(faults.faults.front().blame.ranks, ElementsAre(0, 2));
    EXPECT_THAT(faults.faults.front().blame.what, HasSubstr("all 4 links between hosts a and b"));
    EXPECT_THAT(faults.undecided, IsEmpty());
  }
}

TEST(LinkBlame, AHostWithBadLinksToAllOthersIsBlamedItself) {
  std::set<RankPair> bad;
  for (const int mine : {2, 3}) {
    for (const int other : {0, 1, 4, 5}) bad.insert(pair_of(mine, other));
  }
  const LinkFaults faults = link_faults(three_hosts, bad);
  ASSERT_EQ(faults.faults.size(), 1U);
  EXPECT_EQ(faults.faults.front().blame.kind, Blame::Kind::host);
  EXPECT_EQ(faults.faults.front().blame.host, "b");
  EXPECT_THAT(faults.faults.front().blame.ranks, ElementsAre(2, 3));
  EXPECT_EQ(faults.faults.front().pairs.size(), bad.size());
}

TEST(LinkBlame, AllLinksBetweenThreeHostsAreUndecided) {
  std::set<RankPair> bad;
  for (const RankPair& pair : all_pairs(6)) {
    if (pair.low / 2 != pair.high / 2) bad.insert(pair);
  }
  const LinkFaults faults = link_faults(three_hosts, bad);
  EXPECT_THAT(faults.faults, IsEmpty());
  EXPECT_EQ(faults.undecided.size(), bad.size());
}

TEST(LinkBlame, ARankWhoseWaysOutOfItsHostAreBad) {
  EXPECT_EQ(found_in(two_hosts, {{0, 2}, {0, 3}}), (Found{{0}, {}}));
  EXPECT_EQ(found_in(two_hosts, {{0, 2}}), (Found{{}, {{0, 2}}}));
  EXPECT_EQ(found_in(two_hosts, {{0, 2}, {0, 3}, {0, 1}}), (Found{{0}, {}}));
  // Beside a bad link within the other host.
  EXPECT_EQ(found_in(two_hosts, {{0, 2}, {0, 3}, {2, 3}}), (Found{{0}, {{2, 3}}}));
}

TEST(LinkBlame, WithinAHost) {
  const std::vector<std::string> hosts{"a", "a", "a", "b", "b", "b"};
  EXPECT_EQ(found_in(hosts, {{0, 1}, {0, 2}}), (Found{{0}, {}}));
  EXPECT_EQ(found_in(hosts, {{3, 5}}), (Found{{}, {{3, 5}}}));
  const LinkFaults faults = link_faults(hosts, {{3, 4}, {3, 5}, {4, 5}});
  ASSERT_EQ(faults.faults.size(), 1U);
  EXPECT_EQ(faults.faults.front().blame.kind, Blame::Kind::host);
  EXPECT_EQ(faults.faults.front().blame.host, "b");
}

TEST(LinkBlame, SuspectsAreRepeatedWithThePartnersThatHaveFewestBadLinks) {
  const std::vector<std::string> one_host(5, "a");
  EXPECT_THAT(pairs_to_repeat(one_host, {}), IsEmpty());
  // 1 has a bad link with 3 and 0 with 2: 4 has none.
  EXPECT_THAT(pairs_to_repeat(one_host, {{0, 2}, {1, 3}}),
              UnorderedElementsAre(RankPair{0, 2},
                                   RankPair{1, 3},
                                   RankPair{0, 4},
                                   RankPair{1, 4},
                                   RankPair{2, 4},
                                   RankPair{3, 4}));
  // A partner of the same scope: between hosts 0 has 3 left, and 2 has 1.
  EXPECT_THAT(pairs_to_repeat(two_hosts, {{0, 2}}),
              UnorderedElementsAre(RankPair{0, 2}, RankPair{0, 3}, RankPair{1, 2}));
  // A bad device has nobody left.
  const std::set<RankPair> of_device{{0, 1}, {0, 2}};
  EXPECT_THAT(pairs_to_repeat({"a", "a", "a"}, of_device),
              UnorderedElementsAre(RankPair{0, 1}, RankPair{0, 2}, RankPair{1, 2}));
}

}  // namespace
}  // namespace testbed
