// What the reports of an acceptance are made of: how a figure is summed up, and how figures, places
// and what is blamed are called. Texts are as they came: a report escapes for its own format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/accept/verdict.hpp"

namespace testbed::acceptance_report {

// Of the samples that are finite; nullopt if there is none (n/a, never 0: D35).
struct FigureSummary {
  std::optional<double> median;
  std::optional<double> worst;
  size_t n = 0;
};
FigureSummary summary_of(const Figure& figure);
bool more_is_better(const Figure& figure);

// table::number, and of less than 0.1 two significant digits; "n/a" if there is none.
std::string figure_number(const std::optional<double>& value);
// Of a figure with a gate: ">= 3.8 GB/s".
std::string limit_text(const Figure& figure);
// ">= 3.80 (4.00 - 5 %)", in the unit of the figure.
std::string gate_text(const Figure& figure);

// "8 MiB", "1000 B": what is a whole number of a binary unit is shown in it.
std::string size_text(int64_t n_bytes);
// "collective.us all_reduce, 2 ranks, 8 MiB, ring"; less what a title beside it says already.
std::string key_text(const FigureKey& key, std::string_view title = "");

// "rank 0 (a)", "rank 0 (a) - rank 2 (b)"; "all ranks" of none.
std::string place_text(const Acceptance& acceptance, const std::vector<int>& ranks);
// place_text, with the device of a single rank: "rank 0 (a, NVIDIA H100)".
std::string device_place_text(const Acceptance& acceptance, const std::vector<int>& ranks);
// "device of rank 3 (b): reads 31 GB/s, its cohort 62"
std::string blame_text(const Acceptance& acceptance, const Blame& blame);

// How many cases ended so.
int count_of(const std::vector<CaseResult>& cases, CaseStatus status);
std::vector<std::string> stages_of(const Acceptance& acceptance);  // in the order in which they ran
std::vector<CaseResult> cases_of(const Acceptance& acceptance, std::string_view stage);
// More flaky cases than the profile allows: each counts as a failure then.
bool too_flaky(const Acceptance& acceptance);

}  // namespace testbed::acceptance_report
