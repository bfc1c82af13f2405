// What would run (--list), and what one case does (--explain).
#include <fmt/format.h>

#include <algorithm>

#include "runtime/accept/figures.hpp"
#include "runtime/accept/gates.hpp"
#include "runtime/report/acceptance_parts.hpp"
#include "runtime/report/acceptance_reports.hpp"
#include "runtime/report/table_parts.hpp"
#include "runtime/report/text.hpp"

namespace testbed {

namespace {

using namespace acceptance_report;
using table::Lines;
using table::number;

// "0.4 s", "95 s", "12 min", "3.1 h"
std::string duration(double seconds) {
  if (seconds >= 7200.0) return number(seconds / 3600.0) + " h";
  if (seconds >= 120.0) return number(seconds / 60.0) + " min";
  return number(seconds) + " s";
}

std::string title_of(const PlannedCase& planned) {
  return printable(planned.stage) + "/" + printable(planned.name);
}

void add_expectation(Lines& out, const Expectation& expectation) {
  Figure figure;
  figure.key = expectation.key;
  if (const auto kind = figure_kind(expectation.key.figure)) figure.unit = kind->unit;
  figure.gate = expectation;
  out.wrapped(
      fmt::format("    {}: {} {}; {} ({})",
                  printable(key_text(figure.key)),
                  gate_text(figure),
                  figure.unit,
                  expectation.source.empty() ? "no source given" : printable(expectation.source),
                  printable(expectation.where)),
      "      ");
}

}  // namespace

std::string to_list(const std::vector<PlannedCase>& planned) {
  Lines out;
  double total = 0.0;
  size_t n_skipped = 0;
  for (const PlannedCase& one : planned) {
    if (one.skip) {
      ++n_skipped;
      out.wrapped(fmt::format("{:>9}  {}: skipped: {}", "-", title_of(one), printable(*one.skip)),
                  "             ");
      continue;
    }
    total += one.estimated_s;
    out.add("{:>9}  {}", duration(one.estimated_s), title_of(one));
  }
  const size_t n_run = planned.size() - n_skipped;
  out.add("{:>9}  estimated for {} case{}{}",
          duration(total),
          n_run,
          n_run == 1 ? "" : "s",
          n_skipped > 0 ? fmt::format("; {} skipped", n_skipped) : "");
  return out.take();
}

std::string to_explanation(const PlannedCase& planned, const AcceptanceProfile& profile) {
  Lines out;
  out.add("{}", title_of(planned));
  out.wrapped("  " + printable(planned.explanation), "  ");
  out.add("  about {}, deadline {}", duration(planned.estimated_s), duration(planned.deadline_s));
  if (planned.skip) out.wrapped("  skipped: " + printable(*planned.skip), "    ");
  std::vector<Expectation> gates;
  std::copy_if(profile.expectations.begin(),
               profile.expectations.end(),
               std::back_inserter(gates),
               [&](const Expectation& expectation) { return may_meet(planned, expectation); });
  out.add("  profile {} ({})", printable(profile.name), printable(profile.source));
  if (gates.empty()) out.add("    has no gate for its figures: they are shown, not judged");
  for (const Expectation& gate : gates) add_expectation(out, gate);
  return out.take();
}

}  // namespace testbed
