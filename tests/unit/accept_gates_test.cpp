#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/base/check.hpp"
#include "runtime/accept/figure_keys.hpp"
#include "runtime/accept/gates.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

FigureKey all_reduce(std::string_view figure, int64_t n_bytes, CommAlgorithm algorithm) {
  return collective_key(figure, CommOp::all_reduce, 8, n_bytes, "within-host", algorithm);
}

// Expected to be 100, with a tenth.
Expectation expect(FigureKey key) {
  return {.key = std::move(key), .expected = 100.0, .tolerance = 0.1, .where = "p.toml:7"};
}

AcceptanceProfile profile_of(std::vector<Expectation> expectations) {
  AcceptanceProfile profile;
  profile.expectations = std::move(expectations);
  return profile;
}

TEST(AcceptGates, a_rate_may_be_a_tolerance_less_and_a_time_a_tolerance_more) {
  const AcceptanceProfile profile =
      profile_of({expect(read_key()), expect(link_key("link.one_way_us", 8, "within-host"))});
  EXPECT_TRUE(judged(profile, read_key(), {90.0}).passed);
  EXPECT_FALSE(judged(profile, read_key(), {89.9}).passed);
  EXPECT_TRUE(judged(profile, read_key(), {1000.0}).passed);
  const FigureKey time = link_key("link.one_way_us", 8, "within-host");
  EXPECT_TRUE(judged(profile, time, {110.0}).passed);
  EXPECT_FALSE(judged(profile, time, {110.1}).passed);
  EXPECT_TRUE(judged(profile, time, {1.0}).passed);
}

TEST(AcceptGates, the_median_is_judged_and_what_is_no_number_does_not_pass) {
  const AcceptanceProfile profile = profile_of({expect(read_key())});
  EXPECT_TRUE(judged(profile, read_key(), {1.0, 95.0, 96.0}).passed);
  EXPECT_FALSE(judged(profile, read_key(), {1.0, 2.0, 96.0}).passed);
  EXPECT_FALSE(judged(profile, read_key(), {std::numeric_limits<double>::quiet_NaN()}).passed);
}

TEST(AcceptGates, what_the_profile_does_not_expect_is_shown_and_not_judged) {
  const Figure figure = judged(profile_of({}), gemm_key(DType::BF16), {1e-9}, {3});
  EXPECT_FALSE(figure.gate.has_value());
  EXPECT_TRUE(figure.passed);
  EXPECT_EQ(figure.unit, "TFLOP/s");
  EXPECT_THAT(figure.ranks, ElementsAre(3));
}

TEST(AcceptGates, D33_a_slow_size_is_not_hidden_by_the_others) {
  const auto busbw = [](int64_t mib) {
    return all_reduce("collective.busbw_gb_s", mib << 20, CommAlgorithm::ring);
  };
  const AcceptanceProfile profile =
      profile_of({expect(busbw(16)), expect(busbw(32)), expect(busbw(64))});
  CaseResult result{.stage = "collectives", .name = "all_reduce 8 ranks"};
  result.figures = {judged(profile, busbw(16), {300.0}),
                    judged(profile, busbw(32), {50.0}),
                    judged(profile, busbw(64), {300.0})};
  judge(result);
  EXPECT_EQ(result.status, CaseStatus::failed);
  EXPECT_THAT(result.reason, HasSubstr("33554432 bytes"));
  EXPECT_THAT(result.reason, HasSubstr("50 GB/s, must be at least 90"));
  EXPECT_THAT(result.reason, HasSubstr("p.toml:7"));
}

TEST(AcceptGates, the_worst_miss_is_named_and_the_others_counted) {
  const AcceptanceProfile profile = profile_of({expect(read_key())});
  CaseResult result;
  result.figures = {judged(profile, read_key(), {80.0}, {0}),
                    judged(profile, read_key(), {20.0}, {5}),
                    judged(profile, read_key(), {100.0}, {6})};
  judge(result);
  EXPECT_THAT(result.reason, HasSubstr("of rank 5: 20 GB/s"));
  EXPECT_THAT(result.reason, HasSubstr("1 more figures miss"));
}

TEST(AcceptGates, a_wrong_value_stays_the_reason) {
  const AcceptanceProfile profile = profile_of({expect(read_key())});
  CaseResult result{.status = CaseStatus::failed, .corrupt = true, .reason = "a wrong value"};
  result.figures = {judged(profile, read_key(), {1.0})};
  judge(result);
  EXPECT_EQ(result.reason, "a wrong value");
  EXPECT_THAT(result.notes, ElementsAre(HasSubstr("must be at least")));
}

TEST(AcceptGates, a_ring_is_not_held_to_what_NVLS_does) {
  const AcceptanceProfile profile =
      profile_of({expect(all_reduce("collective.busbw_gb_s", 1 << 24, CommAlgorithm::nvls))});
  const auto figure = [&](CommAlgorithm algorithm) {
    return judged(profile, all_reduce("collective.busbw_gb_s", 1 << 24, algorithm), {10.0});
  };
  EXPECT_FALSE(figure(CommAlgorithm::nvls).passed);
  EXPECT_FALSE(figure(CommAlgorithm::ring).gate.has_value());
}

TEST(AcceptGates, the_expectation_that_says_most_of_a_figure_counts) {
  const FigureKey ring = all_reduce("collective.us", 512, CommAlgorithm::ring);
  FigureKey any_ranks = ring;
  any_ranks.ranks.reset();
  any_ranks.algorithm.reset();
  Expectation general = expect(any_ranks);
  general.expected = 1.0;
  const AcceptanceProfile profile = profile_of({general, expect(ring), general});
  EXPECT_EQ(expectation_for(profile, ring)->expected, 100.0);
  EXPECT_EQ(
      expectation_for(profile, all_reduce("collective.us", 512, CommAlgorithm::tree))->expected,
      1.0);
  EXPECT_FALSE(
      expectation_for(profile, all_reduce("collective.us", 1024, CommAlgorithm::ring)).has_value());
}

TEST(AcceptGates, D35_one_rank_has_no_bus_bandwidth) {
  const FigureKey key = collective_key(
      "collective.busbw_gb_s", CommOp::all_reduce, 1, 1 << 24, "within-host", CommAlgorithm::none);
  EXPECT_THROW(judged(profile_of({}), key, {0.0}), InternalError);
}

TEST(AcceptGates, D35_of_one_sample_the_median_is_that_sample) {
  const AcceptanceProfile profile = profile_of({expect(read_key())});
  EXPECT_TRUE(judged(profile, read_key(), {90.0}).passed);
  EXPECT_FALSE(judged(profile, read_key(), {89.0}).passed);
}

TEST(AcceptGates, outliers_are_beyond_both_the_tolerance_and_the_median_deviation) {
  EXPECT_THAT(outliers(std::vector{60.0, 61.0, 31.0, 62.0}, 0.1, true), ElementsAre(2));
  // As far on the better side is none.
  EXPECT_THAT(outliers(std::vector{60.0, 61.0, 31.0, 62.0}, 0.1, false), IsEmpty());
  EXPECT_THAT(outliers(std::vector{5.0, 5.0, 5.0, 9.0}, 0.1, false), ElementsAre(3));
  // Within a tenth of the median, 100.
  EXPECT_THAT(outliers(std::vector{91.0, 100.0, 100.0, 100.0}, 0.1, true), IsEmpty());
  EXPECT_THAT(outliers(std::vector{89.0, 100.0, 100.0, 100.0}, 0.1, true), ElementsAre(0));
  // The deviations 40, 20, 0, 20, 20 have the median 20: what scatters so has only one outlier.
  EXPECT_THAT(outliers(std::vector{60.0, 80.0, 100.0, 120.0, 120.0}, 0.1, true), ElementsAre(0));
  // Two are no cohort.
  EXPECT_THAT(outliers(std::vector{60.0, 1.0}, 0.1, true), IsEmpty());
}

TEST(FigureKeys, a_scope_is_told_by_the_hosts) {
  const std::vector<std::string> hosts{"a", "a", "b", "b"};
  EXPECT_EQ(scope_of(hosts, {0, 1}), "within-host");
  EXPECT_EQ(scope_of(hosts, {2, 3}), "within-host");
  EXPECT_EQ(scope_of(hosts, {1, 2}), "between-hosts");
}

TEST(FigureKeys, every_field_that_is_set_is_said) {
  EXPECT_EQ(describe(all_reduce("collective.us", 512, CommAlgorithm::ring)),
            "collective.us all_reduce 8 ranks 512 bytes within-host ring");
  EXPECT_EQ(describe(gemm_key(DType::BF16)), "device.gemm_tflop_s bf16");
  EXPECT_EQ(describe(model_key("model.tpot_ms", "llama3-8b", "tp 8")),
            "model.tpot_ms llama3-8b tp 8");
}

}  // namespace
}  // namespace testbed
