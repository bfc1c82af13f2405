// The part of the table that is about ring attention and experts.
#include <algorithm>

#include "runtime/report/table.hpp"
#include "runtime/report/table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed::table {

namespace {

constexpr size_t max_ring_lines = 16;

const ExpertLayerRecord& least_balanced(const ExpertsRecord& experts) {
  return *std::min_element(experts.per_layer.begin(),
                           experts.per_layer.end(),
                           [](const auto& a, const auto& b) { return a.balance < b.balance; });
}

void add_balance(Lines& out, const ExpertsRecord& experts) {
  const ExpertLayerRecord& worst = least_balanced(experts);
  const auto busiest =
      std::max_element(worst.tokens_per_expert.begin(), worst.tokens_per_expert.end());
  out.wrapped(fmt::format("      least balanced: layer {}, mean / busiest {}: expert {} got {} "
                          "(token, expert) pairs a repeat",
                          worst.layer,
                          number(worst.balance),
                          busiest - worst.tokens_per_expert.begin(),
                          *busiest),
              "        ");
}

// Bytes to other ranks; what a rank keeps does not travel.
void add_exchange(Lines& out, const ExpertsRecord& experts) {
  if (experts.all_to_all_bytes.empty()) return;
  int64_t total = 0;
  int64_t most = 0;
  size_t busiest = 0;
  for (size_t source = 0; source < experts.all_to_all_bytes.size(); ++source) {
    int64_t sent = 0;
    for (size_t target = 0; target < experts.all_to_all_bytes[source].size(); ++target) {
      if (target != source) sent += experts.all_to_all_bytes[source][target];
    }
    total += sent;
    if (sent > most) {
      most = sent;
      busiest = source;
    }
  }
  out.wrapped(fmt::format("      dispatch and combine: {} between ranks a repeat, most from rank "
                          "{}: {} (matrix in the JSON)",
                          human_bytes(total),
                          busiest,
                          human_bytes(most)),
              "        ");
}

}  // namespace

void add_ring(Lines& out, const PhaseRecord& phase) {
  if (phase.ring.empty()) return;
  out.add("    {:<9} {:>11} {:>12} {:>10} {:>11} {:>9} {:>9}",
          "ring step",
          "compute ms",
          "transfer ms",
          "hidden",
          "exposed",
          "wait",
          "sent");
  bool is_bound = false;
  for (size_t i = 0; i < std::min(phase.ring.size(), max_ring_lines); ++i) {
    const RingStepRecord& s = phase.ring[i];
    const char* at_most = s.transfer_is_bound ? "<=" : "";
    is_bound = is_bound || s.transfer_is_bound;
    out.add("    {:<9} {:>11} {:>12} {:>10} {:>11} {:>9} {:>9}",
            s.step,
            number(s.compute_ms),
            at_most + number(s.transfer_ms),
            at_most + number(s.hidden_ms),
            number(s.exposed_ms),
            number(s.wait_ms),
            human_bytes(s.sent_bytes));
  }
  if (phase.ring.size() > max_ring_lines) {
    out.add("    ... and {} more (all are in the JSON)", phase.ring.size() - max_ring_lines);
  }
  if (is_bound) out.add("      <=: when messages arrived is not known, only that they had");
}

void add_experts(Lines& out, const PhaseRecord& phase) {
  if (!phase.experts || phase.experts->per_layer.empty()) return;
  const ExpertsRecord& experts = *phase.experts;
  const auto n_layers = static_cast<double>(experts.per_layer.size());
  double touched = 0.0;
  double touched_uniform = 0.0;
  double touched_bytes = 0.0;
  for (const ExpertLayerRecord& layer : experts.per_layer) {
    touched += layer.touched / n_layers;
    touched_uniform += layer.touched_uniform / n_layers;
    touched_bytes += static_cast<double>(layer.touched_bytes) / n_layers;
  }
  out.wrapped(fmt::format("    experts ({}): a pass touches {} of {}, {} if {} a token were drawn "
                          "evenly; devices read {} of them a pass (mean of {} layers)",
                          experts.exchange == "none" ? "no exchange" : printable(experts.exchange),
                          number(touched),
                          experts.n_experts,
                          number(touched_uniform),
                          experts.top_k,
                          human_bytes(static_cast<int64_t>(touched_bytes)),
                          experts.per_layer.size()),
              "      ");
  add_balance(out, experts);
  add_exchange(out, experts);
}

}  // namespace testbed::table
