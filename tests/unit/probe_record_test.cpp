// What a probe writes: JSON as INTERFACE.md names it, the table, and the preset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cost.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/probe/probe_cluster.hpp"
#include "runtime/probe/probe_json.hpp"
#include "runtime/probe/probe_table.hpp"

namespace testbed {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProbeRecord some_record() {
  return {.device = "cpu",
          .description = "some processor",
          .n_ranks = 2,
          .collectives = {{.op = CommOp::all_reduce,
                           .n = 2,
                           .bytes = 512,
                           .algorithm = CommAlgorithm::one_shot,
                           .us = 1.5,
                           .best = true},
                          {.op = CommOp::send,
                           .n = 2,
                           .bytes = 1024,
                           .algorithm = CommAlgorithm::direct,
                           .us = 2.5,
                           .best = true}},
          .gemm = {{.m = 1, .n = 2, .k = 3, .dtype = "bf16", .us = 4.0}},
          .attention = {{.phase = AttentionPhase::prefill,
                         .batch = 1,
                         .context = 512,
                         .n_heads = 32,
                         .n_kv_heads = 8,
                         .head_dim = 128,
                         .us = 5.0}},
          .elementwise = {{.op = OpKind::rope, .rows = 6, .width = 7, .us = 8.0}},
          .memory_read_bytes_per_s = 30e9,
          .memory_read_all_bytes_per_s = 50e9,
          .peak_flops = 236e9,
          .kernel_overhead_us = 0.5};
}

std::vector<MeasuredOp> some_ops() {
  return {{.kind = OpKind::linear,
           .shape = {.m = 1, .n = 4096, .k = 4096},
           .cost = linear_cost(1, 4096, 4096, 4096, DType::BF16, DType::BF16),
           .point = GemmPoint{},
           .seconds = 1e-3}};
}

ClusterSpec some_cluster(const ProbeRecord& record, const std::vector<MeasuredOp>& ops) {
  return probed_cluster({.record = record,
                         .ops = ops,
                         .reads_together = 1.5,
                         .memory_bytes = int64_t{8} << 30,
                         .math = MathType::bf16,
                         .transport = "shm"});
}

TEST(ProbeJson, NamesAndUnitsAreTheInterfaces) {
  const auto json = nlohmann::json::parse(to_json(some_record()));
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["simulated"], false);
  const auto expected = nlohmann::json::parse(R"({
    "collectives": [
      {"op": "all_reduce", "n": 2, "bytes": 512, "us": 1.5, "algorithm": "one-shot", "best": true},
      {"op": "send_recv", "n": 2, "bytes": 1024, "us": 2.5, "algorithm": "direct", "best": true}],
    "gemm": [{"m": 1, "n": 2, "k": 3, "dtype": "bf16", "us": 4.0}],
    "attention": [{"phase": "prefill", "batch": 1, "context": 512, "n_heads": 32, "n_kv_heads": 8,
                   "head_dim": 128, "us": 5.0}]})");
  for (const char* key : {"collectives", "gemm", "attention"}) EXPECT_EQ(json[key], expected[key]);
  EXPECT_DOUBLE_EQ(json["memory_read_gb_s"], 30.0);
  EXPECT_DOUBLE_EQ(json["memory_read_all_gb_s"], 50.0);
  EXPECT_DOUBLE_EQ(json["kernel_overhead_us"], 0.5);
}

// What to know before comparing with another machine is in all that is written.
TEST(ProbeRecord, LabelsAreInTheRecordTheTableAndThePreset) {
  ProbeRecord record = some_record();
  EXPECT_EQ(nlohmann::json::parse(to_json(record))["labels"], nlohmann::json::array());
  const std::string label = "shared GPU 0000:01:00.0 of host a: ranks 0, 1";
  record.labels = {label};
  EXPECT_EQ(nlohmann::json::parse(to_json(record))["labels"], nlohmann::json::array({label}));
  EXPECT_THAT(to_table(record), HasSubstr("\n! " + label + "\n"));
  EXPECT_EQ(some_cluster(record, some_ops()).description,
            "2 x some processor, probed; shared GPU 0000:01:00.0 of host a: ranks 0, 1");
}

TEST(ProbeTable, SaysWhatWasNotMeasured) {
  ProbeRecord record = some_record();
  EXPECT_THAT(to_table(record), Not(HasSubstr("SIMULATED")));
  EXPECT_THAT(to_table(record), HasSubstr("30 GB/s one rank, 50 GB/s all 2 together"));
  record.simulated = true;
  EXPECT_THAT(to_table(record), StartsWith("SIMULATED"));
}

TEST(ProbeCluster, AnOpThatOutdoesTheReadLoopIsThePeak) {
  const ProbeRecord record = some_record();
  const ClusterSpec cluster = some_cluster(record, some_ops());
  const double rate = 2.0 * 4096 * 4096 / 1e-3;  // 33.6 GB/s, above the loop's 30
  EXPECT_DOUBLE_EQ(cluster.device.memory_bytes_per_s, rate);
  EXPECT_DOUBLE_EQ(cluster.node.shared_memory_bytes_per_s, 1.5 * rate);
  EXPECT_DOUBLE_EQ(cluster.device.peak_flops.at(MathType::bf16), 236e9);
  EXPECT_EQ(cluster.n_devices(), 2);
}

TEST(ProbeCluster, IsAPresetThatReadsBack) {
  const ProbeRecord record = some_record();
  const ClusterSpec cluster = some_cluster(record, some_ops());
  const auto path = std::filesystem::temp_directory_path() /
                    ("probe_record_test_" + std::to_string(::getpid()) + ".toml");
  std::ofstream(path) << cluster_toml(cluster);
  const ClusterSpec read = read_cluster(path.string());
  std::filesystem::remove(path);
  EXPECT_DOUBLE_EQ(read.device.timing.linear.memory_efficiency,
                   cluster.device.timing.linear.memory_efficiency);
  EXPECT_DOUBLE_EQ(read.node.shared_memory_bytes_per_s, cluster.node.shared_memory_bytes_per_s);
  EXPECT_EQ(read.node.link.timing.of.size(), 2U);
  EXPECT_EQ(cluster_toml(read), cluster_toml(cluster));
}

TEST(ProbeCluster, OneRankHasNoLinkAndSharesNothing) {
  ProbeRecord record = some_record();
  record.n_ranks = 1;
  record.collectives.clear();
  const ClusterSpec cluster = some_cluster(record, some_ops());
  EXPECT_EQ(cluster.node.shared_memory_bytes_per_s, 0.0);
  EXPECT_TRUE(cluster.node.link.timing.of.empty());
  EXPECT_GT(cluster.node.link.bytes_per_s, 0.0);
}

}  // namespace
}  // namespace testbed
