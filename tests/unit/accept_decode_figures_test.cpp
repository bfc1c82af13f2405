// The split of a decode step per device, and goodput, from records made by hand.
#include <gmock/gmock.h>

#include "runtime/accept/decode_figures.hpp"
#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::IsEmpty;

// D31: 1,000,000 bytes in 2000 us; rank 1 arrives at 7100, both are done at 8000.
TEST(DecodeFigures, reading_and_exposed_transfers_of_each_device) {
  const AnalysisInput input = late_rank_input();
  const auto splits = decode_splits(input.timelines, input.mesh);
  ASSERT_EQ(splits.size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    const DecodeSplit& split = splits[static_cast<size_t>(rank)];
    EXPECT_EQ(split.rank, rank);
    EXPECT_THAT(split.weight_read_gb_s, ElementsAre(DoubleEq(0.5)));
    EXPECT_THAT(split.exposed_comm_ms,
                ElementsAre(DoubleEq(0.9)));  // waiting for rank 1 is not in it
  }
}

// Repeats are apart, a step is the mean over a repeat's steps, and prefill is not decoding.
TEST(DecodeFigures, repeats_are_samples) {
  const Mesh mesh{.tp = 2};
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < 2; ++rank) {
    RankBuilder b(mesh, rank);
    int sequence = 0;
    const auto step = [&](Phase phase, int index, double begin, double op_us, double wire_us) {
      b.at(phase, index).step(begin, begin, begin + 500, begin + 500).at(phase, index, 0);
      b.op(begin, begin + op_us, {.weight_bytes = 100'000})
          .op(begin + op_us, begin + op_us + 5, {});
      b.all_reduce(sequence++, 800, begin + 300, begin + 300 + wire_us);
    };
    step(Phase::prefill, 0, 0, 7, 190);
    step(Phase::decode, 1, 500, 100, 20);
    step(Phase::decode, 2, 1000, 100, 40);
    b.repeat(1);
    step(Phase::decode, 1, 1500, 50, 10);
    timelines.push_back(b.t);
  }
  const auto splits = decode_splits(timelines, mesh);
  ASSERT_EQ(splits.size(), 2);
  EXPECT_THAT(splits[1].weight_read_gb_s, ElementsAre(DoubleEq(1.0), DoubleEq(2.0)));
  EXPECT_THAT(splits[1].exposed_comm_ms, ElementsAre(DoubleEq(0.03), DoubleEq(0.01)));
}

TEST(DecodeFigures, nothing_decoded) {
  EXPECT_THAT(decode_splits({}, {}), IsEmpty());
  RankBuilder b({}, 0);
  b.at(Phase::prefill, 0).step(0, 0, 10, 10).op(0, 5, {.weight_bytes = 100});
  EXPECT_THAT(decode_splits(std::vector<RankTimeline>{b.t}, {}), IsEmpty());
}

RequestRecord request(double ttft_ms, std::optional<double> tpot_ms) {
  RequestRecord record;
  record.ttft_ms = ttft_ms;
  record.tpot_ms = tpot_ms;
  return record;
}

// Of four requests one is late with its first token, one with the others; one has no others.
TEST(DecodeFigures, goodput_counts_what_met_both_targets) {
  RunRecord record;
  record.run.requests = {request(100, 10), request(201, 10), request(100, 21), request(200, {})};
  PhaseRecord prefill;
  prefill.duration_s.repeats = {0.5, 1.0};
  PhaseRecord decode;
  decode.duration_s.repeats = {0.5, 3.0};
  record.phases = {prefill, decode};
  EXPECT_THAT(goodput_per_s(record, 200, 20), ElementsAre(2.0, 0.5));
  EXPECT_THAT(goodput_per_s(record, 99, 20), ElementsAre(0.0, 0.0));
}

}  // namespace
}  // namespace testbed
