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
  std::string text =
      fmt::format("{}, {}, {}: at tp {} links take {} ms a step and weights + KV {} ms",
                  printable(c.series.cluster),
                  workload_name(c.series),
                  phase_name(c.phase),
                  *c.tp,
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

void add_offer(Lines& out, const SweepPoint& p, const Offer& offer, const char* mark) {
  out.add("  {:>4} {:>3} {:>4} {:>10} {:>12}  {}",
          p.tp,
          p.pp,
          p.dp,
          number(offer.tpot_ms),
          number(offer.tokens_per_s_per_device),
          mark);
}

}  // namespace

void add_crossovers(Lines& out, const Sweep& sweep) {
  out.add("");
  out.add(
      "Crossover: from which tp the links take longer than weights + KV, and than compute, too");
  out.add("  {:<18} {:>3} {:>4} {:>6} {:>8} {:>7}  {:<8} {:<26} {}",
          "cluster",
          "pp",
          "dp",
          "batch",
          "context",
          "prompt",
          "phase",
          "weights + KV",
          "+ compute");
  for (const Crossover& c : sweep.crossovers)
    out.add("  {:<18} {:>3} {:>4} {:>6} {:>8} {:>7}  {:<8} {:<26} {}",
            printable(c.series.cluster),
            c.series.pp,
            c.series.dp,
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
    out.add("  Pareto front: no split has both a lower TPOT and more decode tokens/s per GPU");
    out.add("  {:>4} {:>3} {:>4} {:>10} {:>12}", "tp", "pp", "dp", "TPOT ms", "tok/s/GPU");
    for (const Offer& offer : split.pareto)
      add_offer(out,
                sweep.results[offer.result].point,
                offer,
                offer.result == split.best.result ? "best" : "");
  }
}

}  // namespace testbed::table
