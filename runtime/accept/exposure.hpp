// Exposure by injection: known delays are put before every all-reduce, on all ranks alike, and the
// slope of a step's time over the delay that was added to it is the fraction of an all-reduce that
// a step waits for: 1 where nothing is hidden behind computation, 0 where all is. No profiler takes
// part in it; the breakdown's own answer stands beside it. A device is idle when its delay begins,
// so computation that would go on beside an all-reduce is not seen: this program begins none.
#pragma once

#include <optional>
#include <span>

#include "parallel/mesh.hpp"
#include "runtime/measure/timeline.hpp"

namespace testbed {

struct DelayedStep {
  double delay_ms = 0.0;  // added to a step: the delay times the step's all-reduces
  double step_ms = 0.0;
};

struct ExposedFraction {
  static constexpr double confidence = 0.99;
  double value = 0.0;
  double low = 0.0;  // of the interval of that confidence
  double high = 0.0;
};

// Least squares without their weakness for the outliers of a busy machine: the median of the slopes
// of all pairs of different delay (Theil 1950), its interval from the distribution of Kendall's S
// (Sen 1968), which asks nothing of how the noise is distributed. nullopt if all delays are equal.
std::optional<ExposedFraction> exposed_fraction(std::span<const DelayedStep> steps);

// What the breakdown says of the same: of the time from when the last rank had come to a tp group's
// all-reduce until it was done, what stopped the ranks. Over all ranks; nullopt if the phase has no
// all-reduce.
std::optional<double> exposed_in_breakdown(std::span<const RankTimeline> timelines,
                                           const Mesh& mesh,
                                           Phase phase);

}  // namespace testbed
