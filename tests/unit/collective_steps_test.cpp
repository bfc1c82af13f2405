// What the algorithms move, followed symbolically: which ranks' contributions each rank's sum of
// each element holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallel/comm/collective_schedule.hpp"
#include "parallel/comm/schedules/steps.hpp"
#include "parallel/comm/wire_bytes.hpp"
#include "parallel/shard.hpp"
#include "tests/unit/nodes_of.hpp"

namespace testbed {
namespace {

using Contributions = uint64_t;  // one bit per rank
// By rank (and node_switch), then element.
using Memory = std::map<int, std::vector<Contributions>>;

Contributions only(int rank) { return Contributions{1} << rank; }
Contributions everyone(int size) { return only(size) - 1; }

// Every rank's buffer holds its own contribution to every element.
Memory own_sums(int64_t n_elements, int size) {
  Memory memory;
  for (int rank = 0; rank < size; ++rank) {
    memory[rank].assign(static_cast<size_t>(n_elements), only(rank));
  }
  memory[node_switch].assign(static_cast<size_t>(n_elements), 0);
  return memory;
}

// Every rank holds its own part, finished.
Memory own_parts(int64_t n_elements, int size) {
  Memory memory;
  for (int rank = 0; rank < size; ++rank) {
    memory[rank].assign(static_cast<size_t>(n_elements), 0);
    const IndexRange part = split_range(n_elements, size, rank);
    for (int64_t e = part.begin; e < part.end; ++e)
      memory[rank][static_cast<size_t>(e)] = only(rank);
  }
  return memory;
}

// Nothing may be added twice: what arrives is either new to the target's sum, or contains it.
void arrive(Contributions sum, Contributions& target) {
  const bool adds = (sum & target) == 0;
  const bool replaces = (sum & target) == target;
  ASSERT_TRUE(adds || replaces);
  target |= sum;
}

void move(const Steps& steps, Memory& memory) {
  for (const std::vector<Transfer>& step : steps) {
    const Memory before = memory;
    for (const Transfer& t : step) {
      ASSERT_NE(t.source, t.target);
      for (int64_t e = t.elements.begin; e < t.elements.end; ++e) {
        const auto i = static_cast<size_t>(e);
        arrive(before.at(t.source)[i], memory.at(t.target)[i]);
      }
    }
  }
}

void expect_all_reduced(const Steps& steps, int64_t n_elements, int size) {
  Memory memory = own_sums(n_elements, size);
  move(steps, memory);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_THAT(memory[rank], testing::Each(everyone(size))) << "rank " << rank;
  }
}

void expect_sent(const Steps& steps,
                 CommOp op,
                 CommAlgorithm algorithm,
                 int64_t n_elements,
                 const GroupPlacement& placement) {
  std::map<int, int64_t> sent;
  for (const std::vector<Transfer>& step : steps) {
    for (const Transfer& t : step) sent[t.source] += t.elements.size();
  }
  for (int rank = 0; rank < placement.size(); ++rank) {
    EXPECT_EQ(wire_bytes(op, algorithm, 2 * n_elements, 2, rank, placement), 2 * sent[rank])
        << algorithm_name(algorithm) << ", rank " << rank << " of " << placement.size();
  }
}

struct Case {
  GroupPlacement placement;
  int64_t n_elements = 0;
  std::string name;
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const int n : {2, 3, 4, 5, 8, 16}) {
    for (const int64_t n_elements : {int64_t{1}, int64_t{3 * n + 2}}) {
      cases.push_back({one_node(n),
                       n_elements,
                       "of" + std::to_string(n) + "elements" + std::to_string(n_elements)});
    }
  }
  const std::pair<int, int> shapes[] = {{2, 4}, {2, 8}, {4, 8}, {3, 2}, {5, 1}, {9, 2}, {16, 1}};
  for (const auto& [n_nodes, n_local] : shapes) {
    cases.push_back({nodes_of(n_nodes, n_local),
                     203,
                     "of" + std::to_string(n_nodes) + "x" + std::to_string(n_local)});
  }
  GroupPlacement uneven = nodes_of(2, 4);
  uneven.node_of[3] = 1;  // 3 ranks and 5, two of them in reverse order
  uneven.device_of = {2, 1, 0, 4, 0, 1, 2, 3};
  cases.push_back({uneven, 101, "unevenNodes"});
  return cases;
}

// Runs a check on every group and payload.
template <typename Check>
void for_each_case(Check&& check) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    check(c.n_elements, c.placement);
  }
}

TEST(CollectiveSteps, RingAllReduces) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const Steps steps = ring_all_reduce(n_elements, placement);
    EXPECT_EQ(steps.size(), static_cast<size_t>(2 * (placement.size() - 1)));
    expect_all_reduced(steps, n_elements, placement.size());
    expect_sent(steps, CommOp::all_reduce, CommAlgorithm::ring, n_elements, placement);
  });
}

TEST(CollectiveSteps, RingReduceScatterEndsWithEachRanksOwnPart) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const Steps steps = ring_reduce_scatter(n_elements, placement);
    Memory memory = own_sums(n_elements, placement.size());
    move(steps, memory);
    for (int rank = 0; rank < placement.size(); ++rank) {
      const IndexRange part = split_range(n_elements, placement.size(), rank);
      for (int64_t e = part.begin; e < part.end; ++e) {
        EXPECT_EQ(memory[rank][static_cast<size_t>(e)], everyone(placement.size()));
      }
    }
    expect_sent(steps, CommOp::reduce_scatter, CommAlgorithm::ring, n_elements, placement);
  });
}

TEST(CollectiveSteps, RingAllGatherBringsEachPartEverywhereFromItsOwner) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const Steps steps = ring_all_gather(n_elements, placement);
    Memory memory = own_parts(n_elements, placement.size());
    move(steps, memory);
    for (int rank = 0; rank < placement.size(); ++rank) {
      for (int owner = 0; owner < placement.size(); ++owner) {
        const IndexRange part = split_range(n_elements, placement.size(), owner);
        for (int64_t e = part.begin; e < part.end; ++e) {
          EXPECT_EQ(memory[rank][static_cast<size_t>(e)], only(owner));
        }
      }
    }
    expect_sent(steps, CommOp::all_gather, CommAlgorithm::ring, n_elements, placement);
  });
}

TEST(CollectiveSteps, TreeAllReduces) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const Steps steps = tree_all_reduce(n_elements, placement);
    expect_all_reduced(steps, n_elements, placement.size());
    expect_sent(steps, CommOp::all_reduce, CommAlgorithm::tree, n_elements, placement);
  });
}

TEST(CollectiveSteps, DirectAlgorithmsAllReduce) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const Steps one_shot = one_shot_all_reduce(n_elements, placement.size());
    EXPECT_EQ(one_shot.size(), 1U);
    expect_all_reduced(one_shot, n_elements, placement.size());
    expect_sent(one_shot, CommOp::all_reduce, CommAlgorithm::one_shot, n_elements, placement);
    const Steps two_shot = two_shot_all_reduce(n_elements, placement.size());
    EXPECT_EQ(two_shot.size(), 2U);
    expect_all_reduced(two_shot, n_elements, placement.size());
    expect_sent(two_shot, CommOp::all_reduce, CommAlgorithm::two_shot, n_elements, placement);
  });
}

TEST(CollectiveSteps, NvlsAllReducesThroughTheSwitch) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const Steps steps = nvls_all_reduce(n_elements, placement.size());
    expect_all_reduced(steps, n_elements, placement.size());
    expect_sent(steps, CommOp::all_reduce, CommAlgorithm::nvls, n_elements, placement);
    int64_t from_switch = 0;
    for (const std::vector<Transfer>& step : steps) {
      for (const Transfer& t : step) from_switch += t.source == node_switch ? t.elements.size() : 0;
    }
    EXPECT_EQ(from_switch, (placement.size() + 1) * n_elements);  // S + S/n to each
  });
}

TEST(CollectiveSteps, EveryPairExchangesItsPartInAnAllToAll) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const Steps steps = direct_all_to_all(n_elements, placement.size());
    ASSERT_EQ(steps.size(), 1U);
    std::map<std::pair<int, int>, IndexRange> moved;
    for (const Transfer& t : steps[0]) {
      EXPECT_TRUE(moved.emplace(std::pair{t.source, t.target}, t.elements).second);
    }
    EXPECT_EQ(moved.size(), static_cast<size_t>(placement.size() * (placement.size() - 1)));
    for (const auto& [ends, elements] : moved) {
      EXPECT_EQ(elements, split_range(n_elements, placement.size(), ends.second));
    }
    expect_sent(steps, CommOp::all_to_all, CommAlgorithm::direct, n_elements, placement);
  });
}

TEST(CollectiveSteps, OneRankBroadcasts) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const Steps steps = direct_broadcast(n_elements, placement.size());
    ASSERT_EQ(steps.size(), 1U);
    std::set<int> reached;
    for (const Transfer& t : steps[0]) {
      EXPECT_EQ(t.source, 0);
      EXPECT_EQ(t.elements, (IndexRange{0, n_elements}));
      reached.insert(t.target);
    }
    EXPECT_EQ(reached.size(), static_cast<size_t>(placement.size() - 1));
    expect_sent(steps, CommOp::broadcast, CommAlgorithm::direct, n_elements, placement);
  });
}

TEST(CollectiveSteps, HierarchicalAllReduces) {
  for_each_case([](int64_t n_elements, const GroupPlacement& placement) {
    const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
    if (n_channels(by_node) == 1) return;  // one node, one rank per node or uneven: not offered
    const HierarchicalSteps steps = hierarchical_all_reduce(n_elements, placement);
    Steps all = steps.reduce_scatter;
    all.insert(all.end(), steps.across.begin(), steps.across.end());
    all.insert(all.end(), steps.all_gather.begin(), steps.all_gather.end());
    expect_all_reduced(all, n_elements, placement.size());
    expect_sent(all, CommOp::all_reduce, CommAlgorithm::hierarchical, n_elements, placement);
    for (const std::vector<Transfer>& step : steps.across) {
      for (const Transfer& t : step) {
        const auto source = static_cast<size_t>(t.source);
        const auto target = static_cast<size_t>(t.target);
        EXPECT_NE(placement.node_of[source], placement.node_of[target]);
        EXPECT_EQ(placement.device_of[source], placement.device_of[target]);
      }
    }
  });
}

// Each rank is an inner member of one tree at most, so that none sends more than twice the payload.
TEST(CollectiveTree, InnerMembersOfOneTreeAreLeavesOfTheOther) {
  for (const int n : {2, 4, 5, 8, 15, 16, 128}) {
    const std::vector<int> trees[] = {tree_parents(n, 0), tree_parents(n, 1)};
    for (int member = 0; member < n; ++member) {
      int with_children = 0;
      for (const std::vector<int>& parents : trees) {
        const auto children = std::count(parents.begin(), parents.end(), member);
        EXPECT_LE(children, 2) << member << " of " << n;
        with_children += children > 1 ? 1 : 0;
      }
      EXPECT_LE(with_children, 1) << member << " of " << n;
    }
  }
}

TEST(CollectiveRing, EachChannelCrossesEachNodeBoundaryOnceByAnotherDevice) {
  const GroupPlacement placement = nodes_of(2, 8);
  const std::vector<std::vector<int>> orders = ring_orders(placement);
  ASSERT_EQ(orders.size(), 8U);
  std::set<int> exits;
  for (const std::vector<int>& order : orders) {
    for (size_t p = 0; p < order.size(); ++p) {
      const int next = order[(p + 1) % order.size()];
      if (placement.node_of[static_cast<size_t>(order[p])] !=
          placement.node_of[static_cast<size_t>(next)]) {
        EXPECT_TRUE(exits.insert(order[p]).second);
      }
    }
  }
  EXPECT_EQ(exits.size(), 16U);  // every device's NIC sends for one channel
}

}  // namespace
}  // namespace testbed
