#include <nlohmann/json.hpp>

#include "runtime/report/compare_report.hpp"
#include "runtime/report/json_parts.hpp"

namespace testbed {
namespace {

using Json = nlohmann::ordered_json;

Json record_json(const ComparedRecord& record) {
  return {{"path", record.path}, {"simulated", record.simulated}, {"labels", record.labels}};
}

Json figure_json(const std::optional<ComparedFigure>& figure) {
  if (!figure) return nullptr;
  return {{"value", json_number(figure->value)},
          {"min", json_number(figure->min)},
          {"max", json_number(figure->max)},
          {"spread_known", figure->spread_known}};
}

Json pair_json(const FigurePair& pair) {
  return {{"name", pair.any().name},
          {"unit", pair.any().unit},
          {"a", figure_json(pair.a)},
          {"b", figure_json(pair.b)},
          {"ratio", json_number(pair.ratio())},
          {"difference", difference_name(pair.difference())}};
}

Json group_json(const GroupPair& group) {
  Json json{{"title", group.title}, {"texts", Json::array()}, {"figures", Json::array()}};
  for (const TextPair& text : group.texts)
    json["texts"].push_back({{"name", text.name}, {"a", text.a}, {"b", text.b}});
  for (const FigurePair& pair : group.figures) json["figures"].push_back(pair_json(pair));
  return json;
}

}  // namespace

std::string comparison_json(const ComparedRecord& a, const ComparedRecord& b) {
  Json json{{"schema", "testbed-comparison-1"},
            {"simulated", a.simulated || b.simulated},
            {"a", record_json(a)},
            {"b", record_json(b)},
            {"groups", Json::array()}};
  for (const GroupPair& group : pair_up(a, b)) json["groups"].push_back(group_json(group));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace testbed
