#include "runtime/sweep/points.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/config/split.hpp"

namespace testbed {
namespace {

// Calls visit(point) for every cluster (by index) and workload; the split is 1 x 1 x 1.
template <typename Visit>
void for_each_workload(const SweepConfig& config, Visit&& visit) {
  SweepPoint point;
  for (size_t cluster = 0; cluster < config.clusters.size(); ++cluster) {
    point.cluster = config.clusters[cluster];
    for (const int64_t batch : config.batch) {
      point.batch = batch;
      for (const int64_t context : config.context) {
        point.context = context;
        for (const int64_t prompt_tokens : config.prompt_tokens) {
          point.prompt_tokens = prompt_tokens;
          visit(cluster, point);
        }
      }
    }
  }
}

}  // namespace

std::vector<SweepPoint> sweep_points(const SweepConfig& config) {
  std::vector<SweepPoint> points;
  for_each_workload(config, [&](size_t /*cluster*/, SweepPoint point) {
    for (const int pp : config.pp) {
      point.pp = pp;
      for (const int cp : config.cp) {
        point.cp = cp;
        for (const int dp : config.dp) {
          point.dp = dp;
          for (const int ep : config.ep) {
            point.ep = ep;
            for (const int tp : config.tp) {
              point.tp = tp;
              points.push_back(point);
            }
          }
        }
      }
    }
  });
  return points;
}

namespace {

// Of what was asked for; blocks as stored are not known here.
int64_t weight_block(const RunConfig& run) {
  return run.weight_format ? run.weight_format->col_granularity() : 1;
}

// Calls visit(tp, pp, cp, dp) for every way of using exactly `used` devices.
template <typename Visit>
void for_each_split(const SweepConfig& config, int64_t batch, int used, Visit&& visit) {
  for (const int cp : config.cp) {
    if (used % cp != 0) continue;
    for (int dp = 1; dp <= std::min<int64_t>(batch, used / cp); ++dp) {
      for (int tp = 1; tp <= used / (cp * dp); ++tp) {
        if (used % (tp * cp * dp) == 0) visit(tp, used / (tp * cp * dp), cp, dp);
      }
    }
  }
}

std::vector<int> searched_ep(const SweepConfig& config,
                             const ModelConfig& model,
                             const SweepPoint& p) {
  if (!config.ep.empty()) return config.ep;
  if (!model.moe) return {1};
  const std::set<int> degrees{1, p.tp, p.tp * p.cp * p.dp};
  return {degrees.begin(), degrees.end()};
}

}  // namespace

std::vector<SweepPoint> all_splits(const SweepConfig& config,
                                   const ModelConfig& model,
                                   const std::vector<int>& n_devices) {
  std::vector<SweepPoint> points;
  for_each_workload(config, [&](size_t cluster, SweepPoint point) {
    const int n = n_devices[cluster];
    for (int used = 1; used <= n; ++used) {
      if (n % used != 0) continue;
      for_each_split(config, point.batch, used, [&](int tp, int pp, int cp, int dp) {
        point.tp = tp;
        point.pp = pp;
        point.cp = cp;
        point.dp = dp;
        for (const int ep : searched_ep(config, model, point)) {
          point.ep = ep;
          const ParallelConfig parallel = config_of(config, point).parallel;
          if (!why_illegal(model, simulated_mesh(parallel), parallel, weight_block(config.base)))
            points.push_back(point);
        }
      });
    }
  });
  return points;
}

RunConfig config_of(const SweepConfig& config, const SweepPoint& point) {
  RunConfig run = config.base;
  run.cluster.name = point.cluster;
  run.parallel.tp = point.tp;
  run.parallel.pp = point.pp;
  run.parallel.cp = point.cp;
  run.parallel.dp = point.dp;
  run.parallel.ep = point.ep;
  run.workload.batch = point.batch;
  run.workload.context = point.context;
  run.workload.prompt_tokens = point.prompt_tokens;
  return run;
}

std::optional<std::string> why_refused(const RunConfig& config,
                                       const ModelConfig& model,
                                       const ClusterSpec& cluster) {
  const Mesh mesh = simulated_mesh(config.parallel);
  if (auto reason = why_too_many_devices(mesh, cluster)) return reason;
  return why_illegal(model, mesh, config.parallel, weight_block(config));
}

}  // namespace testbed
