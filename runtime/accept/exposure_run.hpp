// Exposure by injection, carried out: generations with delays of several lengths before every
// all-reduce of the tp groups, in turns.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/accept/exposure.hpp"
#include "runtime/commands/rank_context.hpp"

namespace testbed {

struct ExposureOptions {
  int rounds = 3;        // of all delays
  int most_rounds = 12;  // while the interval is wider than `width`
  double width = 0.4;
  std::vector<int> levels = {1, 2, 3, 4};  // delays, in units of the shortest
};

struct ExposureRun {
  double all_reduces_per_step = 0.0;
  std::vector<int64_t> delays_us;  // [level]
  std::vector<DelayedStep> steps;  // [generation] a decode step: the median of the generation
};

// All ranks call it; rank 0's answer counts. n_all_reduces: of a decode step, on every rank. 0 is
// no level: what a sleep takes beyond what it was asked for is in all of them alike, and so not in
// the slope.
ExposureRun run_with_delays(const RankContext& context,
                            double n_all_reduces,
                            const ExposureOptions& options);

}  // namespace testbed
