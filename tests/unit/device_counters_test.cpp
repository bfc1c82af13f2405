// What devices say of themselves: sums over the timed generations, the way to rank 0, and what is
// concluded from it.
#include "runtime/measure/device_counters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/synthetic_run.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Every figure there is, each another one.
DeviceCounters all_figures() {
  return {.seconds = 2.0,
          .joules = 600.5,
          .nvlink_tx_bytes = 1001,
          .nvlink_rx_bytes = 1002,
          .pcie_tx_bytes = 1003,
          .pcie_rx_bytes = 1004,
          .ib_tx_bytes = 1007,
          .ib_rx_bytes = 1008,
          .throttle_reasons = std::vector<std::string>{"sw_power_cap", "hw_slowdown"},
          .power_throttled_s = 0.25,
          .thermal_throttled_s = 0.5,
          .xids = std::vector<int64_t>{79, 31},
          .ecc_corrected = 3,
          .ecc_uncorrected = 1,
          .sm_clock_mhz_min = 1410,
          .sm_clock_mhz_max = 1980,
          .temperature_c_max = 71,
          .dram_read_bytes = 1005,
          .dram_write_bytes = 1006,
          .why_no_dram = "why"};
}

DeviceCounters after_the_wire(const DeviceCounters& counters) {
  ByteWriter out;
  put(out, counters);
  const std::vector<std::byte> bytes = out.take();
  ByteReader in(bytes);
  const DeviceCounters back = get_device_counters(in);
  EXPECT_TRUE(in.at_end());
  return back;
}

void expect_equal(const DeviceCounters& a, const DeviceCounters& b) {
  EXPECT_EQ(a.seconds, b.seconds);
  EXPECT_EQ(a.joules, b.joules);
  EXPECT_EQ(a.nvlink_tx_bytes, b.nvlink_tx_bytes);
  EXPECT_EQ(a.nvlink_rx_bytes, b.nvlink_rx_bytes);
  EXPECT_EQ(a.pcie_tx_bytes, b.pcie_tx_bytes);
  EXPECT_EQ(a.pcie_rx_bytes, b.pcie_rx_bytes);
  EXPECT_EQ(a.ib_tx_bytes, b.ib_tx_bytes);
  EXPECT_EQ(a.ib_rx_bytes, b.ib_rx_bytes);
  EXPECT_EQ(a.throttle_reasons, b.throttle_reasons);
  EXPECT_EQ(a.power_throttled_s, b.power_throttled_s);
  EXPECT_EQ(a.thermal_throttled_s, b.thermal_throttled_s);
  EXPECT_EQ(a.xids, b.xids);
  EXPECT_EQ(a.ecc_corrected, b.ecc_corrected);
  EXPECT_EQ(a.ecc_uncorrected, b.ecc_uncorrected);
  EXPECT_EQ(a.sm_clock_mhz_min, b.sm_clock_mhz_min);
  EXPECT_EQ(a.sm_clock_mhz_max, b.sm_clock_mhz_max);
  EXPECT_EQ(a.temperature_c_max, b.temperature_c_max);
  EXPECT_EQ(a.dram_read_bytes, b.dram_read_bytes);
  EXPECT_EQ(a.dram_write_bytes, b.dram_write_bytes);
  EXPECT_EQ(a.why_no_dram, b.why_no_dram);
}

TEST(DeviceCounters, arrive_as_they_were) {
  expect_equal(after_the_wire(all_figures()), all_figures());
  expect_equal(after_the_wire({.seconds = 1.0}), {.seconds = 1.0});
}

TEST(DeviceCounters, of_two_stretches_add_up) {
  DeviceCounters second = all_figures();
  second.throttle_reasons = {"hw_slowdown", "sync_boost"};
  second.xids = {43};
  second.sm_clock_mhz_min = 1200;
  second.sm_clock_mhz_max = 1500;
  second.temperature_c_max = 80;
  expect_equal(
      together(all_figures(), second),
      {.seconds = 4.0,
       .joules = 1201.0,
       .nvlink_tx_bytes = 2002,
       .nvlink_rx_bytes = 2004,
       .pcie_tx_bytes = 2006,
       .pcie_rx_bytes = 2008,
       .ib_tx_bytes = 2014,
       .ib_rx_bytes = 2016,
       .throttle_reasons = std::vector<std::string>{"sw_power_cap", "hw_slowdown", "sync_boost"},
       .power_throttled_s = 0.5,
       .thermal_throttled_s = 1.0,
       .xids = std::vector<int64_t>{79, 31, 43},
       .ecc_corrected = 6,
       .ecc_uncorrected = 2,
       .sm_clock_mhz_min = 1200,
       .sm_clock_mhz_max = 1980,
       .temperature_c_max = 80,
       .dram_read_bytes = 2010,
       .dram_write_bytes = 2012,
       .why_no_dram = "why"});
}

TEST(DeviceCounters, what_one_stretch_does_not_tell_both_do_not) {
  expect_equal(together(all_figures(), {.seconds = 1.0}), {.seconds = 3.0, .why_no_dram = "why"});
}

TEST(CounterWindows, sum_what_lies_between_begin_and_end) {
  double joules = 0.0;
  double at_begin = 0.0;
  CounterWindows windows(
      [&] { at_begin = joules; },
      [&] { return DeviceCounters{.seconds = 1.0, .joules = joules - at_begin}; });
  EXPECT_FALSE(windows.total());
  for (const double in_window : {300.0, 500.0}) {
    windows.begin();
    joules += in_window;
    windows.end();
    joules += 1e6;  // the read loop's
  }
  EXPECT_EQ(windows.total()->joules, 800.0);
  EXPECT_EQ(windows.total()->seconds, 2.0);
}

TEST(CounterWindows, of_a_device_without_counters_are_none) {
  CounterWindows windows({}, {});
  windows.begin();
  windows.end();
  EXPECT_FALSE(windows.total());
}

DeviceCountersRecord record_of(int rank, const DeviceCounters& counters) {
  return {.rank = rank,
          .device = "GPU " + std::to_string(rank),
          .counters = counters,
          .transport = "nvlink"};
}

TEST(CounterLabels, quiet_devices_have_none) {
  EXPECT_THAT(counter_labels({}), IsEmpty());
  EXPECT_THAT(counter_labels({record_of(0, {}),
                              record_of(1,
                                        {.throttle_reasons = std::vector<std::string>{},
                                         .power_throttled_s = 0.0,
                                         .thermal_throttled_s = 0.0,
                                         .xids = std::vector<int64_t>{},
                                         .ecc_corrected = 12,
                                         .ecc_uncorrected = 0})}),
              IsEmpty());
}

TEST(CounterLabels, clocks_held_down_are_named_with_their_ranks) {
  const DeviceCounters hot{.throttle_reasons = std::vector<std::string>{"hw_thermal_slowdown"},
                           .thermal_throttled_s = 1.5};
  const DeviceCounters missed{.throttle_reasons = std::vector<std::string>{},
                              .power_throttled_s = 0.1,
                              .thermal_throttled_s = 0.2};
  EXPECT_THAT(counter_labels(
                  {record_of(0, hot), record_of(1, {}), record_of(2, missed), record_of(3, hot)}),
              ElementsAre("ranks 0, 3: clocks held down: hw_thermal_slowdown",
                          "rank 2: clocks held down: power, heat"));
}

TEST(CounterLabels, faults_are_named_with_their_rank) {
  EXPECT_THAT(counter_labels({record_of(0, {.xids = std::vector<int64_t>{48, 94}}),
                              record_of(1, {.ecc_uncorrected = 2})}),
              ElementsAre("rank 0: Xid 48, 94", "rank 1: uncorrected ECC errors: 2"));
}

DeviceCountersRecord sent(int rank, int64_t counted, int64_t predicted) {
  DeviceCountersRecord record = record_of(rank, {.nvlink_tx_bytes = counted});
  record.predicted_wire_bytes = predicted;
  record.predicted_link_bytes = {{predicted, predicted}};
  return record;
}

TEST(CounterLabels, nvlink_bytes_may_be_a_fifth_off) {
  constexpr int64_t predicted = 100'000'000;
  EXPECT_THAT(counter_labels({sent(0, 120'000'000, predicted), sent(1, 84'000'000, predicted)}),
              IsEmpty());
  EXPECT_THAT(
      counter_labels({sent(0, 121'000'000, predicted), sent(1, 0, predicted), sent(2, 80, 8000)}),
      ElementsAre("rank 1: NVLink counted 0 bytes sent, predicted 100000000; the worst of 2"));
  EXPECT_THAT(counter_labels({sent(0, 200'000'000, predicted)}),
              ElementsAre("rank 0: NVLink counted 200000000 bytes sent, predicted 100000000"));
}

TEST(CounterLabels, nvlink_bytes_are_held_against_what_links_carry) {
  const auto between = [](int64_t counted) {
    DeviceCountersRecord record = sent(0, counted, 100'000'000);
    record.predicted_link_bytes = {{100'000'000, 200'000'000}};
    return counter_labels({record});
  };
  for (const int64_t counted : {84'000'000, 150'000'000, 240'000'000}) {
    EXPECT_THAT(between(counted), IsEmpty()) << counted;
  }
  EXPECT_THAT(
      between(242'000'000),
      ElementsAre("rank 0: NVLink counted 242000000 bytes sent, predicted 100000000 to 200000000"));
  EXPECT_THAT(between(80'000'000), testing::SizeIs(1));
  DeviceCountersRecord in_switches = sent(0, 1'000'000'000, 100'000'000);
  in_switches.predicted_link_bytes = std::nullopt;
  EXPECT_THAT(counter_labels({in_switches}), IsEmpty());
}

TEST(CounterLabels, nvlink_bytes_are_not_compared_where_not_all_of_them_are_the_ranks) {
  DeviceCountersRecord mixed = sent(0, 0, 100'000'000);
  mixed.transport = "ib, nvlink";
  DeviceCountersRecord first = sent(1, 0, 100'000'000);
  DeviceCountersRecord second = sent(2, 0, 100'000'000);
  first.device = second.device = "GPU that both share";
  EXPECT_THAT(counter_labels({mixed, first, second}), IsEmpty());
}

TEST(CounterLabels, pcie_bytes_have_headers_of_their_own) {
  const auto labels_of = [](std::string transport, int64_t counted) {
    DeviceCountersRecord record = record_of(0, {.pcie_tx_bytes = counted});
    record.predicted_link_bytes = {{100'000'000, 100'000'000}};
    record.transport = std::move(transport);
    return counter_labels({record});
  };
  // 28 bytes to 128, and a fifth.
  for (const std::string transport : {"shm", "pcie-p2p"}) {
    EXPECT_THAT(labels_of(transport, 146'000'000), IsEmpty());
    EXPECT_THAT(labels_of(transport, 84'000'000), IsEmpty());
    EXPECT_THAT(labels_of(transport, 150'000'000),
                ElementsAre("rank 0: PCIe counted 150000000 bytes sent, predicted 100000000 to "
                            "121875000"));
    EXPECT_THAT(labels_of(transport, 1000), testing::SizeIs(1));  // it went another way
  }
  EXPECT_THAT(labels_of("nvlink", 1000), IsEmpty());
}

// Two ranks of a host that predict 60 MB and 40 MB.
std::vector<DeviceCountersRecord> of_host(const std::string& host, int64_t counted) {
  std::vector<DeviceCountersRecord> records;
  for (const int64_t predicted : {60'000'000, 40'000'000}) {
    DeviceCountersRecord& record =
        records.emplace_back(record_of(static_cast<int>(records.size()), {.ib_tx_bytes = counted}));
    record.host = host;
    record.transport = "ib+gdr";
    record.predicted_link_bytes = {{predicted, predicted}};
  }
  return records;
}

TEST(CounterLabels, infiniband_bytes_are_a_hosts) {
  EXPECT_THAT(counter_labels(of_host("a", 101'000'000)), IsEmpty());
  std::vector<DeviceCountersRecord> both = of_host("a", 100'000'000);
  for (const DeviceCountersRecord& record : of_host("b", 3000)) both.push_back(record);
  EXPECT_THAT(counter_labels(both),
              ElementsAre("host b: InfiniBand counted 3000 bytes sent, predicted 100000000"));
}

TEST(CounterLabels, infiniband_bytes_are_not_compared_where_not_all_go_there) {
  std::vector<DeviceCountersRecord> records = of_host("a", 3000);
  records[1].transport = "ib, nvlink";
  EXPECT_THAT(counter_labels(records), IsEmpty());
  records = of_host("a", 3000);
  records[1].predicted_link_bytes = std::nullopt;
  EXPECT_THAT(counter_labels(records), IsEmpty());
  records = of_host("a", 3000);
  records[0].counters.ib_tx_bytes = std::nullopt;
  EXPECT_THAT(counter_labels(records), IsEmpty());
}

TEST(Energy, is_that_of_all_devices_once) {
  DeviceCountersRecord second = record_of(1, {.joules = 300.0});
  DeviceCountersRecord third = record_of(2, {.joules = 300.0});
  third.device = second.device;
  const auto energy = energy_of({record_of(0, {.joules = 200.0}), second, third}, 250);
  EXPECT_DOUBLE_EQ(energy.value().joules, 500.0);
  EXPECT_DOUBLE_EQ(energy.value().joules_per_token.value(), 2.0);
  EXPECT_EQ(energy_of({record_of(0, {.joules = 1.0})}, 0).value().joules_per_token, std::nullopt);
}

TEST(Energy, is_not_known_where_one_device_does_not_tell) {
  EXPECT_FALSE(energy_of({record_of(0, {.joules = 200.0}), record_of(1, {})}, 10));
  EXPECT_FALSE(energy_of({}, 10));
}

// Two ranks all-reduce 800 bytes once in the one breakdown repeat, of which each sends 800; timed
// three times, 4 tokens each.
AnalysisInput counted_input() {
  AnalysisInput input = late_rank_input();
  input.timed.assign(3, input.timed.front());
  input.peaks[0].memory_domain = "GPU 0";
  input.peaks[1].memory_domain = "GPU 1";
  input.transports[Axis::tp] = "nvlink";
  input.counters = {all_figures(), DeviceCounters{.seconds = 2.0, .joules = 599.5}};
  return input;
}

TEST(Analysis, sets_counters_beside_what_was_predicted) {
  const RunRecord record = analyse(counted_input());
  ASSERT_EQ(record.device_counters.size(), 2U);
  EXPECT_EQ(record.device_counters[1].rank, 1);
  EXPECT_EQ(record.device_counters[1].device, "GPU 1");
  EXPECT_EQ(record.device_counters[1].transport, "nvlink");
  EXPECT_EQ(record.device_counters[1].predicted_wire_bytes, 3 * 800);
  expect_equal(record.device_counters[0].counters, all_figures());
  EXPECT_DOUBLE_EQ(record.energy.value().joules, 1200.0);
  EXPECT_DOUBLE_EQ(record.energy.value().joules_per_token.value(), 1200.0 / 12);
  EXPECT_THAT(record.run.labels, testing::Contains(HasSubstr("rank 0: Xid 79, 31")));
}

// Of rank 0, when its all-reduce is done that way.
DeviceCountersRecord sent_by(CommAlgorithm algorithm, std::optional<NcclProtocol> protocol) {
  AnalysisInput input = counted_input();
  for (RankTimeline& timeline : input.timelines) {
    for (CommEvent& event : timeline.comms) event.comm.algorithm = algorithm;
  }
  if (protocol) {
    input.protocol_of = [protocol](const CommRecord& comm) {
      EXPECT_EQ(comm.axis, Axis::tp);
      return *protocol;
    };
  }
  return analyse(input).device_counters.at(0);
}

TEST(Analysis, predicts_what_links_carry_from_the_protocol) {
  const auto expect_range = [](const DeviceCountersRecord& record, int64_t min, int64_t max) {
    ASSERT_TRUE(record.predicted_link_bytes);
    EXPECT_EQ(record.predicted_link_bytes->min, min);
    EXPECT_EQ(record.predicted_link_bytes->max, max);
    EXPECT_EQ(record.why_no_link_bytes, std::nullopt);
    EXPECT_EQ(record.predicted_wire_bytes, 3 * 800);
  };
  const CommAlgorithm ring = CommAlgorithm::ring;
  expect_range(sent_by(ring, NcclProtocol::simple), 3 * 800, 3 * 800);
  expect_range(sent_by(ring, NcclProtocol::ll), 2 * 3 * 800, 2 * 3 * 800);
  expect_range(sent_by(ring, NcclProtocol::ll128), 3 * (800 + 53), 3 * (800 + 53));
  expect_range(sent_by(ring, NcclProtocol::unknown), 3 * 800, 2 * 3 * 800);
  expect_range(sent_by(ring, std::nullopt), 3 * 800, 2 * 3 * 800);
  // Our kernels' are no protocol of NCCL's, whatever it did at that size before.
  expect_range(sent_by(CommAlgorithm::two_shot, NcclProtocol::ll), 3 * 800, 3 * 800);
}

TEST(Analysis, predicts_nothing_of_links_where_it_does_not_know_the_algorithm) {
  for (const auto algorithm : {CommAlgorithm::nvls, CommAlgorithm::nvls_tree}) {
    const DeviceCountersRecord record = sent_by(algorithm, NcclProtocol::simple);
    EXPECT_FALSE(record.predicted_link_bytes);
    EXPECT_THAT(record.why_no_link_bytes.value(), HasSubstr(algorithm_name(algorithm)));
  }
  EXPECT_EQ(sent_by(CommAlgorithm::nccl, std::nullopt).why_no_link_bytes,
            "NCCL's algorithm is not known");
}

TEST(Analysis, knows_no_energy_without_every_device) {
  AnalysisInput input = counted_input();
  input.counters[1] = std::nullopt;
  const RunRecord record = analyse(input);
  EXPECT_EQ(record.device_counters.size(), 1U);
  EXPECT_FALSE(record.energy);
  EXPECT_THAT(analyse(late_rank_input()).device_counters, IsEmpty());
}

}  // namespace
}  // namespace testbed
