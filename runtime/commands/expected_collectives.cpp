#include "runtime/commands/expected_collectives.hpp"

#include <set>

#include "runtime/serving/sampler.hpp"

namespace testbed {
namespace {

struct StepSizes {
  std::set<int64_t> rows;     // of the microbatches
  std::set<int64_t> sampled;  // of their rows, those with logits
};

// The plans of one replica, as its scheduler will make them.
void add_plans(std::vector<Request> requests, const SchedulerOptions& options, StepSizes& sizes) {
  Scheduler scheduler(std::move(requests), options);
  while (const std::optional<StepPlan> plan = scheduler.next()) {
    size_t n_sampled = 0;
    for (const MicrobatchPlan& microbatch : plan->microbatches) {
      sizes.rows.insert(microbatch.n_rows());
      sizes.sampled.insert(static_cast<int64_t>(microbatch.logits_rows.size()));
      for (const LogitsRow& row : microbatch.logits_rows) n_sampled += row.sample ? 1 : 0;
    }
    scheduler.update(plan->step, std::vector<int32_t>(n_sampled, 0));
  }
}

}  // namespace

std::vector<CollectiveKey> expected_collectives(const RunConfig& config,
                                                const RunInputs& inputs,
                                                const Mesh& mesh,
                                                const ClusterSpec& cluster) {
  if (mesh.tp == 1) return {};
  StepSizes sizes;
  const SchedulerOptions options = scheduler_options(config, inputs.model, mesh);
  std::set<std::pair<size_t, size_t>> seen;  // requests and their tokens: replicas are mostly alike
  for (int dp = 0; dp < mesh.dp; ++dp) {
    std::vector<Request> requests = requests_of(inputs.workload, mesh, dp);
    size_t n_tokens = 0;
    for (const Request& request : requests) n_tokens += request.prompt_ids.size();
    if (!seen.insert({requests.size(), n_tokens}).second) continue;
    add_plans(std::move(requests), options, sizes);
  }
  const int64_t row_bytes = dtype_bytes(config.compute_dtype, inputs.model.d_model);
  std::set<CollectiveKey> keys;
  for (int rank = 0; rank < mesh.world_size(); rank += mesh.tp) {
    const GroupPlacement placement =
        placement_of(mesh.group(rank, Axis::tp), cluster.node.n_devices);
    for (const int64_t n : sizes.rows) {
      keys.insert(collective_key(CommOp::all_reduce, n * row_bytes, placement));
    }
    for (const int64_t n : sizes.sampled) {
      if (n == 0) continue;
      keys.insert(collective_key(CommOp::all_gather, n * mesh.tp * sampled_row_bytes, placement));
    }
  }
  return {keys.begin(), keys.end()};
}

}  // namespace testbed
