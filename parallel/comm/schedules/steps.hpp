// What each algorithm moves, as steps of transfers: data movement only, no time. A transfer adds
// the source's partial sum of its elements to the target's, or replaces what the target's sum is
// part of. Element ranges are of the payload of make_schedule, in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/index_range.hpp"
#include "parallel/comm/group_placement.hpp"

namespace testbed {

struct Transfer {
  int source = 0;  // rank within the group, or node_switch
  int target = 0;
  IndexRange elements;
};
// The transfers of a step read what the steps before have left.
using Steps = std::vector<std::vector<Transfer>>;

// Part `part` of `parts` of a range, as split_range.
IndexRange part_of(IndexRange range, int parts, int part);

// Ring: in a reduce-scatter step each rank passes on the sum of a part to its neighbour, its own
// part comes home last; all-gather passes the finished parts on. 2(n-1) and n-1 steps.
std::vector<std::vector<int>> ring_orders(const GroupPlacement& placement);  // [channel][position]
Steps ring_all_reduce(int64_t n_elements, const GroupPlacement& placement);
Steps ring_reduce_scatter(int64_t n_elements, const GroupPlacement& placement);
Steps ring_all_gather(int64_t n_elements, const GroupPlacement& placement);

// Tree, as NCCL builds it: a chain in each node, whose heads are joined across nodes by two binary
// trees of half the payload each (Sanders, Speck, Traff 2009: a rank that is inner in one is a leaf
// in the other). Sums go up, results come down.
Steps tree_all_reduce(int64_t n_elements, const GroupPlacement& placement);
// Parent of each of n members in binary tree 0 or 1; -1 for the root.
std::vector<int> tree_parents(int n, int tree);

// Every pair exchanges directly.
Steps one_shot_all_reduce(int64_t n_elements, int size);
Steps direct_reduce_scatter(int64_t n_elements, int size);
Steps direct_all_gather(int64_t n_elements, int size);
Steps two_shot_all_reduce(int64_t n_elements, int size);
Steps direct_all_to_all(int64_t n_elements, int size);  // elements of the source's buffer
Steps direct_broadcast(int64_t n_elements, int size);   // from rank 0

// NVLS: rank r has the switch sum part r of all ranks' buffers and multicasts the sum through it.
Steps nvls_all_reduce(int64_t n_elements, int size);

// The ranks of one node hold a part each after a reduce-scatter in the node; ranks with the same
// part all-reduce it across nodes (ring, or tree above max_ring_nodes); an all-gather in the node
// ends it.
constexpr int max_ring_nodes = 8;  // 2(m-1) steps of a ring against 2 log2 m of a tree
struct HierarchicalSteps {
  Steps reduce_scatter;
  Steps across;
  Steps all_gather;
};
HierarchicalSteps hierarchical_all_reduce(int64_t n_elements, const GroupPlacement& placement);

}  // namespace testbed
