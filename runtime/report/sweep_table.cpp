#include <fmt/format.h>

#include <algorithm>

#include "runtime/report/sweep_parts.hpp"
#include "runtime/report/sweep_report.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace {

using table::Block;
using table::Lines;

std::vector<Block> blocks_of(const Sweep& sweep) {
  std::vector<Block> blocks;
  for (const SweepResult& result : sweep.results) {
    const auto mine = std::find_if(blocks.begin(), blocks.end(), [&](const Block& block) {
      return block.front()->point.same_workload(result.point);
    });
    (mine == blocks.end() ? blocks.emplace_back() : *mine).push_back(&result);
  }
  return blocks;
}

void add_remarks(Lines& out, const Block& block) {
  for (const SweepResult* result : block)
    if (result->refused)
      out.wrapped(
          fmt::format(
              "  - {} does not run: {}", split_name(result->point), printable(*result->refused)),
          "    ");
  for (const SweepResult* result : block)
    for (const std::string& warning : result->warnings)
      out.wrapped(fmt::format("  ! {}: {}", split_name(result->point), printable(warning)), "    ");
}

void add_block(Lines& out, const Sweep& sweep, const Block& block) {
  const SweepPoint& first = block.front()->point;
  out.add("");
  const auto description = sweep.descriptions.find(first.cluster);
  out.wrapped(
      fmt::format("{}{}; {}",
                  printable(first.cluster),
                  description == sweep.descriptions.end() ? std::string()
                                                          : ": " + printable(description->second),
                  table::workload_name(first)),
      "  ");
  add_remarks(out, block);
  for (const Phase phase : {Phase::prefill, Phase::decode, Phase::mixed})
    table::add_phase_block(out, block, phase);
}

void add_heading(Lines& out, const Sweep& sweep) {
  const auto ran =
      std::count_if(sweep.results.begin(), sweep.results.end(), [](const SweepResult& result) {
        return result.record.has_value();
      });
  const RunConfig& base = sweep.config.base;
  out.wrapped(fmt::format("SIMULATED: {}, {} layers, {} weights, {} compute",
                          printable(sweep.model),
                          sweep.n_layers,
                          base.weight_format ? format_name(*base.weight_format) : "stored",
                          dtype_name(base.compute_dtype)),
              "  ");
  out.add("{} of {} points run; {} generated tokens a request",
          ran,
          sweep.results.size(),
          base.workload.gen_tokens);
}

}  // namespace

std::string sweep_table(const Sweep& sweep) {
  Lines out;
  add_heading(out, sweep);
  for (const Block& block : blocks_of(sweep)) add_block(out, sweep, block);
  if (!sweep.crossovers.empty()) table::add_crossovers(out, sweep);
  if (!sweep.best.empty()) table::add_best(out, sweep);
  return out.take();
}

}  // namespace testbed
