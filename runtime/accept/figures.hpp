// The figures an acceptance knows, by name: their unit and which way is better. A profile that
// names another is refused.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace testbed {

struct FigureKind {
  std::string_view name;
  std::string_view unit;
  bool more_is_better;
};

inline constexpr FigureKind figure_kinds[] = {
    {"device.read_gb_s", "GB/s", true},  // reading weights, one device, the others reading too
    {"device.gemm_tflop_s", "TFLOP/s", true},  // by dtype
    {"link.one_way_us", "us", false},          // one message, the pair otherwise idle, by bytes
    {"link.one_way_gb_s", "GB/s", true},       // the same as a rate
    {"link.both_ways_gb_s", "GB/s", true},     // each way at once, sum of both
    {"collective.us", "us", false},            // by op, ranks, bytes
    {"collective.busbw_gb_s", "GB/s", true},   // by op, ranks, bytes; none for one rank (D35)
    {"model.ttft_ms", "ms", false},            // by model and split
    {"model.tpot_ms", "ms", false},
    {"model.goodput_per_s", "1/s", true},      // requests per second within both targets
    {"model.weight_read_gb_s", "GB/s", true},  // of one device while decoding
    {"model.exposed_comm_ms", "ms", false},    // of a decode step, one device
    {"model.exposed_fraction", "", false},     // of the all-reduces of decode steps, by injection
    {"soak.step_ms", "ms", false},             // a decode step, over the time of the soak
};

inline std::optional<FigureKind> figure_kind(std::string_view name) {
  for (const FigureKind& kind : figure_kinds) {
    if (kind.name == name) return kind;
  }
  return std::nullopt;
}

}  // namespace testbed
