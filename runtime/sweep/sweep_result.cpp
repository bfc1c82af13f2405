#include "runtime/sweep/sweep_result.hpp"

#include <fmt/format.h>

namespace testbed {

std::string split_name(const SweepPoint& p) {
  std::string name = fmt::format("tp {} x pp {} x dp {}", p.tp, p.pp, p.dp);
  if (p.cp > 1) name += fmt::format(" x cp {}", p.cp);
  if (p.ep > 1) name += fmt::format(", ep {}", p.ep);
  return name;
}

const WhatIfStep* SweepResult::what_if(Phase phase, WhatIf what_if) const {
  for (const WhatIfStep& step : what_if_steps)
    if (step.phase == phase && step.what_if == what_if) return &step;
  return nullptr;
}

std::optional<double> SweepResult::speedup(Phase which, WhatIf without) const {
  const PhaseRecord* now = phase(which);
  const WhatIfStep* then = what_if(which, without);
  if (now == nullptr || then == nullptr || then->step_ms <= 0.0) return std::nullopt;
  return now->step_ms.median() / then->step_ms;
}

std::optional<double> SweepResult::tokens_per_s_per_device(Phase phase) const {
  if (!record) return std::nullopt;
  const Repeated& rate = phase == Phase::prefill ? record->timing.prefill_tokens_per_s
                                                 : record->timing.decode_tokens_per_s;
  if (rate.empty()) return std::nullopt;
  return rate.median() / record->world_size;
}

const CollectiveRecord* costliest_all_reduce(const PhaseRecord& phase) {
  const CollectiveRecord* costliest = nullptr;
  for (const CollectiveRecord& collective : phase.collectives) {
    if (collective.op != "all_reduce" || collective.axis != "tp") continue;
    if (costliest == nullptr || collective.exposed_us > costliest->exposed_us)
      costliest = &collective;
  }
  return costliest;
}

double all_reduces_per_step(const PhaseRecord& phase) {
  double n = 0.0;
  for (const CollectiveRecord& collective : phase.collectives)
    if (collective.op == "all_reduce" && collective.axis == "tp") n += collective.per_step;
  return n;
}

std::vector<WhatIfStep> steps_of(WhatIf what_if, const RunRecord& record) {
  std::vector<WhatIfStep> steps;
  steps.reserve(record.phases.size());
  for (const PhaseRecord& phase : record.phases)
    steps.push_back({what_if, phase.phase, phase.step_ms.median(), phase.shares});
  return steps;
}

}  // namespace testbed
