// The exchange of experts' tokens against what it is fitted to and what was held out: dispatch and
// combine on 1, 2, 4 and 8 nodes of 8 H100, beside benchmarks/measured/expert_*.csv. Bounds are the
// issue's; benchmarks/calibrate_experts.py fits 1, 4 and 8 nodes, 2 are held out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "parallel/comm/collective_times.hpp"
#include "parallel/comm/link_loads.hpp"
#include "parallel/comm/row_exchange.hpp"
#include "runtime/config/cluster_config.hpp"

namespace testbed {
namespace {

using Kind = RowExchange::Kind;

constexpr int devices_per_node = 8;
constexpr int top_k = 8;
constexpr int n_experts = 256;

struct Measured {
  double dispatch_us = 0.0;
  double combine_us = 0.0;
  double us(Kind kind) const { return kind == Kind::dispatch ? dispatch_us : combine_us; }
};
using Table = std::map<std::pair<int, int>, Measured>;  // by (nodes, tokens of a rank)

std::vector<double> numbers_of(const std::string& line) {
  std::vector<double> numbers;
  std::istringstream fields(line);
  for (std::string field; std::getline(fields, field, ',');) numbers.push_back(std::stod(field));
  return numbers;
}

// Rows of 256 experts; of the normal kernels with as many SMs as each node count was measured with
// at most (20 on one node, 24 on several).
Table table(const std::string& name, bool with_sms) {
  std::ifstream file(TESTBED_SOURCE_DIR "/benchmarks/measured/" + name);
  EXPECT_TRUE(file.is_open());
  Table rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::vector<double> row = numbers_of(line);
    const int nodes = static_cast<int>(row[0]);
    if (row[3] != top_k || row[4] != n_experts) continue;
    if (with_sms && row[5] != (nodes == 1 ? 20 : 24)) continue;
    rows[{nodes, static_cast<int>(row[2])}] =
        with_sms ? Measured{row[6], row[8]} : Measured{row[5], row[6]};
  }
  return rows;
}
const Table& measured(CommAlgorithm kernel) {
  static const Table low_latency = table("expert_low_latency.csv", false);
  static const Table normal = table("expert_normal.csv", true);
  return kernel == CommAlgorithm::low_latency ? low_latency : normal;
}

// Of groups that experts are divided into, those that hold any of the top 8 of a token.
double distinct(int groups) {
  double none = 1.0;  // of a group's experts is chosen
  const int others = n_experts - n_experts / groups;
  for (int i = 0; i < top_k; ++i) none *= static_cast<double>(others - i) / (n_experts - i);
  return groups * (1.0 - none);
}

// Rows of a token: the low-latency kernels send one for each expert, the normal ones one to each
// node, handed on to each rank. On 8 nodes DeepEP's benchmark routes to 4 of them: mean of 1e6
// drawn tokens.
struct Copies {
  double nodes = 0.0;
  double ranks = 0.0;
};
Copies copies(CommAlgorithm kernel, int nodes) {
  if (kernel == CommAlgorithm::low_latency) return {top_k, top_k};
  if (nodes == 8) return {3.983, 7.471};
  return {distinct(nodes), distinct(nodes * devices_per_node)};
}

// Uniform routing. Rows of 7168: fp8 with a float scale per 128 go out, bf16 comes back.
RowMatrix uniform(CommAlgorithm kernel, Kind kind, int nodes, int tokens) {
  const double bytes = tokens * (kind == Kind::dispatch ? 7168 + 4 * 7168 / 128 : 2 * 7168);
  const Copies of_token = copies(kernel, nodes);
  const int size = nodes * devices_per_node;
  const auto n = static_cast<size_t>(size);
  RowMatrix rows{.kind = kind, .size = size, .n_nodes = nodes, .bytes = {}, .node_bytes = {}};
  rows.bytes.assign(n * n, std::llround(bytes * of_token.ranks / size));
  rows.node_bytes.assign(n * static_cast<size_t>(nodes),
                         std::llround(bytes * of_token.nodes / nodes));
  return rows;
}

ClusterSpec h100(int nodes) {
  ClusterSpec cluster = read_cluster("h100-ndr");
  cluster.n_nodes = nodes;
  return cluster;
}
std::vector<int> all_ranks(int nodes) {
  std::vector<int> ranks(static_cast<size_t>(nodes) * devices_per_node);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What the simulator takes if it may use this kernel for these tokens.
std::optional<double> predicted_us(CommAlgorithm kernel, Kind kind, int nodes, int tokens) {
  const ClusterSpec cluster = h100(nodes);
  const std::vector<int> ranks = all_ranks(nodes);
  const GroupPlacement placement = placement_of(ranks, devices_per_node);
  const RowMatrix rows = uniform(kernel, kind, nodes, tokens);
  const std::vector<CommAlgorithm> offered = exchange_algorithms(rows, placement, cluster);
  if (std::find(offered.begin(), offered.end(), kernel) == offered.end()) return std::nullopt;
  return 1e6 * seconds_alone(exchange_schedule(kernel, rows, placement, cluster), cluster, ranks);
}

constexpr std::array kernels{CommAlgorithm::low_latency, CommAlgorithm::hierarchical};
constexpr std::array kinds{Kind::dispatch, Kind::combine};
std::string name_of(Kind kind) { return kind == Kind::dispatch ? "dispatch" : "combine"; }

// Mean absolute error in percent by node count.
using Errors = std::map<int, std::vector<double>>;
void expect_within(double bound_percent, const Errors& errors, const std::string& what) {
  ASSERT_THAT(errors, testing::SizeIs(4)) << what;
  std::cout << what << ", mean absolute error:";
  for (const auto& [nodes, of_nodes] : errors) {
    double sum = 0.0;
    for (const double error : of_nodes) sum += std::abs(error);
    const double mean = 100.0 * sum / static_cast<double>(of_nodes.size());
    std::cout << "  " << nodes << (nodes == 1 ? " node " : " nodes ") << mean << " %"
              << (nodes == 2 ? " (held out)" : "");
    EXPECT_LE(mean, bound_percent) << what << ", " << nodes << " nodes";
  }
  std::cout << '\n';
}

TEST(ExpertCalibration, EachKernelOnEveryRow) {
  for (const Kind kind : kinds) {
    for (const CommAlgorithm kernel : kernels) {
      Errors errors;
      for (const auto& [at, row] : measured(kernel)) {
        const std::optional<double> us = predicted_us(kernel, kind, at.first, at.second);
        ASSERT_TRUE(us.has_value()) << at.first << " nodes, " << at.second << " tokens";
        errors[at.first].push_back(*us / row.us(kind) - 1.0);
      }
      expect_within(15.0, errors, name_of(kind) + " " + std::string(algorithm_name(kernel)));
    }
  }
}

// As a run chooses: the kernel that is predicted to be faster, against what that one measured.
TEST(ExpertCalibration, TheKernelChosenBySize) {
  for (const Kind kind : kinds) {
    Errors errors;
    std::map<int, int> most_low_latency;  // tokens, by nodes
    for (const auto& [at, normal] : measured(CommAlgorithm::hierarchical)) {
      const auto [nodes, tokens] = at;
      double us = *predicted_us(CommAlgorithm::hierarchical, kind, nodes, tokens);
      double measured_us = normal.us(kind);
      const auto low_latency = measured(CommAlgorithm::low_latency).find(at);
      const auto low_latency_us = predicted_us(CommAlgorithm::low_latency, kind, nodes, tokens);
      if (low_latency != measured(CommAlgorithm::low_latency).end() && low_latency_us < us) {
        us = low_latency_us.value();
        measured_us = low_latency->second.us(kind);
        most_low_latency[nodes] = tokens;
      }
      errors[nodes].push_back(us / measured_us - 1.0);
    }
    expect_within(15.0, errors, name_of(kind) + ", chosen by size");
    for (const auto& [nodes, tokens] : most_low_latency) {
      std::cout << "  low-latency up to " << tokens << " tokens a rank on " << nodes << " nodes\n";
    }
    // Few tokens go by the kernel that is made for them, many by the other.
    for (const auto& [nodes, tokens] : most_low_latency) {
      EXPECT_GE(tokens, 16) << nodes;
      EXPECT_LE(tokens, 256) << nodes;
    }
  }
}

// Uniform rows played as flows take what the busiest link does.
TEST(ExpertCalibration, PlayedAsFlowsItTakesTheSame) {
  const int nodes = 2;
  const ClusterSpec cluster = h100(nodes);
  const std::vector<int> ranks = all_ranks(nodes);
  const GroupPlacement placement = placement_of(ranks, devices_per_node);
  for (const Kind kind : kinds) {
    for (const CommAlgorithm kernel : kernels) {
      const CollectiveSchedule schedule =
          exchange_schedule(kernel, uniform(kernel, kind, nodes, 64), placement, cluster);
      double played_s = 0.0;
      const auto time = make_virtual_time(cluster);
      const auto left = time->run({[&] {
        play(*time, cluster, schedule, ranks);
        played_s = time->now();
      }});
      EXPECT_THAT(left, testing::IsEmpty());
      const double alone_s = seconds_alone(schedule, cluster, ranks);
      EXPECT_NEAR(played_s / alone_s, 1.0, 1e-6);
    }
  }
}

}  // namespace
}  // namespace testbed
