#include "runtime/commands/sim_fit.hpp"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <tuple>

#include "kernels/base/errors.hpp"
#include "runtime/config/split.hpp"
#include "runtime/serving/memory_plan.hpp"

namespace testbed {
namespace {

// Ranks at the same place of their replicas, with equally much to do, hold the same.
class RankPlans {
 public:
  RankPlans(const RunConfig& config, const RunInputs& inputs, const Mesh& mesh)
      : config_(config), inputs_(inputs), mesh_(mesh) {
    for (int dp = 0; dp < mesh.dp; ++dp) {
      int64_t n_tokens = 0;
      const std::vector<Request> requests = requests_of(inputs.workload, mesh, dp);
      for (const Request& request : requests) {
        n_tokens += request.cached_tokens + request.max_new_tokens +
                    static_cast<int64_t>(request.prompt_ids.size());
      }
      load_.emplace_back(requests.size(), n_tokens);
    }
  }
  MemoryRecord of(int rank, int64_t capacity_bytes) {
    const Coordinates c = mesh_.coordinates(rank);
    const auto key = std::tuple(c.tp, c.pp, mesh_.ep_rank(rank), load_[static_cast<size_t>(c.dp)]);
    auto known = plans_.find(key);
    if (known == plans_.end()) {
      known = plans_.emplace(key, planned_memory(config_, inputs_, mesh_, rank)).first;
    }
    MemoryRecord mine = known->second;
    mine.rank = rank;
    mine.capacity_bytes = capacity_bytes;
    return mine;
  }

 private:
  using Load = std::pair<size_t, int64_t>;  // requests, tokens
  const RunConfig& config_;
  const RunInputs& inputs_;
  const Mesh& mesh_;
  std::vector<Load> load_;  // [dp]
  std::map<std::tuple<int, int, int, Load>, MemoryRecord> plans_;
};

// Why the run does not fit; plans: filled with every rank's, if not null.
std::optional<std::string> why_too_much(const RunConfig& config,
                                        const RunInputs& inputs,
                                        const Mesh& mesh,
                                        const ClusterSpec& cluster,
                                        std::vector<MemoryRecord>* plans) {
  RankPlans all(config, inputs, mesh);
  std::optional<MemoryUse> worst;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const MemoryRecord plan = all.of(rank, cluster.device.memory_bytes);
    MemoryUse use{.place = fmt::format("{} ({})", cluster.device.name, cluster.name)};
    use.add(plan);
    if (!worst || use.needed_bytes > worst->needed_bytes) worst = use;
    if (plans != nullptr) plans->push_back(plan);
  }
  return worst->why_too_much();
}

// The fewest devices of the cluster that would do, tp before pp.
std::string what_would_fit(const RunConfig& config,
                           const RunInputs& inputs,
                           const Mesh& mesh,
                           const ClusterSpec& cluster) {
  RunConfig smaller = config;
  std::optional<Mesh> best;
  for (const int tp : legal_tp(inputs.model, weight_block(config, inputs), mesh.ep)) {
    for (int pp = 1; tp * pp * mesh.dp * mesh.cp <= cluster.n_devices(); pp *= 2) {
      const Mesh split{.tp = tp, .cp = mesh.cp, .dp = mesh.dp, .pp = pp, .ep = mesh.ep};
      if (best && split.world_size() > best->world_size()) continue;  // tp rises: it is preferred
      smaller.parallel.virtual_stages = 1;
      if (why_illegal(inputs.model, split, smaller.parallel, weight_block(config, inputs))) {
        continue;
      }
      if (!why_too_much(smaller, inputs, split, cluster, nullptr)) best = split;
    }
  }
  if (!best)
    return fmt::format(
        "no tp and pp with cp {}, dp {} and ep {} over the {} devices of the cluster would fit",
        mesh.cp,
        mesh.dp,
        mesh.ep,
        cluster.n_devices());
  return fmt::format("--tp {} --pp {} would fit", best->tp, best->pp);
}

}  // namespace

std::vector<MemoryRecord> memory_that_fits(const RunConfig& config,
                                           const RunInputs& inputs,
                                           const Mesh& mesh,
                                           const ClusterSpec& cluster) {
  std::vector<MemoryRecord> plans;
  plans.reserve(static_cast<size_t>(mesh.world_size()));
  if (const auto reason = why_too_much(config, inputs, mesh, cluster, &plans)) {
    throw ConfigError(
        fmt::format("{} ({})", *reason, what_would_fit(config, inputs, mesh, cluster)));
  }
  return plans;
}

}  // namespace testbed
