#include "runtime/report/table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/measure/analysis.hpp"
#include "runtime/report/table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed {

namespace {

using table::Lines;
using table::number;

void add_heading(Lines& out, const RunRecord& record) {
  const RunDescription& run = record.run;
  const ParallelRecord& p = run.parallel;
  std::string split = fmt::format("tp {} x pp {} x dp {}", p.tp, p.pp, p.dp);
  if (p.cp > 1) split += fmt::format(" x cp {} ({})", p.cp, p.cp_placement);
  if (p.ep > 1) split += fmt::format(", experts over {} ({})", p.ep, p.expert_exchange);
  if (p.tp > 1 && p.tp_comm != "all-reduce") split += fmt::format(", {} over tp", p.tp_comm);
  out.wrapped(fmt::format("{}{}, {} layers, {} weights, {} compute",
                          run.simulated ? "SIMULATED: " : "",
                          printable(run.model),
                          run.layers,
                          printable(run.weight_dtype),
                          printable(run.compute_dtype)),
              "  ");
  out.wrapped(fmt::format("{} {} device{}: {}, {} microbatch{}",
                          record.world_size,
                          printable(run.device),
                          record.world_size == 1 ? "" : "s",
                          split,
                          p.microbatches,
                          p.microbatches == 1 ? "" : "es"),
              "  ");
  for (const std::string& label : run.labels) out.wrapped("! " + printable(label), "  ");
}

void add_checks(Lines& out, const ChecksRecord& checks) {
  const auto& one = checks.against_one_rank;
  std::string line = fmt::format("check {}:", printable(one.mode));
  if (one.mode == "off") {
    line += " not compared with one rank";
  } else {
    line += fmt::format(" {} values of {} layer{}, tp {} x pp {}{}, against one rank",
                        one.compared,
                        one.layers,
                        one.layers == 1 ? "" : "s",
                        one.tp,
                        one.pp,
                        one.virtual_stages > 1 ? fmt::format(" x {}", one.virtual_stages) : "");
    if (one.cp > 1) line.insert(line.find(", against"), fmt::format(" x cp {}", one.cp));
    if (one.ep > 1) line.insert(line.find(", against"), fmt::format(", experts over {}", one.ep));
    if (!one.compute_dtype.empty()) line += fmt::format(" in {}", one.compute_dtype);
    if (one.max_abs_diff) line += fmt::format(": largest difference {:.2g}", *one.max_abs_diff);
    if (one.tolerance) line += fmt::format(" of {:.2g} that rounding explains", *one.tolerance);
    if (one.first_difference) line += ", DIFFERS FIRST at " + printable(*one.first_difference);
  }
  if (checks.replicas_bitwise_equal) {
    line += *checks.replicas_bitwise_equal ? "; replicas bit-identical" : "; REPLICAS DIFFER";
  }
  out.wrapped(line, "  ");
}

void add_headline(Lines& out, const char* name, const Repeated& figure, const char* unit) {
  if (figure.empty()) {
    out.add("  {:<8} {:>9}", name, "n/a");
    return;
  }
  out.add("  {:<8} {:>9} {:<9} {} to {} over {} repeat{}",
          name,
          number(figure.median()),
          unit,
          number(figure.min()),
          number(figure.max()),
          figure.repeats.size(),
          figure.repeats.size() == 1 ? "" : "s");
}

void add_timing(Lines& out, const TimingRecord& timing) {
  add_headline(out, "TTFT", timing.ttft_ms, "ms");
  add_headline(out, "TPOT", timing.tpot_ms, "ms");
  add_headline(out, "prefill", timing.prefill_tokens_per_s, "tokens/s");
  add_headline(out, "decode", timing.decode_tokens_per_s, "tokens/s");
  if (!timing.step_ms) return;
  out.add("  {:<8} {:>9} ms        p90 {}, p99 {}, max {} of {} {} steps",
          "step",
          number(timing.step_ms->median),
          number(timing.step_ms->p90),
          number(timing.step_ms->p99),
          number(timing.step_ms->max),
          timing.step_ms->n,
          timing.step_phase);
}

void add_memory(Lines& out, const RunRecord& record) {
  if (record.run.memory.empty()) return;
  const auto& fullest = *std::max_element(
      record.run.memory.begin(), record.run.memory.end(), [](const auto& a, const auto& b) {
        return a.weights_bytes + a.kv_pool_bytes < b.weights_bytes + b.kv_pool_bytes;
      });
  out.add("");
  out.wrapped(fmt::format("memory of rank {} (the fullest): weights {}, KV pool {} ({} used, {} of "
                          "it wasted), workspace {}",
                          fullest.rank,
                          human_bytes(fullest.weights_bytes),
                          human_bytes(fullest.kv_pool_bytes),
                          human_bytes(fullest.kv_used_bytes),
                          human_bytes(fullest.kv_waste_bytes),
                          human_bytes(fullest.workspace_bytes)),
              "  ");
}

bool alike(const PeakRecord& a, const PeakRecord& b) {
  return a.read_bytes_per_s.repeats == b.read_bytes_per_s.repeats && a.peak_flops == b.peak_flops &&
         a.llc_bytes == b.llc_bytes;
}

void add_peaks(Lines& out, const RunRecord& record) {
  for (size_t i = 0; i < record.peaks.size(); ++i) {
    const PeakRecord& peak = record.peaks[i];
    size_t last = i;  // devices of a simulated cluster are alike
    while (last + 1 < record.peaks.size() && alike(peak, record.peaks[last + 1])) ++last;
    std::string name = printable(peak.memory_domain);
    if (last > i) name += fmt::format(" to {}, each", printable(record.peaks[last].memory_domain));
    i = last;
    const Repeated& reads = peak.read_bytes_per_s;
    std::string text = fmt::format("peaks of {}: {} {} GB/s",
                                   name,
                                   record.run.simulated ? "memory" : "read loop",
                                   number(reads.median() * 1e-9));
    if (reads.max() > reads.min()) {
      text += fmt::format(" ({} to {})", number(reads.min() * 1e-9), number(reads.max() * 1e-9));
    }
    text += fmt::format(", {} GFLOP/s", number(peak.peak_flops * 1e-9));
    if (peak.llc_bytes > 0) text += ", last-level cache " + human_bytes(peak.llc_bytes);
    out.wrapped(text, "  ");
  }
}

// How real ranks of a tp group sum, and from where on otherwise: measured as the run started.
void add_all_reduces(Lines& out, const FingerprintRecord& fingerprint) {
  const auto found = fingerprint.environment.find("all-reduces");
  if (found == fingerprint.environment.end()) return;
  out.wrapped("all-reduces " + printable(found->second), "  ");
}

}  // namespace

std::string to_table(const RunRecord& record) {
  Lines out;
  add_heading(out, record);
  add_checks(out, record.run.checks);
  out.add("");
  add_timing(out, record.timing);
  for (const PhaseRecord& phase : record.phases) table::add_phase(out, phase);
  add_memory(out, record);
  add_peaks(out, record);
  add_all_reduces(out, record.run.fingerprint);
  table::add_counters(out, record);
  out.add("");
  out.wrapped(wall_sentence(record), "  ");
  return out.take();
}

}  // namespace testbed
