// The part of the table that is about one phase.
#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/report/table.hpp"
#include "runtime/report/table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed::table {

namespace {

void add_share(Lines& out, const char* name, double share) {
  std::string bar;
  for (long i = std::lround(share * 50.0); i > 0; --i) bar += "\xE2\x96\x88";  // full block
  out.add("    {:<12} {:>5.1f} % {}", name, share * 100.0, bar);
}

void add_shares(Lines& out, const PhaseRecord& phase) {
  const Shares& s = phase.shares;
  add_share(out, "weights", s.weights);
  add_share(out, "kv", s.kv);
  add_share(out, "compute", s.compute);
  add_share(out, "interconnect", s.interconnect);
  add_share(out, "wait", s.wait);
  add_share(out, "bubble", s.bubble);
  add_share(out, "overhead", s.overhead);
}

// The same bytes as printed, and each part within 2 % of the step: one line stands for both.
bool alike(const DevicePhaseRecord& a, const DevicePhaseRecord& b) {
  const double limit_ms = 0.02 * std::max(a.step_ms, b.step_ms);
  const auto near = [&](double x, double y) { return std::abs(x - y) <= limit_ms; };
  return a.pp == b.pp && human_bytes(a.weight_bytes) == human_bytes(b.weight_bytes) &&
         human_bytes(a.kv_bytes) == human_bytes(b.kv_bytes) &&
         near(a.weights_ms + a.kv_ms, b.weights_ms + b.kv_ms) && near(a.compute_ms, b.compute_ms) &&
         near(a.wire_ms, b.wire_ms) && near(a.wait_ms, b.wait_ms) &&
         near(a.bubble_ms, b.bubble_ms) && near(a.overhead_ms, b.overhead_ms);
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text +=
        end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text.size() <= 14 ? text : text.substr(0, 11) + "...";
}

struct DeviceLine {
  const DevicePhaseRecord* device = nullptr;  // the first of them: its figures are printed
  std::vector<int> ranks;
};

std::vector<DeviceLine> device_lines(const PhaseRecord& phase) {
  std::vector<DeviceLine> lines;
  for (const DevicePhaseRecord& device : phase.per_device) {
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const DeviceLine& line) {
      return alike(*line.device, device);
    });
    DeviceLine& line = same == lines.end() ? lines.emplace_back() : *same;
    if (line.device == nullptr) line.device = &device;
    line.ranks.push_back(device.rank);
  }
  return lines;
}

void add_devices(Lines& out, const PhaseRecord& phase) {
  out.add("    {:<14} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
          "rank, per step",
          "weights",
          "KV",
          "mem ms",
          "compute",
          "wire",
          "wait",
          "bubble",
          "overhead");
  const std::vector<DeviceLine> lines = device_lines(phase);
  for (size_t i = 0; i < std::min(lines.size(), max_device_lines); ++i) {
    const DevicePhaseRecord& d = *lines[i].device;
    out.add("    {:<14} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            rank_list(lines[i].ranks),
            human_bytes(d.weight_bytes),
            human_bytes(d.kv_bytes),
            number(d.weights_ms + d.kv_ms),
            number(d.compute_ms),
            number(d.wire_ms),
            number(d.wait_ms),
            number(d.bubble_ms),
            number(d.overhead_ms));
  }
  if (lines.size() > max_device_lines) {
    out.add("    ... and {} more kinds of device (all are in the JSON)",
            lines.size() - max_device_lines);
  }
}

// The figures of a layer, as a range where layers differ.
template <typename Figure>
std::string byte_range(const std::vector<LayerRecord>& layers, Figure&& figure) {
  int64_t low = INT64_MAX;
  int64_t high = 0;
  for (const LayerRecord& layer : layers) {
    low = std::min(low, figure(layer));
    high = std::max(high, figure(layer));
  }
  return low == high ? human_bytes(low)
                     : fmt::format("{} to {}", human_bytes(low), human_bytes(high));
}

// What the layers exchange: all-reduces, or what stands in their place (--tp-comm).
std::string exchange_per_layer(const std::vector<LayerRecord>& layers) {
  const auto occurs = [&](int64_t LayerRecord::*bytes) {
    return std::any_of(
        layers.begin(), layers.end(), [&](const LayerRecord& layer) { return layer.*bytes > 0; });
  };
  const auto range = [&](int64_t LayerRecord::*bytes) {
    return byte_range(layers, [&](const LayerRecord& layer) { return layer.*bytes; });
  };
  std::vector<std::string> parts;
  if (occurs(&LayerRecord::all_reduce_payload_bytes)) {
    parts.push_back(fmt::format("all-reduce per layer: payload {}, {} sent per device",
                                range(&LayerRecord::all_reduce_payload_bytes),
                                range(&LayerRecord::all_reduce_wire_bytes)));
  }
  if (occurs(&LayerRecord::reduce_scatter_payload_bytes)) {
    parts.push_back(fmt::format("reduce-scatter per layer: payload {}, all-gather {}",
                                range(&LayerRecord::reduce_scatter_payload_bytes),
                                range(&LayerRecord::all_gather_payload_bytes)));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

void add_layers(Lines& out, const PhaseRecord& phase) {
  const std::string exchange = exchange_per_layer(phase.layers);
  if (exchange.empty()) return;
  double wait_ms = 0.0;
  double wire_ms = 0.0;
  for (const LayerRecord& layer : phase.layers) {
    wait_ms += layer.wait_ms;
    wire_ms += layer.wire_ms;
  }
  const auto n_layers = static_cast<double>(phase.layers.size());
  out.wrapped(fmt::format("    {}; wait {} us, wire {} us a step (mean of {} layers)",
                          exchange,
                          number(wait_ms / n_layers * 1e3),
                          number(wire_ms / n_layers * 1e3),
                          phase.layers.size()),
              "      ");
}

void add_latest(Lines& out, const CollectiveRecord& collective) {
  if (collective.latest.empty()) return;
  const LateRank& late = collective.latest.front();
  // Someone is always last: it is worth a line when the others lost more than the transfer took.
  const double transfer_us = collective.wire_us.median * static_cast<double>(collective.calls);
  if (late.total_us <= transfer_us) return;
  out.add("      late: rank {} came last {} times, {} us (median) after the one before",
          late.rank,
          late.count,
          number(late.median_us));
}

void add_collectives(Lines& out, const PhaseRecord& phase) {
  if (phase.collectives.empty()) return;
  out.add("    {:<27} {:>6} {:>9} {:>9} {:>9} {:>9}  {}",
          "collective",
          "a step",
          "payload",
          "wait us",
          "wire us",
          "bus GB/s",
          "how");
  for (const CollectiveRecord& c : phase.collectives) {
    out.add("    {:<27} {:>6} {:>9} {:>9} {:>9} {:>9}  {}",
            fmt::format("{} {} {}", c.op, c.axis, c.site),
            fmt::format("{:.4g}", c.per_step),
            fmt::format("{}{}", c.uniform ? "" : "~", human_bytes(c.payload_bytes)),
            number(c.wait_us),
            number(c.wire_us.median),
            number(c.busbw_gb_s),
            fmt::format("{} {}", c.algorithm, printable(c.transport)));
    add_latest(out, c);
  }
}

std::string layer_range(const std::vector<int>& layers) {
  if (layers.empty()) return "none";
  const bool contiguous = layers.back() - layers.front() + 1 == static_cast<int>(layers.size());
  if (contiguous && layers.size() > 1) {
    return fmt::format("{}-{}", layers.front(), layers.back());
  }
  return layers.size() == 1
             ? fmt::format("{}", layers.front())
             : fmt::format("{} of {}-{}", layers.size(), layers.front(), layers.back());
}

void add_pipeline(Lines& out, const PhaseRecord& phase) {
  if (!phase.pipeline) return;
  const PipelineRecord& p = *phase.pipeline;
  out.add(
      "    bubble {} measured, {} by the formula for equal stages{} ({}, {} microbatch{} in {})",
      percent(p.bubble_measured),
      percent(p.bubble_formula),
      p.bubble_from_stages ? fmt::format(", {} for these", percent(p.bubble_from_stages)) : "",
      p.flushed ? "flushed" : "not flushed",
      p.effective_microbatches,
      p.effective_microbatches == 1 ? "" : "es",
      p.stages.size());
  for (const StageRecord& s : p.stages) {
    out.add("      stage {:<3} layers {:<12} busy {:>8} ms, transfer {:>8} ms, idle {:>8} ms",
            s.stage,
            layer_range(s.layers),
            number(s.busy_ms),
            number(s.transfer_ms),
            number(s.idle_ms));
  }
}

}  // namespace

void add_phase(Lines& out, const PhaseRecord& phase) {
  std::string name(phase_name(phase.phase));
  for (char& c : name) c = static_cast<char>(c - 'a' + 'A');
  out.add("");
  out.wrapped(fmt::format("{}: {} step{} of {} ms, bound by {}; MFU {}, MBU {}{}",
                          name,
                          phase.steps,
                          phase.steps == 1 ? "" : "s",
                          phase.step_ms.empty() ? "n/a" : number(phase.step_ms.median()),
                          phase.bound_by,
                          percent(phase.mfu),
                          percent(phase.mbu),
                          phase.cache_resident ? " (cache-resident)" : ""),
              "  ");
  if (phase.predicted) {
    const double measured = phase.step_ms.empty() ? 0.0 : phase.step_ms.median();
    out.add("  predicted on {}: {} ms, {:.2f} of the measurement",
            printable(phase.predicted->cluster),
            number(phase.predicted->step_ms),
            measured > 0.0 ? phase.predicted->step_ms / measured : 0.0);
  }
  if (phase.roofline) {
    std::string text =
        fmt::format("    {} FLOP/byte against a ridge of {} ({} side of the roofline)",
                    number(phase.roofline->intensity_flop_per_byte),
                    number(phase.roofline->ridge_flop_per_byte),
                    phase.roofline->regime);
    if (phase.instrument_overhead) text += "; events cost " + percent(phase.instrument_overhead);
    out.wrapped(text, "      ");
  }
  add_shares(out, phase);
  add_devices(out, phase);
  add_layers(out, phase);
  add_collectives(out, phase);
  add_pipeline(out, phase);
  add_ring(out, phase);
  add_experts(out, phase);
}

}  // namespace testbed::table
