// The plan's table: the roofline of a step's ops and what the step sends.
#include "runtime/report/plan_table_parts.hpp"
#include "runtime/report/table.hpp"
#include "runtime/report/text.hpp"

namespace testbed::table {
namespace {

void add_op(Lines& out, const plan::OpRoofline& line) {
  out.add("    {:<14} {:>5} {:>12} {:>9} {:>9} {:>7} {:<8} {:>9}",
          line.op.name,
          line.op.calls,
          human_flops(static_cast<double>(line.op.cost.flops)),
          human_bytes(line.op.cost.memory_bytes()),
          number(line.intensity),
          number(line.ridge),
          line.memory_bound() ? "memory" : "compute",
          milliseconds(line.seconds));
}

void add_links(Lines& out, const plan::StepLinks& links, double step_seconds) {
  if (links.all_reduces > 0) {
    out.wrapped(
        fmt::format(
            "    {} all-reduces{}, {} a layer, {} in all: a device sends {} (ring), {} ms at "
            "{}'s {} GB/s without latency, {} of the time above",
            links.all_reduces,
            links.all_gathers > 0 ? fmt::format(" and {} all-gathers", links.all_gathers) : "",
            human_bytes(links.all_reduce_bytes_per_layer),
            human_bytes(links.all_reduce_bytes),
            human_bytes(links.wire_bytes),
            milliseconds(links.seconds),
            printable(links.link),
            number(links.bytes_per_s * 1e-9),
            percent(links.seconds / step_seconds)),
        "      ");
  }
  if (links.crosses_nodes) out.add("    ! tp crosses nodes: its all-reduces go over the fabric");
  if (links.pipeline_bytes > 0) {
    out.add("    between pipeline stages: {} a device", human_bytes(links.pipeline_bytes));
  }
}

}  // namespace

void add_step(Lines& out, const char* name, const plan::StepPlanned& step) {
  const plan::StepRoofline& r = step.roofline;
  out.add("");
  out.wrapped(fmt::format("{} step of {} x {} tokens on one device of each stage, every op at its "
                          "roof: {} ms, {} tokens/s, {} of it memory-bound",
                          name,
                          r.shape.batch,
                          r.shape.n_new,
                          milliseconds(r.seconds),
                          number(static_cast<double>(r.shape.n_tokens()) / r.seconds),
                          percent(r.memory_seconds / r.seconds)),
              "  ");
  out.add("    {:<14} {:>5} {:>12} {:>9} {:>9} {:>7} {:<8} {:>9}",
          "op",
          "calls",
          "FLOPs",
          "bytes",
          "FLOP/byte",
          "ridge",
          "bound by",
          "ms");
  for (const plan::OpRoofline& op : r.ops) add_op(out, op);
  out.add("    {:<14} {:>5} {:>12} {:>9} {:>9} {:>7} {:<8} {:>9}",
          "all",
          "",
          human_flops(static_cast<double>(r.cost.flops)),
          human_bytes(r.cost.memory_bytes()),
          number(r.intensity),
          "",
          "",
          milliseconds(r.seconds));
  if (step.links) add_links(out, *step.links, r.seconds);
}

}  // namespace testbed::table
