// Which algorithms a group's links can run.
#include "parallel/comm/collective_schedule.hpp"
#include "parallel/comm/schedules/pace.hpp"

namespace testbed {
namespace {

// An ideal link runs anything; a calibrated one what it is calibrated for, up to the payload that
// its library uses the algorithm for.
bool runs(const LinkTiming& timing, CommOp op, CommAlgorithm algorithm, int64_t n_bytes) {
  if (timing.of.empty()) return true;
  const std::vector<ProtocolTiming>* const protocols =
      protocols_of(timing, timing_key(op, algorithm));
  if (protocols == nullptr) return false;
  const int64_t most = protocols->back().most_payload_bytes;
  return most == 0 || n_bytes <= most;
}

std::vector<CommAlgorithm> within_node(CommOp op, const NodeSpec& node, int64_t n_bytes) {
  std::vector<CommAlgorithm> candidates;
  if (op == CommOp::all_reduce) {
    candidates = {CommAlgorithm::ring, CommAlgorithm::one_shot, CommAlgorithm::two_shot};
    if (node.in_switch_reduction) candidates.push_back(CommAlgorithm::nvls);
  } else if (op == CommOp::all_gather || op == CommOp::reduce_scatter) {
    candidates = {CommAlgorithm::ring, CommAlgorithm::direct};
  } else {
    return {CommAlgorithm::direct};
  }
  std::erase_if(candidates,
                [&](CommAlgorithm a) { return !runs(node.link.timing, op, a, n_bytes); });
  return candidates;
}

}  // namespace

std::vector<CommAlgorithm> algorithms_for(CommOp op,
                                          const GroupPlacement& placement,
                                          const ClusterSpec& cluster,
                                          int64_t n_bytes) {
  if (placement.size() == 1) return {};
  const std::vector<std::vector<int>> by_node = ranks_by_node(placement);
  if (by_node.size() == 1) return within_node(op, cluster.node, n_bytes);
  if (op == CommOp::all_gather || op == CommOp::reduce_scatter) return {CommAlgorithm::ring};
  if (op != CommOp::all_reduce) return {CommAlgorithm::direct};
  std::vector<CommAlgorithm> algorithms = {CommAlgorithm::ring, CommAlgorithm::tree};
  if (n_channels(by_node) > 1) algorithms.push_back(CommAlgorithm::hierarchical);
  return algorithms;
}

}  // namespace testbed
