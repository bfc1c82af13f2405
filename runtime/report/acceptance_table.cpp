// The terminal's summary of an acceptance: the verdict and its reasons first, then stage by stage.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/accept/figures.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "runtime/report/acceptance_table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed {

namespace {

using namespace acceptance_report;
using table::Lines;
using table::number;

constexpr CaseStatus statuses[] = {CaseStatus::passed,
                                   CaseStatus::failed,
                                   CaseStatus::flaky,
                                   CaseStatus::error,
                                   CaseStatus::skipped};

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return text;
}

size_t n_distinct(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return static_cast<size_t>(std::unique(names.begin(), names.end()) - names.begin());
}

std::string plural(size_t n, const std::string& what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

void add_heading(Lines& out, const Acceptance& acceptance) {
  // While it runs there is no verdict yet: what is written then is for the case that it never ends.
  out.add("{}acceptance: {} (exit code {})",
          acceptance.finished ? "" : "UNFINISHED ",
          upper_case(verdict_name(acceptance.verdict)),
          static_cast<int>(acceptance.verdict));
  for (const std::string& reason : acceptance.reasons)
    out.wrapped("  - " + printable(reason), "    ");
  for (const std::string& label : acceptance.labels) out.wrapped("  ! " + printable(label), "    ");
  const AcceptanceProfile& profile = acceptance.profile;
  out.wrapped(fmt::format("  {} on {}, against profile {}{}",
                          plural(static_cast<size_t>(acceptance.world_size),
                                 printable(acceptance.device) + " rank"),
                          plural(n_distinct(acceptance.hosts), "host"),
                          printable(profile.name),
                          profile.description.empty() ? "" : ": " + printable(profile.description)),
              "  ");
  out.add("  began {}, {} s", printable(acceptance.began), number(acceptance.seconds));
}

void add_counts(Lines& out, const Acceptance& acceptance) {
  out.add("");
  out.add("  {:<14} {:>9} {:>7} {:>7} {:>6} {:>6} {:>8} {:>9}",
          "stage",
          "run of",
          "passed",
          "failed",
          "flaky",
          "error",
          "skipped",
          "time");
  for (const std::string& stage : stages_of(acceptance)) {
    const std::vector<CaseResult> cases = cases_of(acceptance, stage);
    int counts[std::size(statuses)] = {};
    for (size_t i = 0; i < std::size(statuses); ++i) counts[i] = count_of(cases, statuses[i]);
    double seconds = 0.0;
    for (const CaseResult& result : cases) seconds += result.seconds;
    const auto covered = acceptance.coverage.cases.find(stage);
    const std::string run =
        covered == acceptance.coverage.cases.end()
            ? std::to_string(cases.size())
            : fmt::format("{} of {}", covered->second.first, covered->second.second);
    out.add("  {:<14} {:>9} {:>7} {:>7} {:>6} {:>6} {:>8} {:>7} s",
            printable(stage),
            run,
            counts[0],
            counts[1],
            counts[2],
            counts[3],
            counts[4],
            number(seconds));
  }
}

void add_coverage(Lines& out, const Coverage& coverage) {
  int run = 0;
  int planned = 0;
  for (const auto& [stage, counts] : coverage.cases) {
    run += counts.first;
    planned += counts.second;
  }
  out.add("");
  out.wrapped(fmt::format("coverage: {} of {} cases run; {} of {} figures held against a gate",
                          run,
                          planned,
                          coverage.gated,
                          coverage.figures),
              "  ");
  const auto& unmet = coverage.gates_not_met_by_a_figure;
  if (unmet.empty()) return;
  constexpr size_t most = 8;
  out.wrapped(fmt::format("  {} of the profile met no figure:", plural(unmet.size(), "gate")),
              "  ");
  for (size_t i = 0; i < std::min(most, unmet.size()); ++i) {
    out.wrapped("    " + printable(unmet[i]), "      ");
  }
  if (unmet.size() > most) out.add("    and {} more", unmet.size() - most);
}

// Where the expected figures are from, and how many figures each of them judged.
void add_sources(Lines& out, const Acceptance& acceptance) {
  std::map<std::string, int> n_judged;
  for (const CaseResult& result : acceptance.cases) {
    for (const Figure& figure : result.figures) {
      if (figure.gate) ++n_judged[figure.gate->source];
    }
  }
  for (const auto& [source, n] : n_judged) {
    out.wrapped(fmt::format("  {} from: {}",
                            plural(static_cast<size_t>(n), "gate"),
                            source.empty() ? "no source given" : printable(source)),
                "    ");
  }
}

// By how much for the worse.
double worsening(const Drift& drift) {
  const auto kind = figure_kind(drift.key.figure);
  return kind && !kind->more_is_better ? drift.change : -drift.change;
}

void add_drift(Lines& out, const Acceptance& acceptance) {
  if (acceptance.drift.empty()) return;
  std::vector<Drift> beyond;
  std::copy_if(acceptance.drift.begin(),
               acceptance.drift.end(),
               std::back_inserter(beyond),
               [](const Drift& drift) { return drift.beyond_spread; });
  std::stable_sort(beyond.begin(), beyond.end(), [](const Drift& a, const Drift& b) {
    return worsening(a) > worsening(b);
  });
  out.add("");
  out.wrapped(
      fmt::format("drift: {} of {} figures differ from the baseline by more than both spreads",
                  beyond.size(),
                  acceptance.drift.size()),
      "  ");
  constexpr size_t most = 12;
  for (size_t i = 0; i < std::min(most, beyond.size()); ++i) {
    const Drift& drift = beyond[i];
    out.wrapped(fmt::format("  {} {}: {} -> {} ({:+.1f} %, {})",
                            printable(key_text(drift.key)),
                            printable(place_text(acceptance, drift.ranks)),
                            number(drift.before),
                            number(drift.now),
                            drift.change * 100.0,
                            worsening(drift) > 0.0 ? "worse" : "better"),
                "    ");
  }
  if (beyond.size() > most) out.add("  and {} more", beyond.size() - most);
}

}  // namespace

std::string to_table(const Acceptance& acceptance) {
  Lines out;
  add_heading(out, acceptance);
  add_counts(out, acceptance);
  for (const std::string& stage : stages_of(acceptance)) {
    const std::vector<CaseResult> cases = cases_of(acceptance, stage);
    if (cases.empty()) continue;
    out.add("");
    out.add("{}", printable(stage));
    if (std::any_of(
            cases.begin(), cases.end(), [](const CaseResult& c) { return !c.figures.empty(); })) {
      add_figure_header(out);
    }
    for (const CaseResult& result : cases) add_case(out, acceptance, result);
  }
  add_coverage(out, acceptance.coverage);
  add_sources(out, acceptance);
  add_drift(out, acceptance);
  return out.take();
}

// Its lines as those of a case.
std::string inside_table(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines += (lines.empty() ? "" : "\n      ") + printable(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace testbed
