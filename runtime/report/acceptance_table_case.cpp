// A case in the terminal's summary.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/measure/statistics.hpp"
#include "runtime/report/acceptance_heat_map.hpp"
#include "runtime/report/acceptance_table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed::acceptance_report {

namespace {

using table::Lines;

constexpr size_t most_lines = 8;
constexpr size_t name_columns = 26;

// The same figure of several devices or links.
struct FigureGroup {
  std::vector<const Figure*> figures;
};

bool alike(const Figure& a, const Figure& b) { return a.key == b.key && a.unit == b.unit; }

std::vector<FigureGroup> groups_of(const CaseResult& result) {
  std::vector<FigureGroup> groups;
  for (const Figure& figure : result.figures) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const FigureGroup& g) {
      return alike(*g.figures[0], figure);
    });
    if (group == groups.end()) {
      groups.push_back({{&figure}});
    } else {
      group->figures.push_back(&figure);
    }
  }
  return groups;
}

std::string judgement(const Figure& figure) {
  if (!figure.gate) return "no gate";
  return figure.passed ? "passed" : "MISSED";
}

// A name that is too long has its own line.
void add_line(Lines& out,
              std::string name,
              const FigureSummary& summary,
              const Figure& figure,
              const std::string& judgement) {
  name = printable(name);
  if (name.size() > name_columns) {
    out.wrapped("    " + name, "      ");
    name.clear();
  }
  out.wrapped(fmt::format("    {:<{}} {:>8} {:>8} {:<7} {:>4}  {}{}",
                          name,
                          name_columns,
                          figure_number(summary.median),
                          figure_number(summary.worst),
                          printable(figure.unit),
                          summary.n,
                          judgement,
                          figure.gate ? " " + gate_text(figure) : ""),
              "      ");
}

// Median of the medians, worst of all.
FigureSummary summary_of_all(const FigureGroup& group) {
  FigureSummary all;
  std::vector<double> medians;
  const bool more = more_is_better(*group.figures[0]);
  for (const Figure* figure : group.figures) {
    const FigureSummary one = summary_of(*figure);
    if (!one.median) continue;
    medians.push_back(*one.median);
    all.n += one.n;
    all.worst = all.worst
                    ? more ? std::min(*all.worst, *one.worst) : std::max(*all.worst, *one.worst)
                    : one.worst;
  }
  if (!medians.empty()) all.median = median(medians);
  return all;
}

void add_group(Lines& out,
               const Acceptance& acceptance,
               const std::string& title,
               const FigureGroup& group) {
  const Figure& first = *group.figures[0];
  if (group.figures.size() == 1) {
    std::string name = key_text(first.key, title);
    if (!first.ranks.empty()) name += " " + place_text(acceptance, first.ranks);
    add_line(out, name, summary_of(first), first, judgement(first));
    return;
  }
  std::vector<const Figure*> missed;
  std::copy_if(group.figures.begin(),
               group.figures.end(),
               std::back_inserter(missed),
               [](const Figure* figure) { return !figure->passed; });
  const size_t n = group.figures.size();
  const std::string of_all = !first.gate      ? "no gate"
                             : missed.empty() ? fmt::format("{} passed", n)
                                              : fmt::format("{} of {} MISSED", missed.size(), n);
  add_line(out,
           fmt::format("{}, {} {}",
                       key_text(first.key, title),
                       n,
                       first.ranks.size() == 2 ? "links" : "devices"),
           summary_of_all(group),
           first,
           of_all);
  for (size_t i = 0; i < std::min(most_lines, missed.size()); ++i) {
    add_line(out,
             "  " + place_text(acceptance, missed[i]->ranks),
             summary_of(*missed[i]),
             *missed[i],
             judgement(*missed[i]));
  }
  if (missed.size() > most_lines) out.add("      and {} more", missed.size() - most_lines);
}

}  // namespace

void add_figure_header(Lines& out) {
  out.add("    {:<{}} {:>8} {:>8} {:<7} {:>4}  gate", "", name_columns, "median", "worst", "", "n");
}

void add_case(Lines& out, const Acceptance& acceptance, const CaseResult& result) {
  std::string line =
      fmt::format("  {}: {}", printable(result.name), case_status_name(result.status));
  if (result.corrupt) line += ", WRONG VALUES";
  if (result.attempts > 1) line += fmt::format(" ({} attempts)", result.attempts);
  if (!result.reason.empty()) line += ": " + printable(result.reason);
  out.wrapped(line, "      ");
  for (size_t i = 0; i < std::min(most_lines, result.blamed.size()); ++i) {
    out.wrapped("    blamed: " + printable(blame_text(acceptance, result.blamed[i])), "      ");
  }
  if (result.blamed.size() > most_lines) {
    out.add("    and {} more blamed", result.blamed.size() - most_lines);
  }
  for (const FigureGroup& group : groups_of(result)) add_group(out, acceptance, result.name, group);
  for (const RankMatrix& matrix : result.matrices) {
    out.add("");
    add_heat_map(out, matrix, acceptance.hosts);
  }
  for (const std::string& part : result.not_run) {
    out.wrapped("    not run: " + printable(part), "      ");
  }
  for (const std::string& note : result.notes) out.wrapped("    " + printable(note), "      ");
}

}  // namespace testbed::acceptance_report
