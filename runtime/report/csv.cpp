#include "runtime/report/csv.hpp"

#include <fmt/format.h>

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
}

void add_phase(CsvTable& table, const PhaseRecord& phase) {
  table.cell("phase", phase_name(phase.phase));
  table.cell("bound_by", phase.bound_by);
  table.cell("timed_step_ms",
             phase.step_ms.empty() ? std::optional<double>() : phase.step_ms.median());
  table.cell("mfu", phase.mfu);
  table.cell("mbu", phase.mbu);
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
      table.end_line();
    }
  }
  return table.text();
}

}  // namespace testbed
