#include "runtime/report/csv.hpp"

#include <fmt/format.h>

#include <cmath>

#include "runtime/report/text.hpp"

namespace testbed {

namespace {

std::string quoted(std::string_view text) {
  std::string clean = valid_utf8(text);
  if (clean.find_first_of(",\"\r\n") == std::string::npos) return clean;
  std::string out = "\"";
  for (const char c : clean) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string field(const std::string& text) { return quoted(text); }
std::string field(std::string_view text) { return quoted(text); }
std::string field(int64_t value) { return fmt::format("{}", value); }
std::string field(int value) { return fmt::format("{}", value); }
std::string field(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }
std::string field(const std::optional<double>& value) { return value ? field(*value) : ""; }

class Table {
 public:
  // Name and value side by side; the first line's names become the header.
  template <typename T>
  void cell(std::string_view name, const T& value) {
    if (first_) {
      if (!header_.empty()) header_ += ',';
      header_ += name;
    }
    if (in_line_) lines_ += ',';
    lines_ += field(value);
    in_line_ = true;
  }
  void end_line() {
    lines_ += "\r\n";
    in_line_ = false;
    first_ = false;
  }
  std::string text() const { return header_ + "\r\n" + lines_; }

 private:
  std::string header_;
  std::string lines_;
  bool first_ = true;
  bool in_line_ = false;
};

void add_run(Table& table, const RunRecord& record) {
  const ParallelRecord& p = record.run.parallel;
  table.cell("model", record.run.model);
  table.cell("device", record.run.device);
  table.cell("labels", fmt::format("{}", fmt::join(record.run.labels, "; ")));
  table.cell("layers", record.run.layers);
  table.cell("world_size", record.world_size);
  table.cell("tp_degree", p.tp);
  table.cell("pp_degree", p.pp);
  table.cell("cp_degree", p.cp);
  table.cell("dp_degree", p.dp);
}

void add_phase(Table& table, const PhaseRecord& phase) {
  table.cell("phase", phase_name(phase.phase));
  table.cell("bound_by", phase.bound_by);
  table.cell("timed_step_ms",
             phase.step_ms.empty() ? std::optional<double>() : phase.step_ms.median());
  table.cell("mfu", phase.mfu);
  table.cell("mbu", phase.mbu);
}

void add_device(Table& table, const DevicePhaseRecord& d) {
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
  Table table;
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
