// The exchange of tokens with experts in whole simulated runs of deepseek-v3's shapes: how many
// rows travel, against the closed form for even routing within group limits, and what crossing
// nodes costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <map>
#include <vector>

#include "runtime/commands/simulate.hpp"
#include "runtime/config/cluster_config.hpp"

namespace testbed {
namespace {

constexpr int world = 64;  // 8 nodes of 8, every rank a replica with tokens of its own
constexpr int ranks_of_node = 8;
constexpr int64_t tokens = 256;  // of a rank in the prefill; 1 when decoding
constexpr int n_experts = 256;
constexpr int top_k = 8;
constexpr int64_t row_bytes = int64_t{7168} * 2;  // bf16
// Ids and weights of a row, and whether it is a copy.
constexpr int64_t routing_bytes = (int64_t{2} * top_k + 1) * 4;
constexpr int n_groups = 8;
constexpr int top_k_groups = 4;  // a token's experts are all of these
constexpr int group_size = n_experts / n_groups;
constexpr std::array degrees{2, 4, 8, 16, 32, 64};

// The three dense layers and one with experts.
const SimulatedRun& run_of(int ep) {
  static std::map<int, SimulatedRun> runs;
  const auto known = runs.find(ep);
  if (known != runs.end()) return known->second;
  RunConfig config;
  config.model = "deepseek-v3";
  config.layers = 4;
  config.parallel = {.dp = world, .ep = ep};
  config.workload = {.batch = world, .prompt_tokens = tokens, .gen_tokens = 2};
  return runs.emplace(ep, simulate(config, read_cluster("h100-ndr-16"))).first->second;
}

const PhaseRecord& phase(int ep, Phase which) {
  const PhaseRecord* const found = run_of(ep).record.phase(which);
  EXPECT_NE(found, nullptr);
  return *found;
}

// That a token chooses none of `n` given experts of the groups it may choose from: its top_k
// distinct ones are among the others.
double missed_of_chosen(int n) {
  constexpr int open = top_k_groups * group_size;
  double p = 1.0;
  for (int i = 0; i < top_k; ++i) p *= std::max(0.0, double(open - n - i)) / (open - i);
  return p;
}

double binomial(int n, int k) {
  double result = 1.0;
  for (int i = 0; i < k; ++i) result *= static_cast<double>(n - i) / (i + 1);
  return k > n ? 0.0 : result;
}

// That a token chooses none of the experts in `each` experts of `n` groups: over how many of these
// groups are among those it may choose from (hypergeometric).
double missed(int n, int each) {
  double p = 0.0;
  for (int j = std::max(0, n + top_k_groups - n_groups); j <= std::min(n, top_k_groups); ++j) {
    const double chosen = binomial(n, j) * binomial(n_groups - n, top_k_groups - j) /
                          binomial(n_groups, top_k_groups);
    p += chosen * missed_of_chosen(j * each);
  }
  return p;
}

// Of n equal parts of the experts, those that one token's choices touch.
struct Touched {
  double mean = 0.0;
  double deviation = 0.0;
};
// Indicators I of untouched parts: E[I] = q, E[I I'] = q2 on average over the pairs, so that the
// variance of their sum is n q (1 - q) + n (n - 1) (q2 - q^2). Parts are whole groups, or several
// lie in one.
Touched touched_parts(int n) {
  double q = 0.0;
  double q2 = 0.0;
  if (n <= n_groups) {
    q = missed(n_groups / n, group_size);
    q2 = missed(std::min(n_groups, 2 * n_groups / n), group_size);
  } else {
    const int size = n_experts / n;
    const double same_group = (static_cast<double>(n) / n_groups - 1.0) / (n - 1.0);
    q = missed(1, size);
    q2 = same_group * missed(1, 2 * size) + (1.0 - same_group) * missed(2, size);
  }
  const double variance = n * q * (1.0 - q) + n * (n - 1.0) * (q2 - q * q);
  return {n * (1.0 - q), std::sqrt(std::max(0.0, variance))};
}

// [source][target] rows dispatched in the prefill. Rows go out with their routing and come back
// without: bytes[s][t] = rows[s][t] (row + routing) + rows[t][s] row, two equations for two
// numbers.
std::vector<std::vector<int64_t>> dispatched_rows(int ep) {
  const std::vector<std::vector<int64_t>>& bytes =
      phase(ep, Phase::prefill).experts->all_to_all_bytes;
  const int64_t out = row_bytes + routing_bytes;
  const int64_t determinant = out * out - row_bytes * row_bytes;
  std::vector<std::vector<int64_t>> rows(world, std::vector<int64_t>(world));
  for (size_t s = 0; s < world; ++s) {
    for (size_t t = 0; t < world; ++t) {
      const int64_t scaled = out * bytes[s][t] - row_bytes * bytes[t][s];
      EXPECT_EQ(scaled % determinant, 0);
      rows[s][t] = scaled / determinant;
    }
  }
  return rows;
}

class Rows : public ::testing::TestWithParam<int> {};

// Tokens draw independently, so that a mean over B of them strays by deviation / sqrt(B). Five of
// these for each of the ranks, and for all tokens together.
TEST_P(Rows, of_even_routing_are_the_closed_form) {
  const int ep = GetParam();
  const Touched expected = touched_parts(ep);
  const std::vector<std::vector<int64_t>> rows = dispatched_rows(ep);
  int64_t all = 0;
  for (int source = 0; source < world; ++source) {
    const std::vector<int64_t>& of_rank = rows[static_cast<size_t>(source)];
    int64_t n = 0;
    for (int target = 0; target < world; ++target) {
      const int64_t n_rows = of_rank[static_cast<size_t>(target)];
      EXPECT_LE(n_rows, source / ep == target / ep ? tokens : 0) << source << " " << target;
      n += n_rows;
    }
    EXPECT_NEAR(static_cast<double>(n) / tokens,
                expected.mean,
                5.0 * expected.deviation / std::sqrt(tokens))
        << source;
    all += n;
  }
  EXPECT_NEAR(static_cast<double>(all) / (world * tokens),
              expected.mean,
              5.0 * expected.deviation / std::sqrt(world * tokens));
}
INSTANTIATE_TEST_SUITE_P(Ep, Rows, ::testing::ValuesIn(degrees));

// Mean over dispatch and combine of all groups, each call its slowest rank.
double exchange_us(int ep, Phase which) {
  double total_us = 0.0;
  int64_t calls = 0;
  for (const CollectiveRecord& collective : phase(ep, which).collectives) {
    if (collective.op != "all_to_all" || collective.algorithm == "direct") continue;  // the routing
    total_us += collective.wire_us.median * static_cast<double>(collective.calls);
    calls += collective.calls;
  }
  EXPECT_EQ(calls, 2 * world / ep);
  return total_us / static_cast<double>(calls);
}

// Least time of a rank's rows: those to other ranks through its link; and one to each other node
// that a token goes to through its NIC.
double least_us(int ep, const ClusterSpec& cluster) {
  const double to_ranks = touched_parts(ep).mean * (ep - 1) / ep;
  const int nodes = std::max(1, ep / ranks_of_node);
  const double to_nodes = nodes == 1 ? 0.0 : touched_parts(nodes).mean * (nodes - 1) / nodes;
  const double seconds_per_row = std::max(to_ranks / cluster.node.link.bytes_per_s,
                                          to_nodes / cluster.fabric->nic.bytes_per_s);
  return 1e6 * tokens * row_bytes * seconds_per_row;
}

TEST(Times, of_a_decode_step_double_where_groups_reach_beyond_a_node) {
  std::map<int, double> us;
  for (const int ep : degrees) us[ep] = exchange_us(ep, Phase::decode);
  for (const auto& [ep, t] : us) {
    if (ep == degrees.front()) continue;
    const double growth = t / us[ep / 2];
    if (ep == 2 * ranks_of_node) {
      EXPECT_GT(growth, 1.5) << ep;
    } else {
      EXPECT_GT(growth, 1.0) << ep;
      EXPECT_LT(growth, 1.15) << ep;
    }
    std::cout << "ep " << ep << ": " << t << " us, " << growth << " x ep " << ep / 2 << "\n";
  }
}

TEST(Times, of_a_prefill_are_the_narrowest_links_and_more) {
  const ClusterSpec cluster = read_cluster("h100-ndr-16");
  double before = 0.0;
  for (const int ep : degrees) {
    const double t = exchange_us(ep, Phase::prefill);
    // The busiest rank of a group has a few percent more rows than the mean.
    EXPECT_GT(t, least_us(ep, cluster)) << ep;
    // Per row that leaves its rank: ever more of them go through the NICs.
    const double per_row = t / (touched_parts(ep).mean * (ep - 1) / ep);
    if (ep > ranks_of_node) {
      EXPECT_GT(per_row, before) << ep;
    }
    before = per_row;
    std::cout << "ep " << ep << ": " << t << " us, links alone " << least_us(ep, cluster) << "\n";
  }
}

}  // namespace
}  // namespace testbed
