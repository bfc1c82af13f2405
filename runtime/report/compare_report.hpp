// Two records side by side.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/report/compare_record.hpp"

namespace testbed {

enum class Difference : uint8_t {
  none,            // equal, or the ranges over the repeats overlap
  beyond_spread,   // the ranges have nothing in common
  spread_unknown,  // unequal, and of one of them there is a single repeat
  one_sided,       // only one record has it
};
constexpr std::string_view difference_name(Difference difference) {
  constexpr std::string_view names[] = {"none", "beyond_spread", "spread_unknown", "one_sided"};
  return names[static_cast<int>(difference)];
}

struct FigurePair {
  std::optional<ComparedFigure> a;
  std::optional<ComparedFigure> b;

  const ComparedFigure& any() const { return a ? *a : *b; }
  Difference difference() const;
  std::optional<double> ratio() const;  // b / a; null if one is missing or a is 0
};

struct TextPair {
  std::string name;
  std::string a;  // "" if the record has none
  std::string b;
};

struct GroupPair {
  std::string title;
  std::vector<TextPair> texts;
  std::vector<FigurePair> figures;
};

// A's order; what only B has comes last.
std::vector<GroupPair> pair_up(const ComparedRecord& a, const ComparedRecord& b);

// At most 100 columns for names of usual length. Says which record is simulated.
std::string comparison_table(const ComparedRecord& a, const ComparedRecord& b);

// {schema, a: {path, simulated, labels}, b, groups: [{title, texts: [{name, a, b}], figures:
// [{name, unit, a: {value, min, max}|null, b, ratio, difference}]}]}
std::string comparison_json(const ComparedRecord& a, const ComparedRecord& b);

}  // namespace testbed
