#include "runtime/commands/sweep.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "kernels/base/errors.hpp"
#include "parallel/comm/sim_control.hpp"
#include "runtime/commands/outputs.hpp"
#include "runtime/commands/sim_fit.hpp"
#include "runtime/commands/simulate.hpp"
#include "runtime/config/cluster_config.hpp"
#include "runtime/config/presets.hpp"
#include "runtime/config/split.hpp"
#include "runtime/report/atomic_file.hpp"
#include "runtime/report/sweep_report.hpp"
#include "runtime/sweep/run_points.hpp"

namespace testbed {
namespace {

ModelConfig model_of(const RunConfig& config) {
  const ModelConfig model = read_model_config(locate_model(config.model));
  return config.layers ? truncated_to(model, *config.layers) : model;
}

std::map<std::string, ClusterSpec> read_clusters(const std::vector<std::string>& names) {
  std::map<std::string, ClusterSpec> clusters;
  for (const std::string& name : names) clusters.emplace(name, read_cluster(name));
  return clusters;
}

void check_fit(const RunConfig& config, const ClusterSpec& cluster) {
  const Mesh mesh = simulated_mesh(config.parallel);
  SoloControl solo;
  memory_that_fits(config, open_inputs(config, mesh, solo), mesh, cluster);
}

// One line that is written over, on a terminal only.
void show_progress(size_t done, size_t all) {
  fmt::print(stderr, "\rsimulating {} of {} ", done + 1, all);
  std::fflush(stderr);
}
void clear_progress() { fmt::print(stderr, "\r{:40}\r", ""); }

}  // namespace

int run_sweep(const SweepConfig& config) {
  const OutputConfig& output = config.base.output;
  check_all_writable({&output.json, &output.csv});
  const bool progress = !output.quiet && isatty(STDERR_FILENO) != 0;
  const SweepEngine engine{
      .check = check_fit,
      .simulate = [](const RunConfig& run,
                     const ClusterSpec& cluster,
                     WhatIf what_if) { return simulate(run, cluster, what_if).record; },
      .progress =
          [progress](size_t done, size_t all) {
            if (progress) show_progress(done, all);
          }};
  const Sweep sweep =
      run_points(config, model_of(config.base), read_clusters(config.clusters), engine);
  if (progress) clear_progress();
  if (output.json) write_file(*output.json, sweep_json(sweep));
  if (output.csv) write_file(*output.csv, sweep_csv(sweep));
  if (!output.quiet) fmt::print(terminal(output), "{}", sweep_table(sweep));
  return static_cast<int>(ExitCode::ok);
}

}  // namespace testbed
