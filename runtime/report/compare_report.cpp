#include "runtime/report/compare_report.hpp"

#include <algorithm>

namespace testbed {
namespace {

std::vector<FigurePair> pair_figures(const FigureGroup& a, const FigureGroup& b) {
  std::vector<FigurePair> pairs;
  for (const ComparedFigure& figure : a.figures) pairs.push_back({figure, std::nullopt});
  for (const ComparedFigure& figure : b.figures) {
    const auto mine = std::find_if(pairs.begin(), pairs.end(), [&](const FigurePair& pair) {
      return pair.a && pair.a->name == figure.name;
    });
    (mine == pairs.end() ? pairs.emplace_back() : *mine).b = figure;
  }
  return pairs;
}

std::vector<TextPair> pair_texts(const FigureGroup& a, const FigureGroup& b) {
  std::vector<TextPair> pairs;
  for (const auto& [name, value] : a.texts) pairs.push_back({name, value, ""});
  for (const auto& [name, value] : b.texts) {
    const auto mine = std::find_if(pairs.begin(), pairs.end(), [&, &name = name](const auto& pair) {
      return pair.name == name;
    });
    if (mine == pairs.end())
      pairs.push_back({name, "", value});
    else
      mine->b = value;
  }
  return pairs;
}

const FigureGroup* find_group(const ComparedRecord& record, const std::string& title) {
  for (const FigureGroup& group : record.groups)
    if (group.title == title) return &group;
  return nullptr;
}

}  // namespace

Difference FigurePair::difference() const {
  if (!a || !b) return Difference::one_sided;
  if (a->value == b->value) return Difference::none;
  if (!a->spread_known || !b->spread_known) return Difference::spread_unknown;
  return a->max < b->min || b->max < a->min ? Difference::beyond_spread : Difference::none;
}

std::optional<double> FigurePair::ratio() const {
  if (!a || !b || a->value == 0.0) return std::nullopt;
  return b->value / a->value;
}

std::vector<GroupPair> pair_up(const ComparedRecord& a, const ComparedRecord& b) {
  static const FigureGroup nothing;
  std::vector<GroupPair> pairs;
  const auto add = [&](const std::string& title, const FigureGroup& of_a, const FigureGroup& of_b) {
    pairs.push_back({title, pair_texts(of_a, of_b), pair_figures(of_a, of_b)});
  };
  for (const FigureGroup& group : a.groups) {
    const FigureGroup* other = find_group(b, group.title);
    add(group.title, group, other != nullptr ? *other : nothing);
  }
  for (const FigureGroup& group : b.groups)
    if (find_group(a, group.title) == nullptr) add(group.title, nothing, group);
  return pairs;
}

}  // namespace testbed
