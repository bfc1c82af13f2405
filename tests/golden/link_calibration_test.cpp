// The calibration of links against what it is fitted to and what was held out: collectives played
// on the simulated clusters, beside benchmarks/measured/collectives.csv. Mean absolute errors per
// GPU count; the bounds are the issue's, docs/calibration.md has the errors themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "parallel/comm/collective_times.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/config/link_config.hpp"

namespace testbed {
namespace {

struct Row {
  std::string gpu;
  std::string source;
  std::string op;
  std::string dtype;
  int n = 0;
  int64_t n_bytes = 0;
  double us = 0.0;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> read;
    std::ifstream file(TESTBED_SOURCE_DIR "/benchmarks/measured/collectives.csv");
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      Row row;
      std::string n;
      std::string n_bytes;
      std::string us;
      for (std::string* field : {&row.gpu, &row.source, &row.op, &row.dtype, &n, &n_bytes, &us}) {
        std::getline(fields, *field, ',');
      }
      row.n = std::stoi(n);
      row.n_bytes = std::stoll(n_bytes);
      row.us = std::stod(us);
      read.push_back(row);
    }
    return read;
  }();
  return rows;
}

CommOp op_of(const Row& row) {
  if (row.op == "all_reduce") return CommOp::all_reduce;
  if (row.op == "all_gather") return CommOp::all_gather;
  if (row.op == "reduce_scatter") return CommOp::reduce_scatter;
  EXPECT_EQ(row.op, "alltoall");
  return CommOp::all_to_all;
}

CollectiveKey key_of(const Row& row) {
  return collective_key(op_of(row), row.n_bytes, one_node(row.n));
}

// Rows of one GPU, one library, one operation, one data type.
std::vector<Row> rows_of(const std::string& gpu,
                         const std::string& library,
                         const std::string& op,
                         const std::string& dtype,
                         int64_t up_to = int64_t{1} << 40) {
  std::vector<Row> rows;
  std::copy_if(table().begin(), table().end(), std::back_inserter(rows), [&](const Row& row) {
    return row.gpu == gpu && row.source.starts_with(library) && row.op == op &&
           row.dtype == dtype && row.n_bytes <= up_to;
  });
  EXPECT_FALSE(rows.empty());
  return rows;
}

// Predicted / measured - 1 by GPU count, of the fastest of some algorithms.
using Errors = std::map<int, std::vector<double>>;
Errors errors_of(const std::vector<Row>& rows,
                 const ClusterSpec& cluster,
                 const std::vector<CommAlgorithm>& algorithms) {
  CollectiveTimes times(cluster);
  std::vector<CollectiveKey> keys(rows.size());
  std::transform(rows.begin(), rows.end(), keys.begin(), key_of);
  times.compute(keys);
  Errors errors;
  for (const Row& row : rows) {
    double fastest_s = HUGE_VAL;
    for (const TimedAlgorithm& timed : *times.find(key_of(row))) {
      if (std::find(algorithms.begin(), algorithms.end(), timed.algorithm) != algorithms.end()) {
        fastest_s = std::min(fastest_s, timed.seconds);
      }
    }
    errors[row.n].push_back(fastest_s * 1e6 / row.us - 1.0);
  }
  return errors;
}

double mean_percent(const std::vector<double>& errors) {
  double sum = 0.0;
  for (const double error : errors) sum += std::abs(error);
  return 100.0 * sum / static_cast<double>(errors.size());
}

void expect_each_at_most(double bound_percent, const Errors& errors, const std::string& what) {
  std::string text;
  for (const auto& [n, of_n] : errors) {
    EXPECT_LE(mean_percent(of_n), bound_percent) << what << ", " << n << " GPUs";
    text += "  " + std::to_string(n) + ": " + std::to_string(mean_percent(of_n)) + " %";
  }
  std::cout << what << text << '\n';
}

std::vector<double> all_of(const Errors& errors) {
  std::vector<double> all;
  for (const auto& [n, of_n] : errors) all.insert(all.end(), of_n.begin(), of_n.end());
  return all;
}

// NCCL's switches do not sum int8: those all-reduces are rings.
std::vector<CommAlgorithm> nccl_all_reduce(const std::string& dtype) {
  if (dtype == "int8") return {CommAlgorithm::ring};
  return {CommAlgorithm::ring, CommAlgorithm::nvls};
}

void expect_nccl(const std::string& gpu,
                 const std::string& cluster_name,
                 double all_reduce_bound,
                 double other_bound) {
  const ClusterSpec cluster = read_cluster(cluster_name);
  for (const std::string dtype : {"half", "int8"}) {
    expect_each_at_most(
        all_reduce_bound,
        errors_of(rows_of(gpu, "nccl", "all_reduce", dtype), cluster, nccl_all_reduce(dtype)),
        gpu + " all_reduce " + dtype);
    for (const std::string op : {"all_gather", "reduce_scatter"}) {
      expect_each_at_most(
          other_bound,
          errors_of(rows_of(gpu, "nccl", op, dtype), cluster, {CommAlgorithm::ring}),
          gpu + " " + op + " " + dtype);
    }
    expect_each_at_most(
        other_bound,
        errors_of(rows_of(gpu, "nccl", "alltoall", dtype), cluster, {CommAlgorithm::direct}),
        gpu + " all_to_all " + dtype);
  }
}

TEST(LinkCalibration, NcclOnH100) { expect_nccl("h100_sxm", "dgx-h100", 6.0, 10.0); }
TEST(LinkCalibration, NcclOnA100) { expect_nccl("a100_sxm", "dgx-a100", 6.0, 10.0); }
TEST(LinkCalibration, NcclOnL40sOverPcie) { expect_nccl("l40s", "l40s-8", 15.0, 15.0); }

// Over all GPU counts: one row of the A100's (8 GPUs, 4 KiB: 14.8 us between 5.6 and 6.3) went
// wrong and costs its 15 rows 4 % alone.
TEST(LinkCalibration, CustomAllReduceUpTo4MiB) {
  for (const auto& [gpu, cluster] : {std::pair{"h100_sxm", "dgx-h100"}, {"a100_sxm", "dgx-a100"}}) {
    const Errors errors = errors_of(rows_of(gpu, "vllm", "all_reduce", "half", 4 << 20),
                                    read_cluster(cluster),
                                    {CommAlgorithm::one_shot, CommAlgorithm::two_shot});
    const double mean = mean_percent(all_of(errors));
    std::cout << gpu << " one-/two-shot  all: " << mean << " %\n";
    EXPECT_LE(mean, 4.0) << gpu;
  }
}

// What a run takes, the fastest of all that is offered: from where custom kernels hand over to NCCL
// it is NCCL's time.
TEST(LinkCalibration, TheChosenAlgorithmAbove4MiBIsNccls) {
  for (const auto& [gpu, cluster] : {std::pair{"h100_sxm", "dgx-h100"}, {"a100_sxm", "dgx-a100"}}) {
    std::vector<Row> rows = rows_of(gpu, "nccl", "all_reduce", "half");
    std::erase_if(rows, [](const Row& row) { return row.n_bytes <= 4 << 20; });
    const std::vector<CommAlgorithm> all{
        CommAlgorithm::ring, CommAlgorithm::nvls, CommAlgorithm::one_shot, CommAlgorithm::two_shot};
    expect_each_at_most(6.0, errors_of(rows, read_cluster(cluster), all), gpu);
  }
}

double milliseconds(const ClusterSpec& cluster, CommAlgorithm algorithm) {
  CollectiveTimes times(cluster);
  const CollectiveKey key = collective_key(CommOp::all_reduce, int64_t{1} << 30, one_node(8));
  times.compute({key});
  for (const TimedAlgorithm& timed : *times.find(key)) {
    if (timed.algorithm == algorithm) return timed.seconds * 1e3;
  }
  return 0.0;
}

ClusterSpec ideal(ClusterSpec cluster) {
  cluster.node.link.timing = {};
  return cluster;
}

TEST(LinkCalibration, AGibibyteOver8Devices) {
  const ClusterSpec h100 = read_cluster("dgx-h100");
  EXPECT_NEAR(milliseconds(ideal(h100), CommAlgorithm::ring), 4.176, 0.001);
  ClusterSpec pcie = read_cluster("h100-pcie-8");
  EXPECT_NEAR(milliseconds(ideal(pcie), CommAlgorithm::ring), 29.36, 0.01);
  // Measured: the ring at half the size (int8, which NVLS does not sum), 2.677 ms; NVLS 4.008 ms.
  EXPECT_NEAR(milliseconds(h100, CommAlgorithm::ring) / (2 * 2.677), 1.0, 0.06);
  EXPECT_NEAR(milliseconds(h100, CommAlgorithm::nvls) / 4.008, 1.0, 0.06);
}

// The rule for links without a table (docs/calibration.md), where there is one: shares of the line
// rate carry over, latencies do not between GPU generations.
TEST(LinkCalibration, CarriedFromNvlink4ToNvlink3) {
  ClusterSpec cluster = read_cluster("dgx-a100");
  const double line = cluster.node.link.bytes_per_s;
  cluster.node.link = at_line_rate(read_link("nvlink4"), line);
  std::map<bool, std::vector<double>> errors;  // by whether large
  const std::vector<Row> rows = rows_of("a100_sxm", "nccl", "all_reduce", "half");
  for (const bool large : {false, true}) {
    std::vector<Row> of_size;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(of_size), [&](const Row& row) {
      return (row.n_bytes >= 32 << 20) == large;
    });
    errors[large] = all_of(errors_of(of_size, cluster, {CommAlgorithm::ring}));
    std::cout << "carried, " << (large ? "from 32 MiB on" : "below 32 MiB") << ": "
              << mean_percent(errors[large]) << " %\n";
  }
  EXPECT_LE(mean_percent(errors[true]), 15.0);
}

}  // namespace
}  // namespace testbed
