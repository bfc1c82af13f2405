#include "runtime/report/acceptance_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/accept/figures.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/report/table_parts.hpp"

namespace testbed::acceptance_report {

namespace {

std::string on_host(const Acceptance& acceptance, int rank) {
  const auto at = static_cast<size_t>(rank);
  return rank >= 0 && at < acceptance.hosts.size() ? acceptance.hosts[at] : "";
}

std::string with_unit(double value, const std::string& unit) {
  return figure_number(value) + (unit.empty() ? "" : " " + unit);
}

}  // namespace

bool more_is_better(const Figure& figure) {
  if (const auto kind = figure_kind(figure.key.figure)) return kind->more_is_better;
  return figure.unit.ends_with("/s");  // a rate; else a time
}

FigureSummary summary_of(const Figure& figure) {
  std::vector<double> finite;
  std::copy_if(
      figure.samples.begin(), figure.samples.end(), std::back_inserter(finite), [](double sample) {
        return std::isfinite(sample);
      });
  if (finite.empty()) return {};
  const Summary summary = summarise(finite);
  return {.median = summary.median,
          .worst = more_is_better(figure) ? summary.min : summary.max,
          .n = finite.size()};
}

std::string figure_number(const std::optional<double>& value) {
  const double size = value ? std::abs(*value) : 0.0;
  return size > 0.0 && size < 0.1 ? fmt::format("{:.2g}", *value) : table::number(value);
}

std::string limit_text(const Figure& figure) {
  return fmt::format("{} {}",
                     more_is_better(figure) ? ">=" : "<=",
                     with_unit(limit_of(*figure.gate), figure.unit));
}

std::string gate_text(const Figure& figure) {
  return fmt::format("{} {} ({} {} {})",
                     more_is_better(figure) ? ">=" : "<=",
                     figure_number(limit_of(*figure.gate)),
                     figure_number(figure.gate->expected),
                     more_is_better(figure) ? "-" : "+",
                     table::percent(figure.gate->tolerance));
}

std::string size_text(int64_t n_bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (n_bytes >= 1024 && n_bytes % 1024 == 0 && unit + 1 < std::size(units)) {
    n_bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", n_bytes, units[unit]);
}

std::string key_text(const FigureKey& key, std::string_view title) {
  std::vector<std::string> parts;
  const auto add = [&](std::string part) {
    if (title.find(part) == std::string_view::npos) parts.push_back(std::move(part));
  };
  if (key.op) add(*key.op);
  if (key.ranks) add(fmt::format("{} rank{}", *key.ranks, *key.ranks == 1 ? "" : "s"));
  if (key.bytes) add(size_text(*key.bytes));
  for (const auto* part : {&key.scope, &key.algorithm, &key.dtype, &key.model}) {
    if (part->has_value()) add(**part);
  }
  if (parts.empty()) return key.figure;
  return fmt::format("{} {}", key.figure, fmt::join(parts, ", "));
}

std::string place_text(const Acceptance& acceptance, const std::vector<int>& ranks) {
  if (ranks.empty()) return "all ranks";
  std::string text;
  for (const int rank : ranks) {
    const std::string host = on_host(acceptance, rank);
    text += fmt::format("{}rank {}", text.empty() ? "" : " - ", rank);
    if (!host.empty()) text += fmt::format(" ({})", host);
  }
  return text;
}

std::string device_place_text(const Acceptance& acceptance, const std::vector<int>& ranks) {
  std::string text = place_text(acceptance, ranks);
  if (ranks.size() != 1) return text;
  const auto at = static_cast<size_t>(ranks[0]);
  if (at >= acceptance.devices.size() || acceptance.devices[at].empty()) return text;
  if (text.ends_with(")")) {
    text.pop_back();
    return fmt::format("{}, {})", text, acceptance.devices[at]);
  }
  return fmt::format("{} ({})", text, acceptance.devices[at]);
}

std::string blame_text(const Acceptance& acceptance, const Blame& blame) {
  std::string text = blame_kind_name(blame.kind);
  switch (blame.kind) {
    case Blame::Kind::host:
      text += " " + (blame.host.empty() ? place_text(acceptance, blame.ranks) : blame.host);
      break;
    case Blame::Kind::rank:
      text = place_text(acceptance, blame.ranks);
      break;
    default:
      text += " of " + place_text(acceptance, blame.ranks);
  }
  return blame.what.empty() ? text : fmt::format("{}: {}", text, blame.what);
}

int count_of(const std::vector<CaseResult>& cases, CaseStatus status) {
  return static_cast<int>(std::count_if(
      cases.begin(), cases.end(), [&](const CaseResult& c) { return c.status == status; }));
}

std::vector<std::string> stages_of(const Acceptance& acceptance) {
  std::vector<std::string> stages;
  for (const CaseResult& result : acceptance.cases) {
    if (std::find(stages.begin(), stages.end(), result.stage) == stages.end()) {
      stages.push_back(result.stage);
    }
  }
  for (const auto& [stage, counts] : acceptance.coverage.cases) {  // of which nothing ran
    if (std::find(stages.begin(), stages.end(), stage) == stages.end()) stages.push_back(stage);
  }
  return stages;
}

std::vector<CaseResult> cases_of(const Acceptance& acceptance, std::string_view stage) {
  std::vector<CaseResult> cases;
  std::copy_if(acceptance.cases.begin(),
               acceptance.cases.end(),
               std::back_inserter(cases),
               [&](const CaseResult& result) { return result.stage == stage; });
  return cases;
}

bool too_flaky(const Acceptance& acceptance) {
  return count_of(acceptance.cases, CaseStatus::flaky) > acceptance.profile.flaky_allowed;
}

}  // namespace testbed::acceptance_report
