#include "parallel/comm/collective_schedule.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "kernels/base/check.hpp"
#include "parallel/comm/schedules/pace.hpp"
#include "parallel/comm/schedules/steps.hpp"
#include "parallel/comm/wire_bytes.hpp"

namespace testbed {
namespace {

// Beyond as many transfers the steps of a ring are played as one: the links carry the same, and
// ranks that move in step take the same time.
constexpr size_t max_transfers = 4096;

double log2_steps(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

// The group, and what its links do for one collective.
struct Group {
  const GroupPlacement& placement;
  const ClusterSpec& cluster;
  std::vector<std::vector<int>> by_node;
  int64_t n_bytes;  // payload

  Group(const GroupPlacement& p, const ClusterSpec& c, int64_t payload)
      : placement(p), cluster(c), by_node(ranks_by_node(p)), n_bytes(payload) {}

  int size() const { return placement.size(); }
  int n_nodes() const { return static_cast<int>(by_node.size()); }
  int n_local() const {  // of the node that holds most
    size_t most = 0;
    for (const std::vector<int>& ranks : by_node) most = std::max(most, ranks.size());
    return static_cast<int>(most);
  }

  // Ranks of a node share its links: sharing counts them.
  Pace within(CommOp op, CommAlgorithm algorithm, double sent_bytes) const {
    if (n_local() == 1) return {};
    return pace_on(cluster.node.link,
                   timing_key(op, algorithm),
                   n_bytes,
                   {size(), n_local(), n_nodes()},
                   sent_bytes);
  }
  // Every crossing is a message between two NICs.
  Pace across(double sent_bytes) const {
    if (n_nodes() == 1) return {};
    CHECK(cluster.fabric.has_value());
    const std::string key = timing_key(CommOp::send, CommAlgorithm::direct);
    return pace_on(cluster.fabric->nic, key, n_bytes, {size(), 2, n_nodes()}, sent_bytes);
  }
};

// Turns steps into rounds.
class Rounds {
 public:
  Rounds(const Group& group, int64_t element_bytes)
      : group_(group), element_bytes_(element_bytes) {}

  // Flows of the steps that follow move at these paces' rates.
  void set_paces(const Pace& within, const Pace& across) {
    within_ = within;
    across_ = across;
  }

  // One round per step; once_s is charged in the first.
  void in_turn(const Steps& steps, double once_s, double step_s) {
    size_t n_transfers = 0;
    for (const std::vector<Transfer>& step : steps) n_transfers += step.size();
    if (n_transfers > max_transfers) {
      together(steps, once_s + step_s * static_cast<double>(steps.size()));
      return;
    }
    rounds_.reserve(rounds_.size() + steps.size());
    for (const std::vector<Transfer>& step : steps) {
      Round& round = rounds_.emplace_back();
      round.latency_s = step_s + std::exchange(once_s, 0.0);
      round.flows.reserve(step.size());
      for (const Transfer& transfer : step) add_flow(transfer, round);
    }
  }

  // All steps in one round, the transfers of a pair as one flow: a pipeline in its steady state.
  void together(const Steps& steps, double latency_s) {
    std::map<std::pair<int, int>, int64_t> n_elements;  // by (source, target)
    for (const std::vector<Transfer>& step : steps) {
      for (const Transfer& transfer : step) {
        n_elements[{transfer.source, transfer.target}] += transfer.elements.size();
      }
    }
    Round& round = rounds_.emplace_back();
    round.latency_s = latency_s;
    round.flows.reserve(n_elements.size());
    for (const auto& [ends, count] : n_elements) {
      add_flow({.source = ends.first, .target = ends.second, .elements = {0, count}}, round);
    }
  }

  std::vector<Round> take() { return std::move(rounds_); }

 private:
  bool crosses(int source, int target) const {
    if (source == node_switch || target == node_switch) return false;
    const std::vector<int>& node_of = group_.placement.node_of;
    return node_of[static_cast<size_t>(source)] != node_of[static_cast<size_t>(target)];
  }

  void add_flow(const Transfer& transfer, Round& round) const {
    const int64_t n_bytes = transfer.elements.size() * element_bytes_;
    if (n_bytes == 0) return;
    const bool crossing = crosses(transfer.source, transfer.target);
    round.flows.push_back({.source = transfer.source,
                           .target = transfer.target,
                           .n_bytes = n_bytes,
                           .bytes_per_s = (crossing ? across_ : within_).bytes_per_s});
  }

  const Group& group_;
  int64_t element_bytes_;
  Pace within_;
  Pace across_;
  std::vector<Round> rounds_;
};

class Scheduler {
 public:
  Scheduler(CommOp op, CommAlgorithm algorithm, const Group& group, int64_t element_bytes)
      : op_(op),
        algorithm_(algorithm),
        group_(group),
        n_elements_(group.n_bytes / element_bytes),
        rounds_(group, element_bytes) {
    sent_bytes_ = static_cast<double>(
        wire_bytes(op, algorithm, group.n_bytes, element_bytes, 0, group.placement));
    within_ = group.within(op, algorithm, sent_bytes_);
    across_ = group.across(sent_bytes_ / n_channels(group.by_node));  // channels take a NIC each
    rounds_.set_paces(within_, across_);
  }

  std::vector<Round> rounds() {
    switch (algorithm_) {
      case CommAlgorithm::none:
        break;
      case CommAlgorithm::ring:
        ring();
        break;
      case CommAlgorithm::tree:
        tree();
        break;
      case CommAlgorithm::hierarchical:
        hierarchical();
        break;
      case CommAlgorithm::nvls:
        CHECK(op_ == CommOp::all_reduce && group_.n_nodes() == 1);
        rounds_.together(nvls_all_reduce(n_elements_, group_.size()), once_s() + within_.step_s);
        break;
      case CommAlgorithm::low_latency:  // only of rows: row_exchange.hpp
      case CommAlgorithm::nvls_tree:    // measured, not simulated
      case CommAlgorithm::collnet:
      case CommAlgorithm::pat:
      case CommAlgorithm::nccl:
      case CommAlgorithm::one_shot_norm:
        CHECK(false);
      case CommAlgorithm::direct:
      case CommAlgorithm::one_shot:
      case CommAlgorithm::two_shot:
        direct();
        break;
    }
    return rounds_.take();
  }

 private:
  double once_s() const {
    return within_.start_s + within_.fill_s + across_.start_s + across_.fill_s;
  }

  // Ring: a chunk on its way around meets as many crossings as there are nodes.
  void ring() {
    const double n = group_.size();
    const double crossings = group_.n_nodes() > 1 ? group_.n_nodes() : 0;
    const double step_s = ((n - crossings) * within_.step_s + crossings * across_.step_s) / n;
    rounds_.in_turn(ring_steps(), once_s(), step_s);
  }

  Steps ring_steps() const {
    if (op_ == CommOp::all_gather) return ring_all_gather(n_elements_, group_.placement);
    if (op_ == CommOp::reduce_scatter) return ring_reduce_scatter(n_elements_, group_.placement);
    CHECK(op_ == CommOp::all_reduce);
    return ring_all_reduce(n_elements_, group_.placement);
  }

  // Up the node's chain and the tree across nodes, and down again.
  void tree() {
    CHECK(op_ == CommOp::all_reduce);
    const double depth_s =
        (group_.n_local() - 1) * within_.step_s + log2_steps(group_.n_nodes()) * across_.step_s;
    rounds_.together(tree_all_reduce(n_elements_, group_.placement), once_s() + 2.0 * depth_s);
  }

  // One kernel: it starts once.
  void hierarchical() {
    CHECK(op_ == CommOp::all_reduce);
    const HierarchicalSteps steps = hierarchical_all_reduce(n_elements_, group_.placement);
    const double in_node = static_cast<double>(group_.n_bytes) * (1.0 - 1.0 / group_.n_local());
    const Pace scatter = group_.within(CommOp::reduce_scatter, CommAlgorithm::ring, in_node);
    const Pace gather = group_.within(CommOp::all_gather, CommAlgorithm::ring, in_node);
    rounds_.set_paces(scatter, across_);
    rounds_.in_turn(steps.reduce_scatter, scatter.start_s + scatter.fill_s, scatter.step_s);
    const double across_s = across_.start_s + across_.fill_s;
    if (group_.n_nodes() <= max_ring_nodes) {
      rounds_.in_turn(steps.across, across_s, across_.step_s);
    } else {  // a tree, pipelined
      const double depth_s = across_.step_s * static_cast<double>(steps.across.size());
      rounds_.together(steps.across, across_s + depth_s);
    }
    rounds_.set_paces(gather, across_);
    rounds_.in_turn(steps.all_gather, gather.fill_s, gather.step_s);
  }

  // Latencies of both kinds of links run at once.
  void direct() {
    const double within_s =
        within_.start_s + within_.fill_s + within_.step_s * log2_steps(group_.n_local());
    const double across_s = across_.start_s + across_.fill_s + across_.step_s;
    rounds_.in_turn(
        direct_steps(), group_.n_nodes() > 1 ? std::max(within_s, across_s) : within_s, 0.0);
  }

  Steps direct_steps() const {
    const int n = group_.size();
    if (algorithm_ == CommAlgorithm::one_shot) return one_shot_all_reduce(n_elements_, n);
    if (algorithm_ == CommAlgorithm::two_shot) return two_shot_all_reduce(n_elements_, n);
    switch (op_) {
      case CommOp::all_gather:
        return direct_all_gather(n_elements_, n);
      case CommOp::reduce_scatter:
        return direct_reduce_scatter(n_elements_, n);
      case CommOp::all_to_all:
        return direct_all_to_all(n_elements_, n);
      case CommOp::broadcast:
        return direct_broadcast(n_elements_, n);
      case CommOp::send:
        return {{{.source = 0, .target = 1, .elements = {0, n_elements_}}}};
      case CommOp::barrier:
        return Steps(1);
      default:
        CHECK(false);
    }
  }

  CommOp op_;
  CommAlgorithm algorithm_;
  const Group& group_;
  int64_t n_elements_;
  Rounds rounds_;
  double sent_bytes_ = 0.0;
  Pace within_;
  Pace across_;
};

}  // namespace

CollectiveSchedule make_schedule(CommOp op,
                                 CommAlgorithm algorithm,
                                 int64_t n_bytes,
                                 const GroupPlacement& placement,
                                 const ClusterSpec& cluster,
                                 int64_t element_bytes) {
  CHECK(n_bytes % element_bytes == 0);
  CollectiveSchedule schedule{.op = op, .algorithm = algorithm, .rounds = {}};
  if (placement.size() == 1) return schedule;
  const Group group(placement, cluster, n_bytes);
  schedule.rounds = Scheduler(op, algorithm, group, element_bytes).rounds();
  return schedule;
}

}  // namespace testbed
