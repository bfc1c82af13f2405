// Samples of pairs to figures, status and blame; and the cases that the stages links and device
// plan.
#include <gmock/gmock.h>

#include "runtime/accept/link_judgement.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t n_bytes = int64_t{16} << 20;
constexpr auto bandwidth = LinkJudgement::Measures::bandwidth;
constexpr auto latency = LinkJudgement::Measures::latency;

// All pairs of four ranks at 4 GB/s one way, 6 both ways.
SamplesOfPairs good_samples() {
  SamplesOfPairs samples;
  for (int low = 0; low < 4; ++low) {
    for (int high = low + 1; high < 4; ++high) {
      const auto size = static_cast<double>(n_bytes);
      samples[{low, high}] = {.n_bytes = n_bytes,
                              .one_way_s = {size / 4e9, size / 3.9e9, size / 4.1e9},
                              .both_ways_s = {2 * size / 6e9, 2 * size / 6e9, 2 * size / 6e9},
                              .wrong = std::nullopt};
    }
  }
  return samples;
}

// One way more than both ways: that is what is told.
void slow_down(PairSamples& samples, double factor) {
  for (double& s : samples.one_way_s) s *= factor;
  for (double& s : samples.both_ways_s) s *= 0.9 * factor;
}

class LinkJudgementTest : public testing::Test {
 protected:
  CaseResult result_of(const SamplesOfPairs& together, LinkJudgement::Measures measures) const {
    return result_of(LinkSamples{.together = together, .alone = {}}, measures);
  }
  CaseResult result_of(const LinkSamples& samples, LinkJudgement::Measures measures) const {
    const int64_t planned = measures == latency ? 8 : n_bytes;
    const LinkJudgement judgement(profile, hosts, measures, planned, true);
    CaseResult result{.stage = "links", .name = "test"};
    judgement.conclude(samples, result);
    return result;
  }
  std::set<RankPair> suspects(const SamplesOfPairs& together) const {
    return LinkJudgement(profile, hosts, bandwidth, n_bytes, true).suspects(together);
  }
  AcceptanceProfile profile{.name = "p", .device = "cpu"};
  std::vector<std::string> hosts{"a", "a", "a", "a"};
};

TEST_F(LinkJudgementTest, GoodLinksPassWithAllFiguresAndTheMatrix) {
  const CaseResult result = result_of(good_samples(), bandwidth);
  EXPECT_EQ(result.status, CaseStatus::passed) << result.reason;
  EXPECT_THAT(result.blamed, IsEmpty());
  ASSERT_EQ(result.figures.size(), 12U);
  EXPECT_EQ(result.figures[0].key.figure, "link.one_way_gb_s");
  EXPECT_EQ(result.figures[0].key.scope, "within-host");
  EXPECT_EQ(result.figures[0].key.bytes, n_bytes);
  EXPECT_THAT(result.figures[0].ranks, ElementsAre(0, 1));
  EXPECT_DOUBLE_EQ(result.figures[0].samples[0], 4.0);
  EXPECT_EQ(result.figures[1].key.figure, "link.both_ways_gb_s");
  EXPECT_DOUBLE_EQ(result.figures[1].samples[0], 6.0);
  ASSERT_EQ(result.matrices.size(), 1U);
  const auto& values = result.matrices.front().values;
  ASSERT_EQ(values.size(), 4U);
  EXPECT_FALSE(values[2][2]);
  EXPECT_DOUBLE_EQ(*values[0][3], 4.0);
  EXPECT_DOUBLE_EQ(*values[3][0], 4.0);
}

TEST_F(LinkJudgementTest, ASlowLinkIsBlamedAndNoOther) {
  SamplesOfPairs samples = good_samples();
  slow_down(samples.at({1, 3}), 10.0);
  const CaseResult result = result_of(samples, bandwidth);
  EXPECT_EQ(result.status, CaseStatus::failed);
  EXPECT_FALSE(result.corrupt);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_EQ(result.blamed[0].kind, Blame::Kind::link);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(1, 3));
  EXPECT_THAT(result.blamed[0].what, HasSubstr("0.4 GB/s one way with 16 MiB, the others 4"));
  EXPECT_THAT(result.reason, HasSubstr("link 1-3"));
}

TEST_F(LinkJudgementTest, ASlowDeviceIsBlamedOnce) {
  SamplesOfPairs samples = good_samples();
  for (auto& [pair, of_pair] : samples) {
    if (pair.holds(2)) slow_down(of_pair, 4.0);
  }
  const CaseResult result = result_of(samples, bandwidth);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_EQ(result.blamed[0].kind, Blame::Kind::device);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(2));
  EXPECT_THAT(result.blamed[0].what, HasSubstr("all its 3 links are bad"));
}

TEST_F(LinkJudgementTest, OneDirectionThatIsSlowShowsBothWays) {
  SamplesOfPairs samples = good_samples();
  for (double& s : samples.at({0, 2}).both_ways_s) s *= 10.0;
  const CaseResult result = result_of(samples, bandwidth);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(0, 2));
  EXPECT_THAT(result.blamed[0].what, HasSubstr("0.6 GB/s both ways"));
}

TEST_F(LinkJudgementTest, GatesAreHeldPairByPairAndSizeBySize) {
  profile.expectations = {{.key = {.figure = "link.one_way_gb_s", .bytes = n_bytes},
                           .expected = 4.0,
                           .tolerance = 0.1,
                           .source = "test",
                           .where = "test:1"},
                          {.key = {.figure = "link.one_way_gb_s", .bytes = 8},
                           .expected = 1e9,
                           .tolerance = 0.0,
                           .source = "of another size",
                           .where = "test:2"}};
  profile.cohort_tolerance = 0.9;  // the cohort says nothing
  EXPECT_EQ(result_of(good_samples(), bandwidth).status, CaseStatus::passed);
  SamplesOfPairs samples = good_samples();
  slow_down(samples.at({0, 1}), 1.25);
  const CaseResult result = result_of(samples, bandwidth);
  EXPECT_EQ(result.status, CaseStatus::failed);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(std::count_if(result.figures.begin(),
                          result.figures.end(),
                          [](const Figure& figure) { return !figure.passed; }),
            1);
}

TEST_F(LinkJudgementTest, AllBelowTheProfileBlamesNobodyAndFails) {
  profile.expectations = {{.key = {.figure = "link.one_way_gb_s"},
                           .expected = 40.0,
                           .tolerance = 0.1,
                           .source = "test",
                           .where = "test:1"}};
  const CaseResult result = result_of(good_samples(), bandwidth);
  EXPECT_EQ(result.status, CaseStatus::failed);
  EXPECT_THAT(result.blamed, IsEmpty());
  EXPECT_THAT(result.reason, HasSubstr("no partner is good"));
}

TEST_F(LinkJudgementTest, LinksBetweenHostsAreHeldAgainstEachOther) {
  hosts = {"a", "a", "b", "b"};
  SamplesOfPairs samples = good_samples();
  for (auto& [pair, of_pair] : samples) {
    if (pair.low < 2 && pair.high >= 2) slow_down(of_pair, 20.0);
  }
  EXPECT_EQ(result_of(samples, bandwidth).status, CaseStatus::passed);
  slow_down(samples.at({0, 3}), 10.0);
  const CaseResult result = result_of(samples, bandwidth);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(0, 3));
  EXPECT_THAT(result.blamed[0].what, HasSubstr("the others 0.2"));
}

TEST_F(LinkJudgementTest, WrongBytesAreCorruptionOfThatLink) {
  SamplesOfPairs samples = good_samples();
  samples.at({1, 2}).wrong =
      WrongMessage{.from = 2,
                   .to = 1,
                   .n_bytes = n_bytes,
                   .bytes = {.first = 4096, .count = 3, .is = 0x5a, .should_be = 0x5b}};
  const CaseResult result = result_of(samples, bandwidth);
  EXPECT_EQ(result.status, CaseStatus::failed);
  EXPECT_TRUE(result.corrupt);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_EQ(result.blamed[0].kind, Blame::Kind::link);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(1, 2));
  EXPECT_THAT(result.reason,
              HasSubstr("byte 4096 of 16 MiB from rank 2 to rank 1 is 0x5a and was sent as 0x5b"));
}

TEST_F(LinkJudgementTest, WrongBytesThatCameAloneAreToldWithTheirMessagesSize) {
  LinkSamples samples{.together = good_samples(), .alone = {}};
  samples.together.at({1, 2}).wrong = WrongMessage{
      .from = 1, .to = 2, .n_bytes = 8, .bytes = {.count = 1, .is = 1, .should_be = 0}};
  EXPECT_THAT(suspects(samples.together), ElementsAre(RankPair{1, 2}));
  samples.alone[{1, 2}] = good_samples().at({1, 2});
  samples.alone[{0, 1}] = samples.alone[{2, 3}] = good_samples().at({0, 1});
  samples.alone.at({2, 3}).wrong = WrongMessage{
      .from = 3, .to = 2, .n_bytes = n_bytes, .bytes = {.count = 1, .is = 1, .should_be = 0}};
  const CaseResult result = result_of(samples, bandwidth);
  EXPECT_TRUE(result.corrupt);
  EXPECT_THAT(result.reason, HasSubstr("byte 0 of 8 B from rank 1 to rank 2"));
  EXPECT_THAT(result.reason, HasSubstr("byte 0 of 16 MiB from rank 3 to rank 2"));
}

// Many pairs at a time share what they go over: half as fast alone is as fast as most in a crowd.
TEST_F(LinkJudgementTest, WhoIsMeasuredAloneIsHeldAgainstWhoIsGoodAlone) {
  profile.cohort_tolerance = 0.2;
  LinkSamples samples{.together = good_samples(), .alone = {}};
  slow_down(samples.together.at({1, 3}), 1.6);
  EXPECT_THAT(suspects(samples.together), ElementsAre(RankPair{1, 3}));
  for (const RankPair& pair : {RankPair{0, 1}, RankPair{0, 3}}) {
    samples.alone[pair] = good_samples().at(pair);
    slow_down(samples.alone.at(pair), 0.5);
  }
  samples.alone[{1, 3}] = good_samples().at({1, 3});
  const CaseResult slow = result_of(samples, bandwidth);
  EXPECT_EQ(slow.status, CaseStatus::failed);
  ASSERT_EQ(slow.blamed.size(), 1U);
  EXPECT_EQ(slow.blamed[0].kind, Blame::Kind::link);
  EXPECT_THAT(slow.blamed[0].ranks, ElementsAre(1, 3));
  EXPECT_THAT(slow.blamed[0].what, HasSubstr("the others 13.3"));  // alone, not the 6 of the crowd
  // Each matrix is of one kind.
  ASSERT_EQ(slow.matrices.size(), 2U);
  EXPECT_DOUBLE_EQ(*slow.matrices[0].values[1][3], 2.5);
  EXPECT_DOUBLE_EQ(*slow.matrices[0].values[0][1], 4.0);
  EXPECT_DOUBLE_EQ(*slow.matrices[1].values[1][3], 4.0);
  EXPECT_DOUBLE_EQ(*slow.matrices[1].values[0][1], 8.0);
  EXPECT_FALSE(slow.matrices[1].values[0][2]);
  EXPECT_THAT(slow.matrices[1].title, HasSubstr("one pair at a time"));
  EXPECT_EQ(slow.figures.size(), 12U);

  samples.alone[{1, 3}] = samples.alone.at({0, 1});
  const CaseResult disturbed = result_of(samples, bandwidth);
  EXPECT_EQ(disturbed.status, CaseStatus::passed) << disturbed.reason;
  EXPECT_THAT(disturbed.blamed, IsEmpty());
}

// The messages of a slow pair are shortened, not its gate lifted; and 2 ranks have no cohort.
TEST_F(LinkJudgementTest, APairWhoseMessagesWereShortenedMissesTheGateOfThePlannedSize) {
  hosts = {"a", "a"};
  profile.expectations = {{.key = {.figure = "link.one_way_gb_s", .bytes = n_bytes},
                           .expected = 1.25,
                           .tolerance = 0.25,
                           .source = "test",
                           .where = "test:1"}};
  constexpr int64_t shortened = n_bytes / 2;
  const auto seconds = static_cast<double>(shortened) / 0.0125e9;
  const SamplesOfPairs samples{{{0, 1},
                                {.n_bytes = shortened,
                                 .one_way_s = {seconds, seconds},
                                 .both_ways_s = {seconds, seconds},
                                 .wrong = std::nullopt}}};
  EXPECT_THAT(suspects(samples), ElementsAre(RankPair{0, 1}));
  const CaseResult result = result_of(samples, bandwidth);
  EXPECT_EQ(result.status, CaseStatus::failed);
  EXPECT_EQ(result.figures[0].key.bytes, n_bytes);
  EXPECT_DOUBLE_EQ(result.figures[0].samples[0], 0.0125);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_THAT(result.blamed[0].what, HasSubstr("0.0125 GB/s one way with 8 MiB, expected 1.25"));
}

TEST_F(LinkJudgementTest, LatencyIsWorseTheLongerItIs) {
  SamplesOfPairs samples = good_samples();
  for (auto& [pair, of_pair] : samples) of_pair.n_bytes = 8;
  for (double& s : samples.at({0, 1}).one_way_s) s *= 3.0;
  for (double& s : samples.at({0, 2}).one_way_s) s /= 3.0;
  const CaseResult result = result_of(samples, latency);
  EXPECT_EQ(result.figures.size(), 6U);
  EXPECT_FALSE(result.matrices.front().more_is_better);
  ASSERT_EQ(result.blamed.size(), 1U);
  EXPECT_THAT(result.blamed[0].ranks, ElementsAre(0, 1));
}

}  // namespace
}  // namespace testbed
