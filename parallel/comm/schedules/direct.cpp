// Algorithms in which every pair of ranks exchanges directly, and NVLS, in which every rank
// exchanges with the switch.
#include "parallel/comm/collective_schedule.hpp"
#include "parallel/comm/schedules/steps.hpp"
#include "parallel/shard.hpp"

namespace testbed {
namespace {

// One step in which each pair (source, target) moves elements_of(source, target).
template <typename ElementsOf>
Steps every_pair(int size, ElementsOf&& elements_of) {
  Steps steps(1);
  steps[0].reserve(static_cast<size_t>(size) * static_cast<size_t>(size - 1));
  for (int source = 0; source < size; ++source) {
    for (int hop = 1; hop < size; ++hop) {
      const int target = (source + hop) % size;
      steps[0].push_back(
          {.source = source, .target = target, .elements = elements_of(source, target)});
    }
  }
  return steps;
}

}  // namespace

IndexRange part_of(IndexRange range, int parts, int part) {
  const IndexRange within = split_range(range.size(), parts, part);
  return {range.begin + within.begin, range.begin + within.end};
}

Steps one_shot_all_reduce(int64_t n_elements, int size) {
  return every_pair(size, [&](int, int) { return IndexRange{0, n_elements}; });
}

Steps direct_reduce_scatter(int64_t n_elements, int size) {
  return every_pair(size, [&](int, int target) { return split_range(n_elements, size, target); });
}

Steps direct_all_gather(int64_t n_elements, int size) {
  return every_pair(size, [&](int source, int) { return split_range(n_elements, size, source); });
}

Steps two_shot_all_reduce(int64_t n_elements, int size) {
  Steps steps = direct_reduce_scatter(n_elements, size);
  steps.push_back(direct_all_gather(n_elements, size).front());
  return steps;
}

Steps direct_all_to_all(int64_t n_elements, int size) {
  return direct_reduce_scatter(n_elements, size);
}

Steps direct_broadcast(int64_t n_elements, int size) {
  Steps steps(1);
  steps[0].reserve(static_cast<size_t>(size));
  for (int target = 1; target < size; ++target) {
    steps[0].push_back({.source = 0, .target = target, .elements = {0, n_elements}});
  }
  return steps;
}

Steps nvls_all_reduce(int64_t n_elements, int size) {
  enum { read, sum, write, multicast };
  Steps steps(4);
  for (int rank = 0; rank < size; ++rank) {
    const IndexRange all = {0, n_elements};
    const IndexRange part = split_range(n_elements, size, rank);
    steps[read].push_back({.source = rank, .target = node_switch, .elements = all});
    steps[sum].push_back({.source = node_switch, .target = rank, .elements = part});
    steps[write].push_back({.source = rank, .target = node_switch, .elements = part});
    steps[multicast].push_back({.source = node_switch, .target = rank, .elements = all});
  }
  return steps;
}

}  // namespace testbed
