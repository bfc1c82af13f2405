#include "runtime/probe/probe_json.hpp"

#include <nlohmann/json.hpp>

#include "runtime/probe/device_curves_json.hpp"
#include "runtime/probe/probe_names.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace {

using Json = nlohmann::ordered_json;

Json collective_json(const CollectivePoint& p) {
  return {{"op", probe_op_name(p.op)},
          {"n", p.n},
          {"bytes", p.bytes},
          {"us", p.us},
          {"algorithm", algorithm_name(p.algorithm)},
          {"best", p.best}};
}

Json gemm_json(const GemmPoint& p) {
  return {{"m", p.m}, {"n", p.n}, {"k", p.k}, {"dtype", p.dtype}, {"us", p.us}};
}

Json attention_json(const AttentionPoint& p) {
  return {{"phase", phase_name(p.phase)},
          {"batch", p.batch},
          {"context", p.context},
          {"n_heads", p.n_heads},
          {"n_kv_heads", p.n_kv_heads},
          {"head_dim", p.head_dim},
          {"us", p.us}};
}

Json elementwise_json(const ElementwisePoint& p) {
  return {{"op", op_name(p.op)}, {"rows", p.rows}, {"width", p.width}, {"us", p.us}};
}

Json pair_json(const PairPoint& p) {
  return {{"first", p.first},
          {"second", p.second},
          {"bytes", p.bytes},
          {"one_way_us", p.one_way_us},
          {"both_ways_us", p.both_ways_us}};
}

template <typename Point, typename ToJson>
Json list(const std::vector<Point>& points, ToJson&& to_json_of) {
  Json array = Json::array();
  for (const Point& point : points) array.push_back(to_json_of(point));
  return array;
}

}  // namespace

std::string to_json(const ProbeRecord& record) {
  constexpr double giga = 1e9;
  constexpr double tera = 1e12;
  Json json{{"schema", "testbed-probe-1"},
            {"device", record.device},
            {"simulated", record.simulated},
            {"description", valid_utf8(record.description)},
            {"n_ranks", record.n_ranks},
            {"labels", Json::array()}};
  for (const std::string& label : record.labels) json["labels"].push_back(valid_utf8(label));
  json["collectives"] = list(record.collectives, collective_json);
  json["gemm"] = list(record.gemm, gemm_json);
  json["attention"] = list(record.attention, attention_json);
  json["elementwise"] = list(record.elementwise, elementwise_json);
  json["memory_read_gb_s"] = record.memory_read_bytes_per_s / giga;
  json["memory_read_all_gb_s"] = record.memory_read_all_bytes_per_s / giga;
  json["peak_tflops"] = record.peak_flops / tera;
  json["kernel_overhead_us"] = record.kernel_overhead_us;
  if (!record.pairs.empty()) json["pairs"] = list(record.pairs, pair_json);
  if (record.curves) json["device_curves"] = device_curves_json(*record.curves);
  return json.dump(1) + "\n";
}

}  // namespace testbed
