// Holds figures against the profile: every size by itself, never an average over sizes (D33).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/accept/acceptance_profile.hpp"
#include "runtime/accept/case.hpp"

namespace testbed {

// Every field that the expectation's key sets is equal in the other.
bool covers(const FigureKey& expected, const FigureKey& key);
bool more_is_better(const FigureKey& key);  // of a known figure
// What is still good enough: expected * (1 -+ tolerance).
double limit_of(const Expectation& expectation);

// The expectation for exactly this key: every field that it sets must be equal. Of several the one
// that sets most fields, of those the first.
std::optional<Expectation> expectation_for(const AcceptanceProfile& profile, const FigureKey& key);

// Whether the case may measure the figure that is expected: nothing known of it says otherwise.
// any_size: or would if it measured other sizes.
bool may_meet(const PlannedCase& planned, const Expectation& expectation, bool any_size = false);

// A figure of these samples (not empty), judged by its median against the profile's expectation if
// there is one.
Figure judged(const AcceptanceProfile& profile,
              FigureKey key,
              std::vector<double> samples,
              std::vector<int> ranks = {});

// Failed if a figure is, with a reason that names figure, size, value and gate of the worst: as a
// note where the result has failed already.
void judge(CaseResult& result);

// Indices whose value is further from the median than max(median absolute deviation,
// tolerance * median) on the worse side; fewer than three values have no cohort.
std::vector<size_t> outliers(std::span<const double> values, double tolerance, bool more_is_better);

}  // namespace testbed
