#include "runtime/report/plan_table.hpp"

#include <cmath>
#include <iterator>

#include "runtime/report/plan_table_parts.hpp"
#include "runtime/report/table.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace table {

std::string human_flops(double flops) {
  if (flops == 0.0) return "0";
  constexpr const char* units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  size_t unit = 0;
  while (flops >= 999.5 && unit + 1 < std::size(units)) {
    flops /= 1000.0;
    ++unit;
  }
  return fmt::format("{} {}", number(flops), units[unit]);
}

std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return ms >= 0.01 || ms == 0.0 ? number(ms) : fmt::format("{:.5f}", ms);
}

std::string split_text(const plan::Split& split) {
  std::string text = fmt::format("tp {} x pp {}", split.tp, split.pp);
  if (split.cp > 1) text += fmt::format(" x cp {}", split.cp);
  if (split.dp > 1) text += fmt::format(" x dp {}", split.dp);
  if (split.ep > 1) text += fmt::format(", ep {}", split.ep);
  return text;
}

namespace {

void add_heading(Lines& out, const plan::PlanReport& report) {
  const plan::PlanInputs& in = report.inputs;
  const DeviceSpec& device = in.cluster.device;
  out.wrapped(fmt::format("plan: {}, {:.2f} G parameters, {} weights, {} compute and KV cache; "
                          "closed forms, nothing was run",
                          printable(in.model.name),
                          static_cast<double>(report.n_parameters) * 1e-9,
                          in.formats.weights.name,
                          dtype_name(in.formats.activation)),
              "  ");
  const MathType math = plan::math_on(device, in.formats.weights.math);
  out.wrapped(fmt::format("{} of {} devices of {}: {}, batch {}{}, context {}",
                          in.split.n_devices(),
                          in.cluster.n_devices(),
                          printable(in.cluster.name),
                          split_text(in.split),
                          in.batch,
                          in.split.dp > 1 ? " a replica" : "",
                          in.context),
              "  ");
  out.wrapped(fmt::format("{}: {}, {} TB/s, {}/s dense in {}, ridge {} FLOP/byte",
                          printable(device.description),
                          human_bytes(device.memory_bytes),
                          number(device.memory_bytes_per_s * 1e-12),
                          human_flops(device.peak_flops.at(math)),
                          math_name(math),
                          number(report.ridge)),
              "  ");
  for (const std::string& label : plan::labels_of(report)) {
    out.wrapped("! " + printable(label), "  ");
  }
}

void add_reads(Lines& out, const plan::PlanReport& report) {
  const plan::PlanInputs& in = report.inputs;
  const OpCost& cost = report.decode.all_devices;
  const char* table = in.model.tied_embeddings ? "is read once, as the head" : "is not read";
  out.add("");
  out.wrapped(
      fmt::format("a decode step reads {} of weights and {} of KV cache on all devices, {} "
                  "per token; the embedding table ({}) {}, but for the tokens' rows",
                  human_bytes(cost.weight_bytes),
                  human_bytes(cost.kv_bytes),
                  human_bytes((cost.weight_bytes + cost.kv_bytes) / (in.batch * in.split.dp)),
                  human_bytes(report.embedding_bytes),
                  table),
      "  ");
}

}  // namespace
}  // namespace table

std::string plan_table(const plan::PlanReport& report) {
  table::Lines out;
  table::add_heading(out, report);
  table::add_step(out, "decode", report.decode);
  table::add_step(out, "prefill", report.prefill);
  table::add_reads(out, report);
  table::add_fits(out, report);
  table::add_batch_limit(out, report);
  table::add_levers(out, report);
  table::add_training(out, report);
  table::add_bubbles(out, report);
  return out.take();
}

}  // namespace testbed
