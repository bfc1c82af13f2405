#include "runtime/commands/predict.hpp"

#include "kernels/base/errors.hpp"
#include "runtime/commands/simulate.hpp"

namespace testbed {

void add_prediction(RunRecord& measured, const RunConfig& config, const ClusterSpec& cluster) {
  RunConfig same = config;
  same.parallel.dp = measured.run.parallel.dp;
  same.output = {};
  RunRecord simulated;
  try {
    simulated = simulate(same, cluster).record;
  } catch (const ConfigError& e) {
    measured.run.labels.push_back(std::string("not predicted: ") + e.what());
    return;
  }
  for (PhaseRecord& phase : measured.phases) {
    const PhaseRecord* const predicted = simulated.phase(phase.phase);
    if (predicted == nullptr || predicted->step_ms.empty()) continue;
    phase.predicted = PredictedRecord{cluster.name, predicted->step_ms.median(), predicted->shares};
  }
}

}  // namespace testbed
