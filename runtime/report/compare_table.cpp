#include <fmt/format.h>

#include "runtime/report/compare_report.hpp"
#include "runtime/report/table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed {
namespace {

using table::Lines;
using table::number;

// "12.3 (12.1 to 12.6)"; exact figures have no range.
std::string shown(const std::optional<ComparedFigure>& figure) {
  if (!figure) return "-";
  const bool count = figure->unit == "bytes" || figure->unit.empty();
  if (count) return fmt::format("{:.15g}", figure->value);
  std::string text = number(figure->value);
  if (figure->min != figure->max)
    text += fmt::format(" ({} to {})", number(figure->min), number(figure->max));
  return text;
}

std::string change(const FigurePair& pair) {
  const auto ratio = pair.ratio();
  return ratio ? fmt::format("{:+.1f} %", (*ratio - 1.0) * 100.0) : "";
}

const char* mark(Difference difference) {
  switch (difference) {
    case Difference::none:
      return "";
    case Difference::beyond_spread:
      return "*";
    case Difference::spread_unknown:
      return "?";
    case Difference::one_sided:
      return "!";
  }
  return "";
}

void add_figures(Lines& out, const GroupPair& group) {
  for (const FigurePair& pair : group.figures) {
    const ComparedFigure& figure = pair.any();
    // What is nothing at this precision in both is no news.
    const bool nothing =
        pair.a && pair.b && number(pair.a->value) == "0.000" && number(pair.b->value) == "0.000";
    if (nothing) continue;
    out.add("  {:<22} {:>25} {:>25} {:<9} {:>9} {}",
            figure.name,
            shown(pair.a),
            shown(pair.b),
            figure.unit,
            change(pair),
            mark(pair.difference()));
  }
}

void add_texts(Lines& out, const GroupPair& group) {
  for (const TextPair& text : group.texts)
    out.add("  {:<22} {:>25} {:>25} {:<9} {:>9} {}",
            printable(text.name),
            printable(text.a),
            printable(text.b),
            "",
            "",
            text.a == text.b ? "" : "!");
}

void add_record(Lines& out, const char* name, const ComparedRecord& record) {
  out.wrapped(
      fmt::format(
          "{}: {}{}", name, record.simulated ? "SIMULATED " : "measured ", printable(record.path)),
      "  ");
  for (const std::string& label : record.labels) out.wrapped("  ! " + printable(label), "    ");
}

}  // namespace

std::string comparison_table(const ComparedRecord& a, const ComparedRecord& b) {
  Lines out;
  add_record(out, "A", a);
  add_record(out, "B", b);
  out.add("");
  out.add("  {:<22} {:>25} {:>25} {:<9} {:>9}", "", "A", "B", "", "B to A");
  for (const GroupPair& group : pair_up(a, b)) {
    out.add("");
    out.add("{}", printable(group.title));
    add_texts(out, group);
    add_figures(out, group);
  }
  out.add("");
  out.wrapped(
      "* differs by more than both spreads over their repeats   ? differs, and one of them "
      "has a single repeat   ! another setting, or only one has it",
      "  ");
  return out.take();
}

}  // namespace testbed
