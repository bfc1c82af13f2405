#include "runtime/report/csv.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/report/csv_table.hpp"

namespace testbed {

namespace {

void add_run(CsvTable& table, const RunRecord& record) {
  const ParallelRecord& p = record.run.parallel;
  table.cell("model", record.run.model);
  table.cell("device", record.run.device);
  table.cell("simulated", std::string_view(record.run.simulated ? "true" : "false"));
  table.cell("labels", fmt::format("{}", fmt::join(record.run.labels, "; ")));
  table.cell("layers", record.run.layers);
  table.cell("world_size", record.world_size);
  table.cell("tp_degree", p.tp);
  table.cell("pp_degree", p.pp);
  table.cell("cp_degree", p.cp);
  table.cell("dp_degree", p.dp);
  table.cell("ep_degree", p.ep);
  table.cell("cp_placement", p.cp_placement);
  table.cell("expert_exchange", p.expert_exchange);
  table.cell("tp_comm", p.tp_comm);
}

void add_phase(CsvTable& table, const PhaseRecord& phase) {
  table.cell("phase", phase_name(phase.phase));
  table.cell("bound_by", phase.bound_by);
  table.cell("timed_step_ms",
             phase.step_ms.empty() ? std::optional<double>() : phase.step_ms.median());
  table.cell("mfu", phase.mfu);
  table.cell("mbu", phase.mbu);
}

// Sums over the ring's steps; empty fields where no ring ran.
void add_ring(CsvTable& table, const PhaseRecord& phase) {
  std::optional<double> compute_ms;
  std::optional<double> hidden_ms;
  std::optional<double> exposed_ms;
  for (const RingStepRecord& step : phase.ring) {
    compute_ms = compute_ms.value_or(0.0) + step.compute_ms;
    hidden_ms = hidden_ms.value_or(0.0) + step.hidden_ms;
    exposed_ms = exposed_ms.value_or(0.0) + step.exposed_ms;
  }
  table.cell("ring_compute_ms", compute_ms);
  table.cell("ring_hidden_ms", hidden_ms);
  table.cell("ring_exposed_ms", exposed_ms);
}

// Means over the layers with experts, and the worst balance; empty fields without experts.
void add_experts(CsvTable& table, const PhaseRecord& phase) {
  std::optional<double> touched;
  std::optional<double> touched_uniform;
  std::optional<double> worst_balance;
  if (phase.experts) {
    const auto n_layers = static_cast<double>(phase.experts->per_layer.size());
    for (const ExpertLayerRecord& layer : phase.experts->per_layer) {
      touched = touched.value_or(0.0) + layer.touched / n_layers;
      touched_uniform = touched_uniform.value_or(0.0) + layer.touched_uniform / n_layers;
      worst_balance = std::min(worst_balance.value_or(layer.balance), layer.balance);
    }
  }
  table.cell("experts_touched", touched);
  table.cell("experts_touched_uniform", touched_uniform);
  table.cell("experts_worst_balance", worst_balance);
}

void add_device(CsvTable& table, const DevicePhaseRecord& d) {
  table.cell("rank", d.rank);
  table.cell("tp", d.tp);
  table.cell("pp", d.pp);
  table.cell("cp", d.cp);
  table.cell("dp", d.dp);
  table.cell("host", d.host);
  table.cell("steps", d.steps);
  table.cell("weight_bytes", d.weight_bytes);
  table.cell("kv_bytes", d.kv_bytes);
  table.cell("kv_write_bytes", d.kv_write_bytes);
  table.cell("flops", d.flops);
  table.cell("step_ms", d.step_ms);
  table.cell("weights_ms", d.weights_ms);
  table.cell("kv_ms", d.kv_ms);
  table.cell("compute_ms", d.compute_ms);
  table.cell("wire_ms", d.wire_ms);
  table.cell("wait_ms", d.wait_ms);
  table.cell("bubble_ms", d.bubble_ms);
  table.cell("overhead_ms", d.overhead_ms);
}

}  // namespace

std::string to_csv(const RunRecord& record) {
  CsvTable table;
  for (const PhaseRecord& phase : record.phases) {
    for (const DevicePhaseRecord& device : phase.per_device) {
      add_run(table, record);
      add_phase(table, phase);
      add_device(table, device);
      add_ring(table, phase);
      add_experts(table, phase);
      table.end_line();
    }
  }
  return table.text();
}

}  // namespace testbed
