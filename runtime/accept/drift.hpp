// How the figures of an acceptance moved since an earlier one (--baseline).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/accept/verdict.hpp"

namespace testbed {

// Why the one cannot be compared with the other: "is of 4 cpu ranks, this acceptance of 8 cpu
// ranks".
std::optional<std::string> refusal_of_baseline(const Acceptance& before, const Acceptance& now);

// What a reader of the drift has to know of the baseline: that it is of other hosts, devices or of
// another profile.
std::vector<std::string> baseline_labels(const Acceptance& before, const Acceptance& now);

// Of every figure that both have, by key and ranks, in the order of `now`. Beyond the spread is
// only what has one: two samples in both.
std::vector<Drift> drift_since(const Acceptance& before, const Acceptance& now);

}  // namespace testbed
