// What a sweep's points say together: the crossovers, and the best splits.
#include "runtime/report/sweep_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed::table {
namespace {

// "from tp 8 (latency)", "none up to tp 8"; "at": some higher degree is below again.
std::string verdict(const Crossover& c) {
  if (!c.tp) return fmt::format("none up to tp {}", c.highest_tp);
  std::string text = c.may_be_lower    ? fmt::format("tp {} or below", *c.tp)
                     : c.from_there_on ? fmt::format("from tp {}", *c.tp)
                                       : fmt::format("at tp {}", *c.tp);
  if (c.cause) text += fmt::format(" ({})", cause_name(*c.cause));
  return text;
}

std::string reason(const Crossover& c) {
  SweepPoint at = c.series;
  at.tp = *c.tp;
  std::string text = fmt::format("{}, {}, {}: at {} links take {} ms a step and weights + KV {} ms",
                                 printable(c.series.cluster),
                                 workload_name(c.series),
                                 phase_name(c.phase),
                                 split_name(at),
                                 number(c.now.interconnect_ms),
                                 number(c.now.memory_ms));
  if (c.without_latency)
    text += fmt::format("; with zero latency {} and {} ms, so {} is the cause",
                        number(c.without_latency->interconnect_ms),
                        number(c.without_latency->memory_ms),
                        cause_name(*c.cause));
  if (!c.from_there_on) text += "; a higher tp of the sweep is below the crossing again";
  return text;
}

void add_front(Lines& out, const Sweep& sweep, const BestSplit& split) {
  SplitColumns columns;
  for (const Offer& offer : split.pareto) columns.see(sweep.results[offer.result].point);
  out.add("  Pareto front: no split has both a lower TPOT and more decode tokens/s per GPU");
  out.add("{} {:>10} {:>12}", columns.heading(), "TPOT ms", "tok/s/GPU");
  for (const Offer& offer : split.pareto)
    out.add("{} {:>10} {:>12}  {}",
            columns.of(sweep.results[offer.result].point),
            number(offer.tpot_ms),
            number(offer.tokens_per_s_per_device),
            offer.result == split.best.result ? "best" : "");
}

}  // namespace

namespace {

// Cluster, pp and dp of a series, and if any has them above 1 cp and ep.
template <typename Cell>
std::string series_columns(bool all_axes,
                           std::string_view cluster,
                           const Cell& pp,
                           const Cell& cp,
                           const Cell& dp,
                           const Cell& ep) {
  return all_axes ? fmt::format("  {:<13} {:>2} {:>2} {:>3} {:>3}", cluster, pp, cp, dp, ep)
                  : fmt::format("  {:<18} {:>3} {:>4}", cluster, pp, dp);
}

}  // namespace

void add_crossovers(Lines& out, const Sweep& sweep) {
  SplitColumns columns;
  for (const Crossover& c : sweep.crossovers) columns.see(c.series);
  const bool all_axes = columns.all_axes();
  out.add("");
  out.add(
      "Crossover: from which tp the links take longer than weights + KV, and than compute, too");
  out.add("{} {:>6} {:>8} {:>7}  {:<8} {:<26} {}",
          series_columns(all_axes, "cluster", "pp", "cp", "dp", "ep"),
          "batch",
          "context",
          "prompt",
          "phase",
          "weights + KV",
          "+ compute");
  for (const Crossover& c : sweep.crossovers)
    out.add("{} {:>6} {:>8} {:>7}  {:<8} {:<26} {}",
            series_columns(all_axes,
                           printable(c.series.cluster),
                           c.series.pp,
                           c.series.cp,
                           c.series.dp,
                           c.series.ep),
            c.series.batch,
            c.series.context,
            c.series.prompt_tokens,
            phase_name(c.phase),
            verdict(c),
            c.tp_over_work ? fmt::format("tp {}", *c.tp_over_work) : "none");
  for (const Crossover& c : sweep.crossovers)
    if (c.tp) out.wrapped("  " + reason(c), "    ");
}

void add_best(Lines& out, const Sweep& sweep) {
  const char* objective =
      sweep.config.best == SweepConfig::Best::tpot ? "lowest TPOT" : "most tokens per GPU";
  for (const BestSplit& split : sweep.best) {
    const SweepPoint& best = sweep.results[split.best.result].point;
    out.add("");
    out.wrapped(fmt::format("Best of {}, {}: {} ({})",
                            printable(best.cluster),
                            workload_name(best),
                            split_name(best),
                            objective),
                "  ");
    add_front(out, sweep, split);
  }
}

}  // namespace testbed::table
