#include "runtime/sweep/run_points.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/errors.hpp"
#include "runtime/sweep/points.hpp"

namespace testbed {
namespace {

class Runner {
 public:
  Runner(const SweepConfig& config,
         const ModelConfig& model,
         const std::map<std::string, ClusterSpec>& clusters,
         const SweepEngine& engine)
      : config_(config), model_(model), clusters_(clusters), engine_(engine) {}

  std::vector<SweepPoint> points() const {
    if (config_.best == SweepConfig::Best::none) return sweep_points(config_);
    std::vector<int> n_devices;
    n_devices.reserve(config_.clusters.size());
    for (const std::string& name : config_.clusters)
      n_devices.push_back(clusters_.at(name).n_devices());
    return all_splits(config_, model_, n_devices);
  }

  SweepResult checked(const SweepPoint& point) const {
    SweepResult result{.point = point};
    const RunConfig run = config_of(config_, point);
    result.refused = why_refused(run, model_, cluster_of(point));
    if (result.refused) return result;
    try {
      engine_.check(run, cluster_of(point));
    } catch (const ConfigError& error) {
      result.refused = error.what();
    }
    return result;
  }

  void simulate(SweepResult& result) {
    result.record = simulated(result.point, WhatIf::nothing);
    constexpr std::string_view warning = "warning: ";
    for (const std::string& label : result.record->run.labels)
      if (label.starts_with(warning)) result.warnings.push_back(label.substr(warning.size()));
  }

  void simulate_what_ifs(SweepResult& result) {
    for (const WhatIf what_if : what_ifs) {
      // A device alone has no links and waits for nobody: nothing changes.
      const bool same = result.point.n_devices() == 1 && what_if != WhatIf::infinite_memory;
      const std::vector<WhatIfStep> steps =
          steps_of(what_if, same ? *result.record : simulated(result.point, what_if));
      result.what_if_steps.insert(result.what_if_steps.end(), steps.begin(), steps.end());
    }
  }

  void expect(size_t n_simulations) { n_expected_ += n_simulations; }

 private:
  const ClusterSpec& cluster_of(const SweepPoint& point) const {
    return clusters_.at(point.cluster);
  }
  RunRecord simulated(const SweepPoint& point, WhatIf what_if) {
    engine_.progress(n_done_++, n_expected_);
    return engine_.simulate(config_of(config_, point), cluster_of(point), what_if);
  }

  const SweepConfig& config_;
  const ModelConfig& model_;
  const std::map<std::string, ClusterSpec>& clusters_;
  const SweepEngine& engine_;
  size_t n_done_ = 0;
  size_t n_expected_ = 0;
};

size_t n_what_ifs(const SweepPoint& point) { return point.n_devices() == 1 ? 1 : what_ifs.size(); }

void refuse_if_none_runs(const std::vector<SweepResult>& results) {
  if (results.empty())
    throw ConfigError("--best: no split of a cluster's devices is legal for the model");
  for (const SweepResult& result : results)
    if (!result.refused) return;
  const SweepPoint& p = results.front().point;
  throw ConfigError(fmt::format("none of the sweep's {} points can run; {} on {}: {}",
                                results.size(),
                                split_name(p),
                                p.cluster,
                                *results.front().refused));
}

}  // namespace

Sweep run_points(const SweepConfig& config,
                 const ModelConfig& model,
                 const std::map<std::string, ClusterSpec>& clusters,
                 const SweepEngine& engine) {
  Runner runner(config, model, clusters, engine);
  Sweep sweep{.config = config, .model = model.name, .n_layers = model.n_layers};
  for (const auto& [name, cluster] : clusters) sweep.descriptions[name] = cluster.description;
  const bool search = config.best != SweepConfig::Best::none;
  for (const SweepPoint& point : runner.points()) {
    sweep.results.push_back(runner.checked(point));
    if (!sweep.results.back().refused) runner.expect(search ? 1 : 1 + n_what_ifs(point));
  }
  refuse_if_none_runs(sweep.results);
  for (SweepResult& result : sweep.results) {
    if (result.refused) continue;
    runner.simulate(result);
    if (!search) runner.simulate_what_ifs(result);
  }
  if (!search) {
    sweep.crossovers = find_crossovers(sweep.results);
    return sweep;
  }
  sweep.best = find_best(sweep.results, config.best);
  for (const BestSplit& split : sweep.best) {
    SweepResult& best = sweep.results[split.best.result];
    runner.expect(n_what_ifs(best.point));
    runner.simulate_what_ifs(best);
  }
  return sweep;
}

}  // namespace testbed
