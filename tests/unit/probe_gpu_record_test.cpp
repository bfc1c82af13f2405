// What a probe of GPUs writes beside the curves that all devices have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cost.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/config/device_config.hpp"
#include "runtime/probe/probe_cluster.hpp"
#include "runtime/probe/probe_json.hpp"
#include "runtime/probe/probe_table.hpp"

namespace testbed {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

DeviceCurves some_curves() {
  return {.memory = {{.name = "hbm",
                      .n_bytes = 1 << 30,
                      .read_bytes_per_s = 3.0e12,
                      .write_bytes_per_s = 2.5e12,
                      .copy_bytes_per_s = 2.75e12}},
          .shared = {.bytes_per_s = 30e12, .bytes_per_sm_and_clock = 127.5},
          .math = {{.type = MathType::bf16, .by_library = true, .flops = 750e12},
                   {.type = MathType::f32, .by_library = false, .flops = 60e12}},
          .gemm = {{.type = MathType::bf16, .m = 1, .n = 2, .k = 3, .seconds = 5e-6}},
          .overheads = {.eager_launch_s = 2e-6, .graph_node_s = 1e-6, .event_s = 0.5e-6},
          .latency = {{.n_bytes = 1 << 14, .seconds = 20e-9, .clocks = 33}},
          .occupancy = {{.blocks_per_sm = 2, .threads_per_sm = 512, .read_bytes_per_s = 1e12}},
          .strides = {{.stride = 1,
                       .sectors_per_warp = 4,
                       .useful_bytes_per_s = 3e12,
                       .sector_bytes_per_s = 3e12},
                      {.stride = 8,
                       .sectors_per_warp = 32,
                       .useful_bytes_per_s = 0.375e12,
                       .sector_bytes_per_s = 3e12}},
          .divergence = {{.n_ways = 1, .flops = 60e12}, {.n_ways = 2, .flops = 30e12}},
          .fusion = {{.n_rows = 4,
                      .width = 8,
                      .apart_bytes = 320,
                      .fused_bytes = 256,
                      .apart_s = 4e-6,
                      .fused_s = 2e-6}},
          .dequant = {{.bits = 16, .bytes_per_s = 3e12, .weights_per_s = 1.5e12},
                      {.bits = 4, .bytes_per_s = 2.7e12, .weights_per_s = 4.8e12}}};
}

ProbeRecord some_record() {
  return {
      .device = "cuda",
      .description = "some GPU",
      .n_ranks = 4,
      .collectives = {{.op = CommOp::all_reduce,
                       .n = 4,
                       .bytes = 1 << 20,
                       .algorithm = CommAlgorithm::nccl,
                       .us = 20.0,
                       .best = true}},
      .elementwise = {{.op = OpKind::rope, .rows = 6, .width = 7, .us = 8.0}},
      .memory_read_bytes_per_s = 3.0e12,
      .memory_read_all_bytes_per_s = 12e12,
      .peak_flops = 750e12,
      .kernel_overhead_us = 0.5,
      .pairs = {{.first = 0, .second = 3, .bytes = 1 << 20, .one_way_us = 4, .both_ways_us = 5}},
      .curves = some_curves()};
}

TEST(ProbeGpuJson, HasEveryMeasurementWithItsUnit) {
  const auto json = nlohmann::json::parse(to_json(some_record()));
  const auto expected = nlohmann::json::parse(R"({
    "memory": [{"level": "hbm", "bytes": 1073741824, "read_gb_s": 3000.0, "write_gb_s": 2500.0,
                "copy_gb_s": 2750.0}],
    "shared": {"read_gb_s": 30000.0, "bytes_per_sm_and_clock": 127.5},
    "math": [{"type": "bf16", "by": "library", "tflops": 750.0},
             {"type": "f32", "by": "loop", "tflops": 60.0}],
    "occupancy": [{"blocks_per_sm": 2, "threads_per_sm": 512, "read_gb_s": 1000.0}],
    "strides": [{"stride": 1, "sectors_per_warp": 4, "useful_gb_s": 3000.0, "sector_gb_s": 3000.0},
                {"stride": 8, "sectors_per_warp": 32, "useful_gb_s": 375.0,
                 "sector_gb_s": 3000.0}],
    "divergence": [{"ways": 1, "tflops": 60.0}, {"ways": 2, "tflops": 30.0}],
    "dequant": [{"bits": 16, "read_gb_s": 3000.0, "weights_per_s": 1.5e12},
                {"bits": 4, "read_gb_s": 2700.0, "weights_per_s": 4.8e12}]})");
  const auto& curves = json["device_curves"];
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(curves[key], value) << key;
  EXPECT_DOUBLE_EQ(curves["gemm"][0]["us"], 5.0);
  EXPECT_DOUBLE_EQ(curves["overheads"]["eager_launch_us"], 2.0);
  EXPECT_DOUBLE_EQ(curves["overheads"]["graph_node_us"], 1.0);
  EXPECT_DOUBLE_EQ(curves["overheads"]["event_us"], 0.5);
  EXPECT_DOUBLE_EQ(curves["latency"][0]["ns"], 20.0);
  EXPECT_DOUBLE_EQ(curves["fusion"][0]["fused_us"], 2.0);
  EXPECT_EQ(curves["fusion"][0]["apart_bytes"], 320);
  EXPECT_EQ(json["pairs"][0], nlohmann::json::parse(R"({"first": 0, "second": 3, "bytes": 1048576,
                                      "one_way_us": 4.0, "both_ways_us": 5.0})"));
}

TEST(ProbeGpuJson, OthersHaveNoneOfIt) {
  ProbeRecord record = some_record();
  record.curves.reset();
  record.pairs.clear();
  const auto json = nlohmann::json::parse(to_json(record));
  EXPECT_FALSE(json.contains("device_curves"));
  EXPECT_FALSE(json.contains("pairs"));
  EXPECT_THAT(to_table(record), Not(HasSubstr("arithmetic")));
}

TEST(ProbeGpuTable, SharesAreOfTheUndisturbedCase) {
  const std::string table = to_table(some_record());
  EXPECT_THAT(table, HasSubstr("12.5 %"));  // stride 8
  EXPECT_THAT(table, HasSubstr("50.0 %"));  // 2 branches
  EXPECT_THAT(table, HasSubstr("90.0 %"));  // 4 bits
  // 1 MiB in 4 us, and two in 5.
  EXPECT_THAT(table, HasSubstr("262.1"));
  EXPECT_THAT(table, HasSubstr("419.4"));
}

TEST(ProbeGpuTable, NothingMeasuredIsNoDivisionByZero) {
  ProbeRecord record = some_record();
  record.curves = DeviceCurves{.fusion = {{}}};
  EXPECT_THAT(to_table(record), Not(HasSubstr("nan")));
}

ClusterSpec cluster_of(const ProbeRecord& record, const DeviceSpec& gpu) {
  const std::vector<MeasuredOp> ops{
      {.kind = OpKind::linear,
       .shape = {.m = 1, .n = 4096, .k = 4096},
       .cost = linear_cost(1, 4096, 4096, 4096, DType::BF16, DType::BF16),
       .point = GemmPoint{},
       .seconds = 15e-6}};
  return probed_cluster({.record = record,
                         .ops = ops,
                         .reads_together = 4.0,
                         .math = MathType::bf16,
                         .transport = "nvlink",
                         .gpu = &gpu});
}

ClusterSpec read_back(const ClusterSpec& cluster) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("probe_gpu_record_test_" + std::to_string(::getpid()) + ".toml");
  std::ofstream(path) << cluster_toml(cluster);
  ClusterSpec read = read_cluster(path.string());
  std::filesystem::remove(path);
  return read;
}

TEST(ProbeGpuCluster, KeepsTheChipAndItsDensePeaksWithMeasuredRates) {
  const DeviceSpec gpu = read_device("h100-sxm");
  const ClusterSpec cluster = cluster_of(some_record(), gpu);
  const ClusterSpec read = read_back(cluster);
  EXPECT_EQ(read.device.chip, gpu.chip);
  EXPECT_EQ(read.device.memory_bytes, gpu.memory_bytes);
  EXPECT_EQ(read.device.peak_flops, gpu.peak_flops);
  EXPECT_DOUBLE_EQ(read.device.memory_bytes_per_s, 3.0e12);
  EXPECT_EQ(read.n_devices(), 4);
  // Each GPU has a memory of its own.
  EXPECT_EQ(read.node.shared_memory_bytes_per_s, 0.0);
  // What NCCL took without saying so.
  EXPECT_TRUE(read.node.link.timing.of.contains("all_reduce/ring"));
}

TEST(ProbeGpuCluster, AnUnknownArchitecturesPeaksAreTheMeasuredOnes) {
  DeviceSpec gpu = read_device("h100-sxm");
  gpu.chip.architecture = "sm_999";
  gpu.peak_flops.clear();
  const ClusterSpec read = read_back(cluster_of(some_record(), gpu));
  EXPECT_EQ(read.device.chip.n_sm, 0);
  EXPECT_DOUBLE_EQ(read.device.peak_flops.at(MathType::bf16), 750e12);
  EXPECT_DOUBLE_EQ(read.device.peak_flops.at(MathType::f32), 60e12);
}

}  // namespace
}  // namespace testbed
