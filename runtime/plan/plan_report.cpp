#include "runtime/plan/plan_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/errors.hpp"
#include "runtime/config/split.hpp"
#include "runtime/measure/bubble.hpp"
#include "runtime/plan/kv.hpp"
#include "runtime/plan/links.hpp"
#include "runtime/plan/step_rows.hpp"
#include "runtime/plan/training.hpp"

namespace testbed::plan {
namespace {

void check_split(const PlanInputs& in) {
  const Mesh mesh = in.split.mesh();
  if (const auto reason = why_illegal(in.model, mesh, {}, in.formats.weights.column_granularity()))
    throw ConfigError(*reason);
  if (const auto reason = why_too_many_devices(mesh, in.cluster)) throw ConfigError(*reason);
  // Over cp every block and row of the batch is placed (StepRows), which takes memory.
  constexpr int64_t most_placed = int64_t{1} << 24;
  const int64_t longest = std::max(in.context, in.prompt_tokens);
  const int64_t of_sequence = std::max(in.prompt_tokens, in.context / kv_block_size) + 1;
  if (in.split.cp > 1 && (longest > most_placed || in.batch > most_placed / of_sequence)) {
    throw ConfigError(fmt::format("--cp {}: {} sequences of {} tokens are too many to plan over cp",
                                  in.split.cp,
                                  in.batch,
                                  longest));
  }
}

// tp ranks are neighbours: their group stays in a node if it is no larger than one.
const LinkSpec& link_of(const ClusterSpec& cluster, int tp) {
  return tp > cluster.node.n_devices && cluster.fabric ? cluster.fabric->nic : cluster.node.link;
}

void add_tp(const PlanInputs& in, const ShardPosition& position, int64_t n_rows, StepLinks& links) {
  const DType dtype = in.formats.activation;
  const int64_t one = dtype_bytes(dtype, n_rows * in.model.d_model);
  links.all_reduces = 1;
  for (int64_t layer = 0; layer < in.model.n_layers; ++layer) {
    const int64_t n = all_reduces_of_layer(in.model, layer, position.experts_all_to_all);
    links.all_reduces += n;
    links.all_reduce_bytes_per_layer = n * one;
    links.all_gathers += all_gathers_of_layer(in.model, layer, position.experts_all_to_all);
  }
  links.all_reduce_bytes = links.all_reduces * one;
  if (const auto& input = in.model.per_layer_input) {
    ++links.all_reduces;
    links.all_reduce_bytes += dtype_bytes(dtype, n_rows * in.model.n_layers * input->dim);
  }
  links.wire_bytes = ring_all_reduce_wire_bytes(links.all_reduce_bytes, in.split.tp) +
                     ring_all_gather_wire_bytes(links.all_gathers * one, in.split.tp);
  links.seconds = static_cast<double>(links.wire_bytes) / links.bytes_per_s;
}

std::optional<StepLinks> links_of(const PlanInputs& in, const StepShape& shape) {
  if (in.split.n_devices() == 1) return std::nullopt;
  const LinkSpec& link = link_of(in.cluster, in.split.tp);
  StepLinks links{.link = link.name,
                  .bytes_per_s = link.bytes_per_s,
                  .crosses_nodes = in.split.tp > in.cluster.node.n_devices};
  const ShardPosition position = position_of(in.split, 0);
  const int64_t n_rows = StepRows(in.model, position, shape).n_rows();
  if (in.split.tp > 1) add_tp(in, position, n_rows, links);
  if (in.split.pp > 1) {
    const auto& input = in.model.per_layer_input;
    const int64_t width = in.model.d_model + (input ? in.model.n_layers * input->dim : 0);
    links.pipeline_bytes = dtype_bytes(in.formats.activation, n_rows * width);
  }
  return links;
}

OpCost cost_of_all_devices(const PlanInputs& in, const StepShape& shape) {
  OpCost cost;
  for (int stage = 0; stage < in.split.pp; ++stage) {
    for (int rank = 0; rank < in.split.mesh().stage_size(); ++rank) {
      cost += total_cost(step_ops(in.model, position_of(in.split, stage, rank), shape, in.formats));
    }
  }
  return cost;
}

StepPlanned planned(const PlanInputs& in, const StepShape& shape) {
  return {step_roofline(in.model, in.split, shape, in.formats, in.cluster.device),
          cost_of_all_devices(in, shape),
          links_of(in, shape)};
}

int64_t embedding_bytes(const PlanInputs& in) {
  return in.formats.weights.n_bytes(in.model.vocab_size, in.model.d_model, MatrixRole::table);
}

void add_fits(const PlanInputs& in, PlanReport& report) {
  const int64_t memory = in.cluster.device.memory_bytes;
  report.fit = fit_of(in.model, in.split, in.formats, memory);
  report.fits = fits_by_tp(in.model, in.split, in.cluster.n_devices(), in.formats, memory);
  const int64_t weights = resident_weight_bytes(in.model, {}, in.formats.weights);
  for (const int64_t context : user_contexts) {
    const int64_t cache = kv_bytes_of_sequence(in.model, context, in.formats.activation);
    report.cards.push_back(
        cards_needed(static_cast<double>(weights + cache), static_cast<double>(memory)));
  }
}

TrainingPlan training_of(const PlanInputs& in, int64_t n_parameters) {
  TrainingPlan training;
  training.bytes_per_parameter = AdamBytes{}.total();
  training.n_bytes = training.bytes_per_parameter * n_parameters;
  training.cards = cards_needed(static_cast<double>(training.n_bytes),
                                static_cast<double>(in.cluster.device.memory_bytes));
  training.flops_per_token = training_flops_per_token(n_parameters, false);
  training.flops_per_token_recomputed = training_flops_per_token(n_parameters, true);
  training.n_devices = in.cluster.n_devices();
  for (int stage = 0; stage <= 3; ++stage) {
    training.zero.push_back(
        {.stage = stage,
         .bytes_per_device = zero_bytes_per_parameter(stage, training.n_devices) *
                             static_cast<double>(n_parameters),
         .saving = zero_saving(stage, training.n_devices),
         .traffic_per_parameter = zero_traffic_per_parameter(stage)});
  }
  return training;
}

std::vector<Bubble> bubbles_of(int64_t pp) {
  std::vector<Bubble> bubbles;
  if (pp == 1) return bubbles;
  for (const int64_t m : {int64_t{1}, pp, 2 * pp, 8 * pp}) {
    bubbles.push_back({m, flushed_bubble(pp, m, 1), decode_bubble(pp, m)});
  }
  return bubbles;
}

}  // namespace

PlanReport make_plan(const PlanInputs& in) {
  check_split(in);
  PlanReport report;
  report.inputs = in;
  report.n_parameters = in.model.n_parameters();
  report.decode = planned(in, decode_shape(in.batch, in.context));
  report.prefill = planned(in, prefill_shape(in.batch, in.prompt_tokens));
  report.embedding_bytes = embedding_bytes(in);
  add_fits(in, report);
  const DeviceSpec& device = in.cluster.device;
  report.ridge = roof_of(device, math_on(device, in.formats.weights.math)).ridge();
  DecodePass without_cache = decode_pass(in.model, 1, in.formats);
  without_cache.kv_bytes_per_sequence = 0.0;
  report.batch_limit_weights = *compute_bound_batch(without_cache, report.ridge);
  report.batch_limits = batch_limits(in.model, in.context, in.formats, report.ridge);
  report.levers =
      levers_of(in.model, in.split, decode_shape(in.batch, in.context), in.formats, device);
  report.training = training_of(in, report.n_parameters);
  report.bubbles = bubbles_of(in.split.pp);
  return report;
}

std::vector<std::string> labels_of(const PlanReport& report) {
  const PlanInputs& in = report.inputs;
  std::vector<std::string> labels;
  if (in.context > in.model.max_positions) {
    labels.push_back(fmt::format("context {} is beyond the {} positions of {}",
                                 in.context,
                                 in.model.max_positions,
                                 in.model.name));
  }
  const int64_t users =
      users_of(in.model, in.split, in.formats, in.cluster.device.memory_bytes, in.context);
  if (report.fit.free_bytes < 0) {
    labels.push_back("the weights do not fit: see what fits");
  } else if (users < in.batch) {
    labels.push_back(
        fmt::format("{} users of context {} do not fit: {} do", in.batch, in.context, users));
  }
  if (in.split.cp > 1 || in.split.ep > 1) {
    labels.push_back("what cp and ep send is not in a plan: simulate it");
  }
  const DType stored = in.model.stored_dtype;  // of most of a file's matrices
  const auto held = in.formats.weights.held;
  if (is_quantised(stored) &&
      (held == format_of(stored).held || held == weight_formats::int4_g32)) {
    labels.push_back(fmt::format(
        "all matrices taken as {}: a GGUF file mixes types, simulate it for what is held",
        in.formats.weights.name));
  }
  return labels;
}

}  // namespace testbed::plan
