#include "runtime/report/plan_json.hpp"

#include <nlohmann/json.hpp>

#include "runtime/report/json_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace {

using Json = nlohmann::ordered_json;

Json cost_json(const OpCost& cost) {
  return {{"flops", cost.flops},
          {"model_flops", cost.model_flops},
          {"weight_bytes", cost.weight_bytes},
          {"kv_bytes", cost.kv_bytes},
          {"kv_write_bytes", cost.kv_write_bytes},
          {"activation_bytes", cost.activation_bytes}};
}

Json op_json(const plan::OpRoofline& line) {
  Json json{{"op", line.op.name}, {"calls", line.op.calls}};
  json.update(cost_json(line.op.cost));
  json["intensity_flop_per_byte"] = json_number(line.intensity);
  json["ridge_flop_per_byte"] = json_number(line.ridge);
  json["regime"] = line.memory_bound() ? "memory" : "compute";
  json["ms"] = json_number(line.seconds * 1e3);
  return json;
}

Json links_json(const std::optional<plan::StepLinks>& links) {
  if (!links) return nullptr;
  return {{"link", links->link},
          {"gb_s", json_number(links->bytes_per_s * 1e-9)},
          {"crosses_nodes", links->crosses_nodes},
          {"all_reduces", links->all_reduces},
          {"all_gathers", links->all_gathers},
          {"all_reduce_payload_bytes_per_layer", links->all_reduce_bytes_per_layer},
          {"all_reduce_payload_bytes", links->all_reduce_bytes},
          {"ring_wire_bytes_per_device", links->wire_bytes},
          {"line_rate_ms", json_number(links->seconds * 1e3)},
          {"pipeline_bytes", links->pipeline_bytes}};
}

Json step_json(const plan::StepPlanned& step) {
  const plan::StepRoofline& r = step.roofline;
  Json json{{"batch", r.shape.batch}, {"tokens", r.shape.n_tokens()}};
  json["all_devices"] = cost_json(step.all_devices);
  json["one_device_of_each_stage"] = cost_json(r.cost);
  json["intensity_flop_per_byte"] = json_number(r.intensity);
  json["ms"] = json_number(r.seconds * 1e3);
  json["memory_bound_ms"] = json_number(r.memory_seconds * 1e3);
  json["ops"] = list(r.ops, op_json);
  json["links"] = links_json(step.links);
  return json;
}

Json fit_json(const plan::Fit& fit) {
  Json json{{"tp", fit.split.tp},
            {"cp", fit.split.cp},
            {"dp", fit.split.dp},
            {"pp", fit.split.pp},
            {"ep", fit.split.ep},
            {"weights_bytes", fit.weight_bytes},
            {"kv_bytes_per_token", fit.kv_bytes_per_token},
            {"free_bytes", fit.free_bytes}};
  json["users"] = Json::array();
  for (size_t i = 0; i < plan::user_contexts.size(); ++i) {
    json["users"].push_back({{"context", plan::user_contexts[i]},
                             {"kv_bytes", fit.kv_bytes[i]},
                             {"users", fit.users[i]}});
  }
  return json;
}

Json fits_json(const plan::PlanReport& report) {
  Json json{{"split", fit_json(report.fit)}, {"by_tp", list(report.fits, fit_json)}};
  json["cards"] = Json::array();
  for (size_t i = 0; i < plan::user_contexts.size(); ++i) {
    json["cards"].push_back({{"context", plan::user_contexts[i]}, {"cards", report.cards[i]}});
  }
  return json;
}

// null as a batch: never; null as a context: at every context.
Json limit_json(const plan::BatchLimit& limit) {
  return {{"kv_cache", limit.change},
          {"kv_bytes_per_sequence", json_number(limit.kv_bytes_per_sequence)},
          {"intensity_limit_flop_per_byte", json_number(limit.intensity_limit)},
          {"batch", or_null(limit.batch)},
          {"up_to_context", or_null(limit.context_limit)}};
}

Json lever_json(const plan::Lever& lever) {
  return {{"lever", lever.lever},
          {"change", lever.change},
          {"step_ms", json_number(lever.step_seconds * 1e3)},
          {"tokens_per_s", json_number(lever.tokens_per_s)},
          {"gain", json_number(lever.gain)}};
}

Json training_json(const plan::TrainingPlan& t) {
  return {{"bytes_per_parameter", t.bytes_per_parameter},
          {"bytes", t.n_bytes},
          {"cards", t.cards},
          {"flops_per_token", t.flops_per_token},
          {"flops_per_token_recomputed", t.flops_per_token_recomputed},
          {"devices", t.n_devices},
          {"zero", list(t.zero, [](const plan::ZeroStage& stage) {
             return Json{{"stage", stage.stage},
                         {"bytes_per_device", json_number(stage.bytes_per_device)},
                         {"saving", json_number(stage.saving)},
                         {"elements_sent_per_parameter", stage.traffic_per_parameter}};
           })}};
}

Json bubble_json(const plan::Bubble& bubble) {
  return {{"microbatches", bubble.n_microbatches},
          {"flushed", or_null(bubble.flushed)},
          {"steady", json_number(bubble.steady)}};
}

Json inputs_json(const plan::PlanReport& report) {
  const plan::PlanInputs& in = report.inputs;
  return {{"schema", "testbed-plan-1"},
          {"closed_form", true},
          {"simulated", false},
          {"labels", plan::labels_of(report)},
          {"model", in.model.name},
          {"layers", in.model.n_layers},
          {"parameters", report.n_parameters},
          {"embedding_bytes", report.embedding_bytes},
          {"cluster", in.cluster.name},
          {"device", in.cluster.device.name},
          {"parallel",
           {{"tp", in.split.tp},
            {"cp", in.split.cp},
            {"dp", in.split.dp},
            {"pp", in.split.pp},
            {"ep", in.split.ep}}},
          {"batch", in.batch},
          {"context", in.context},
          {"prompt_tokens", in.prompt_tokens},
          {"weight_dtype", in.formats.weights.name},
          {"compute_dtype", dtype_name(in.formats.activation)}};
}

}  // namespace

std::string plan_json(const plan::PlanReport& report) {
  Json json = inputs_json(report);
  json["ridge_flop_per_byte"] = json_number(report.ridge);
  json["decode"] = step_json(report.decode);
  json["prefill"] = step_json(report.prefill);
  json["fits"] = fits_json(report);
  json["batch_limit"] = {{"weights_alone", json_number(report.batch_limit_weights)},
                         {"with_kv_cache", list(report.batch_limits, limit_json)}};
  json["levers"] = list(report.levers, lever_json);
  json["training"] = training_json(report.training);
  json["bubbles"] = list(report.bubbles, bubble_json);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace testbed
