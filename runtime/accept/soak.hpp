// Whether steps became slower over a soak.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace testbed {

struct StepDrift {
  double first_ms = 0.0;  // median of the first third of the time
  double last_ms = 0.0;   // of the last
  double change = 0.0;    // last / first - 1
  // Slower by more than the tolerance, and three quarters of the last third are slower than nine
  // tenths of the first: what the noise of a step does not explain.
  bool beyond_spread = false;
};

// step_ms: one figure per generation, in order of time. nullopt for fewer than nine: three in a
// third are the least that have a spread.
std::optional<StepDrift> step_drift(std::span<const double> step_ms, double tolerance);

// At most `most` medians of consecutive generations, which tell the same story.
std::vector<double> condensed(std::span<const double> step_ms, size_t most);

}  // namespace testbed
