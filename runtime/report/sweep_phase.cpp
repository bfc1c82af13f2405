// One phase of a sweep's points: the split of their steps as figures and as bars, and the what-ifs.
#include <algorithm>

#include "runtime/report/sweep_chart.hpp"
#include "runtime/report/sweep_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed::table {
namespace {

SplitColumns columns_of(const Block& block) {
  SplitColumns columns;
  for (const SweepResult* result : block)
    if (result->record) columns.see(result->point);
  return columns;
}

std::string share(double value) { return fmt::format("{:.0f}%", value * 100.0); }

// What a user waits for: to the first token, or from token to token.
const Repeated& latency(const SweepResult& result, Phase phase) {
  const TimingRecord& timing = result.record->timing;
  return phase == Phase::prefill ? timing.ttft_ms : timing.tpot_ms;
}

void add_split_line(Lines& out,
                    const SplitColumns& columns,
                    const SweepResult& result,
                    const PhaseRecord& phase) {
  const Repeated& wait = latency(result, phase.phase);
  const Shares& s = phase.shares;
  out.add("{} {:>9} {:>9} {:>10} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4}  {}",
          columns.of(result.point),
          wait.empty() ? "n/a" : number(wait.median()),
          number(phase.step_ms.median()),
          number(result.tokens_per_s_per_device(phase.phase)),
          share(s.weights),
          share(s.kv),
          share(s.interconnect),
          share(s.compute),
          share(s.wait),
          share(s.bubble),
          share(s.overhead),
          phase.bound_by);
}

void add_split_table(Lines& out, const Block& block, Phase which) {
  const SplitColumns columns = columns_of(block);
  out.add("{} {:>9} {:>9} {:>10} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4}  {}",
          columns.heading(),
          which == Phase::prefill ? "TTFT ms" : "TPOT ms",
          "step ms",
          "tok/s/GPU",
          "wgts",
          "KV",
          "link",
          "comp",
          "wait",
          "bubl",
          "ovhd",
          "bound by");
  for (const SweepResult* result : block)
    if (const PhaseRecord* phase = result->phase(which))
      add_split_line(out, columns, *result, *phase);
}

// The longest step of the block fills the width.
void add_chart(Lines& out, const Block& block, Phase which) {
  constexpr double most_columns = 64.0;
  double longest_ms = 0.0;
  for (const SweepResult* result : block)
    if (const PhaseRecord* phase = result->phase(which))
      longest_ms = std::max(longest_ms, phase->step_ms.median());
  if (longest_ms <= 0.0) return;
  const SplitColumns columns = columns_of(block);
  out.add("");
  out.add("  {}", bar_legend);
  for (const SweepResult* result : block) {
    const PhaseRecord* phase = result->phase(which);
    if (phase == nullptr) continue;
    const double step_ms = phase->step_ms.median();
    out.add("{} {} {} ms",
            columns.of(result->point),
            step_bar(phase->shares, most_columns * step_ms / longest_ms),
            number(step_ms));
  }
}

std::string factor(const std::optional<double>& speedup) {
  return speedup ? fmt::format("{:.2f} \u00d7", *speedup) : "n/a";
}

void add_what_if_line(Lines& out,
                      const SplitColumns& columns,
                      const SweepResult& result,
                      const PhaseRecord& phase) {
  const CollectiveRecord* all_reduce = costliest_all_reduce(phase);
  out.add("{}  {:<13} {:>9} {:>7} {:>11} {:>11} {:>11} {:>11}",
          columns.of(result.point),
          all_reduce != nullptr ? printable(all_reduce->algorithm) : "-",
          all_reduce != nullptr ? number(all_reduce->wire_us.median) : "-",
          all_reduce != nullptr ? fmt::format("{:.4g}", all_reduces_per_step(phase)) : "-",
          factor(result.speedup(phase.phase, WhatIf::free_links)),
          factor(result.speedup(phase.phase, WhatIf::zero_latency)),
          factor(result.speedup(phase.phase, WhatIf::infinite_memory)),
          factor(result.speedup(phase.phase, WhatIf::no_waiting)));
}

// What each change of the machine would make of the step, beside the all-reduce it would change.
void add_what_if_table(Lines& out, const Block& block, Phase which) {
  if (std::all_of(
          block.begin(), block.end(), [](const auto* r) { return r->what_if_steps.empty(); }))
    return;
  const SplitColumns columns = columns_of(block);
  out.add("");
  out.add("{}  {:<13} {:>9} {:>7} {:>11} {:>11} {:>11} {:>11}",
          columns.heading(),
          "tp all-reduce",
          "us",
          "a step",
          "links free",
          "no latency",
          "memory free",
          "no waiting");
  for (const SweepResult* result : block)
    if (const PhaseRecord* phase = result->phase(which))
      add_what_if_line(out, columns, *result, *phase);
}

}  // namespace

std::string workload_name(const SweepPoint& p) {
  return fmt::format("batch {}, context {}, prompt {}", p.batch, p.context, p.prompt_tokens);
}

void add_phase_block(Lines& out, const Block& block, Phase phase) {
  if (std::none_of(block.begin(), block.end(), [&](const auto* r) { return r->phase(phase); }))
    return;
  out.add("");
  out.add("  {}", phase_name(phase));
  add_split_table(out, block, phase);
  add_chart(out, block, phase);
  add_what_if_table(out, block, phase);
}

}  // namespace testbed::table
