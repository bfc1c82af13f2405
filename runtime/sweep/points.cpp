#include "runtime/sweep/points.hpp"

#include <fmt/format.h>

#include <algorithm>

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
      for (const int dp : config.dp) {
        point.dp = dp;
        for (const int tp : config.tp) {
          point.tp = tp;
          points.push_back(point);
        }
      }
    }
  });
  return points;
}

std::vector<SweepPoint> all_splits(const SweepConfig& config,
                                   const ModelConfig& model,
                                   const std::vector<int>& n_devices) {
  constexpr int64_t unquantised = 1;
  const std::vector<int> degrees = legal_tp(model, unquantised);
  std::vector<SweepPoint> points;
  for_each_workload(config, [&](size_t cluster, SweepPoint point) {
    const int n = n_devices[cluster];
    for (int used = 1; used <= n; ++used) {
      if (n % used != 0) continue;
      for (int dp = 1; dp <= std::min<int64_t>(point.batch, used); ++dp) {
        for (const int tp : degrees) {
          if (used % (dp * tp) != 0) continue;
          point.tp = tp;
          point.pp = used / (dp * tp);
          point.dp = dp;
          const Mesh mesh{.tp = point.tp, .dp = point.dp, .pp = point.pp};
          if (!why_illegal(model, mesh, config_of(config, point).parallel, unquantised))
            points.push_back(point);
        }
      }
    }
  });
  return points;
}

RunConfig config_of(const SweepConfig& config, const SweepPoint& point) {
  RunConfig run = config.base;
  run.cluster.name = point.cluster;
  run.parallel.tp = point.tp;
  run.parallel.pp = point.pp;
  run.parallel.dp = point.dp;
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
  constexpr int64_t unquantised = 1;
  return why_illegal(model, mesh, config.parallel, unquantised);
}

}  // namespace testbed
