#include <nlohmann/json.hpp>

#include "runtime/report/json.hpp"
#include "runtime/report/json_parts.hpp"
#include "runtime/report/sweep_report.hpp"

namespace testbed {
namespace {

using Json = nlohmann::ordered_json;

Json place_json(const SweepPoint& p) {
  return {{"cluster", p.cluster},
          {"tp", p.tp},
          {"pp", p.pp},
          {"cp", p.cp},
          {"dp", p.dp},
          {"ep", p.ep},
          {"batch", p.batch},
          {"context", p.context},
          {"prompt_tokens", p.prompt_tokens}};
}

Json point_json(const SweepResult& result) {
  Json json = Json::parse(to_json(*result.record));
  Json place = place_json(result.point);
  place["warnings"] = result.warnings;
  for (const PhaseRecord& phase : result.record->phases)
    place["tokens_per_s_per_device"][std::string(phase_name(phase.phase))] =
        json_number(result.tokens_per_s_per_device(phase.phase));
  json["sweep"] = std::move(place);
  return json;
}

Json refused_json(const SweepResult& result) {
  Json json = place_json(result.point);
  json["reason"] = *result.refused;
  return json;
}

Json what_if_json(const SweepResult& result, const WhatIfStep& step) {
  return {{"step_ms", json_number(step.step_ms)},
          {"speedup", json_number(result.speedup(step.phase, step.what_if))},
          {"memory_ms", json_number(step.shares.memory() * step.step_ms)},
          {"interconnect_ms", json_number(step.shares.interconnect * step.step_ms)}};
}

// Of the points, in their order: phase -> what-if -> figures.
Json what_ifs_json(const SweepResult& result) {
  Json json = Json::object();
  for (const WhatIfStep& step : result.what_if_steps)
    json[std::string(phase_name(step.phase))][std::string(what_if_name(step.what_if))] =
        what_if_json(result, step);
  return json;
}

Json wall_json(const WallTimes& times) {
  return {{"memory_ms", json_number(times.memory_ms)},
          {"compute_ms", json_number(times.compute_ms)},
          {"interconnect_ms", json_number(times.interconnect_ms)}};
}

Json crossover_json(const Crossover& c) {
  Json json{
      {"tp", c.tp ? Json(*c.tp) : Json(nullptr)},
      {"cause", c.cause ? Json(cause_name(*c.cause)) : Json(nullptr)},
      {"tp_over_work", c.tp_over_work ? Json(*c.tp_over_work) : Json(nullptr)},
      {"lowest_tp", c.series.tp},
      {"highest_tp", c.highest_tp},
      {"from_there_on", c.from_there_on},
      {"may_be_lower", c.may_be_lower},
      {"at_tp", c.tp ? wall_json(c.now) : Json(nullptr)},
      {"at_tp_without_latency", c.without_latency ? wall_json(*c.without_latency) : Json(nullptr)}};
  return json;
}

Json series_json(const Crossover& c) {
  Json json = place_json(c.series);
  json.erase("tp");
  json["phase"] = phase_name(c.phase);
  json.update(crossover_json(c));
  return json;
}

Json offer_json(const Sweep& sweep, const Offer& offer) {
  Json json = place_json(sweep.results[offer.result].point);
  json["tpot_ms"] = json_number(offer.tpot_ms);
  json["tokens_per_s_per_device"] = json_number(offer.tokens_per_s_per_device);
  return json;
}

Json best_json(const Sweep& sweep) {
  Json list = Json::array();
  for (const BestSplit& split : sweep.best) {
    Json json{{"best", offer_json(sweep, split.best)}, {"pareto", Json::array()}};
    for (const Offer& offer : split.pareto) json["pareto"].push_back(offer_json(sweep, offer));
    list.push_back(std::move(json));
  }
  return list;
}

void add_results(Json& json, const Sweep& sweep) {
  json["points"] = json["refused"] = json["what_if"] = Json::array();
  for (const SweepResult& result : sweep.results) {
    if (!result.record) {
      json["refused"].push_back(refused_json(result));
      continue;
    }
    json["points"].push_back(point_json(result));
    json["what_if"].push_back(what_ifs_json(result));
  }
}

void add_crossovers(Json& json, const Sweep& sweep) {
  json["crossover"] = Json::object();
  for (const std::string& cluster : sweep.config.clusters)
    json["crossover"][cluster] = Json::object();
  json["crossovers"] = Json::array();
  for (const Crossover& c : sweep.crossovers) {
    Json& of_cluster = json["crossover"][c.series.cluster];
    const std::string phase(phase_name(c.phase));
    if (!of_cluster.contains(phase)) of_cluster[phase] = crossover_json(c);
    json["crossovers"].push_back(series_json(c));
  }
}

}  // namespace

std::string sweep_json(const Sweep& sweep) {
  Json json{{"schema", "testbed-sweep-1"},
            {"simulated", true},
            {"model", sweep.model},
            {"layers", sweep.n_layers}};
  add_results(json, sweep);
  add_crossovers(json, sweep);
  json["best"] = best_json(sweep);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace testbed
