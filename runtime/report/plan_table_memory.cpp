// The plan's table: what fits, the batch limit, levers, training, bubbles.
#include "runtime/report/plan_table_parts.hpp"
#include "runtime/report/table.hpp"

namespace testbed::table {
namespace {

std::string kilotokens(int64_t context) { return fmt::format("{}k", context / 1024); }

std::string signed_bytes(int64_t n_bytes) {
  return n_bytes < 0 ? "-" + human_bytes(-n_bytes) : human_bytes(n_bytes);
}

std::string batch_text(const std::optional<double>& batch) {
  return batch ? number(*batch) : "never";
}

std::string context_text(const std::optional<int64_t>& context) {
  return context ? fmt::format("{}", *context) : "any";
}

}  // namespace

namespace {

// Bytes of one conversation, and how many fit.
std::string kept_text(const plan::Fit& fit, size_t i) {
  return fmt::format("{} x {}", fit.users[i], human_bytes(fit.kv_bytes[i]));
}

}  // namespace

void add_fits(Lines& out, const plan::PlanReport& report) {
  out.add("");
  out.wrapped(fmt::format("what fits, by tp of {}: per device, and conversations at once by their "
                          "context, with the KV cache that one takes of a device",
                          split_text(report.inputs.split)),
              "  ");
  out.add("    {:>4} {:>10} {:>12} {:>10} {:>17} {:>17} {:>17}",
          "tp",
          "weights",
          "KV a token",
          "free",
          kilotokens(plan::user_contexts[0]),
          kilotokens(plan::user_contexts[1]),
          kilotokens(plan::user_contexts[2]));
  for (const plan::Fit& fit : report.fits) {
    out.add("   {}{:>4} {:>10} {:>12} {:>10} {:>17} {:>17} {:>17}",
            fit.split.tp == report.inputs.split.tp ? '>' : ' ',
            fit.split.tp,
            human_bytes(fit.weight_bytes),
            human_bytes(fit.kv_bytes_per_token),
            signed_bytes(fit.free_bytes),
            kept_text(fit, 0),
            kept_text(fit, 1),
            kept_text(fit, 2));
  }
  std::string cards = "    cards for the weights and one conversation:";
  for (size_t i = 0; i < plan::user_contexts.size(); ++i) {
    cards += fmt::format(
        "{} {} at {}", i == 0 ? "" : ",", report.cards[i], kilotokens(plan::user_contexts[i]));
  }
  out.wrapped(cards + " (activations and buffers not counted)", "      ");
}

void add_batch_limit(Lines& out, const plan::PlanReport& report) {
  const plan::BatchLimit& now = report.batch_limits.front();
  out.add("");
  std::string line = fmt::format(
      "decode turns compute-bound at batch {} by weights alone; with its KV cache at context {}: ",
      number(report.batch_limit_weights),
      report.inputs.context);
  line += now.batch ? fmt::format("at batch {}", number(*now.batch))
                    : fmt::format("never, an endless batch reaches {} of {} FLOP/byte",
                                  number(now.intensity_limit),
                                  number(report.ridge));
  out.wrapped(line, "  ");
  out.add("    {:<36} {:>11} {:>10} {:>10} {:>15}",
          "KV cache",
          "a sequence",
          "FLOP/byte",
          "at batch",
          "up to context");
  for (const plan::BatchLimit& limit : report.batch_limits) {
    out.add("    {:<36} {:>11} {:>10} {:>10} {:>15}",
            limit.change,
            human_bytes(static_cast<int64_t>(limit.kv_bytes_per_sequence)),
            number(limit.intensity_limit),
            batch_text(limit.batch),
            context_text(limit.context_limit));
  }
}

void add_levers(Lines& out, const plan::PlanReport& report) {
  out.add("");
  out.add("levers on a decode step, at the roof, links free");
  out.add("    {:<17} {:<45} {:>9} {:>10} {:>8}", "", "", "ms", "tokens/s", "gain");
  for (const plan::Lever& lever : report.levers) {
    out.add("    {:<17} {:<45} {:>9} {:>10} {:>6} x",
            lever.lever,
            lever.change,
            milliseconds(lever.step_seconds),
            number(lever.tokens_per_s),
            number(lever.gain));
  }
}

void add_training(Lines& out, const plan::PlanReport& report) {
  const plan::TrainingPlan& t = report.training;
  out.add("");
  out.wrapped(fmt::format("training with Adam: {} B a parameter = {}, {} cards before activations; "
                          "{} a token, {} with activations recomputed",
                          t.bytes_per_parameter,
                          human_bytes(t.n_bytes),
                          t.cards,
                          human_flops(static_cast<double>(t.flops_per_token)),
                          human_flops(static_cast<double>(t.flops_per_token_recomputed))),
              "  ");
  for (const plan::ZeroStage& stage : t.zero) {
    out.add("    ZeRO stage {} on {} devices: {} a device, {} x less, {} elements sent a parameter",
            stage.stage,
            t.n_devices,
            human_bytes(static_cast<int64_t>(stage.bytes_per_device)),
            number(stage.saving),
            stage.traffic_per_parameter);
  }
}

void add_bubbles(Lines& out, const plan::PlanReport& report) {
  if (report.bubbles.empty()) return;
  out.add("");
  out.add("bubble of pp {}, equal stages, free links", report.inputs.split.pp);
  out.add("    {:>13} {:>22} {:>30}",
          "microbatches",
          "flushed: (P-1)/(M+P-1)",
          "decode, not drained: 1 - M/P");
  for (const plan::Bubble& bubble : report.bubbles) {
    out.add("    {:>13} {:>22} {:>30}",
            bubble.n_microbatches,
            percent(bubble.flushed),
            percent(bubble.steady));
  }
}

}  // namespace testbed::table
