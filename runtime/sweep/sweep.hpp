// A whole sweep, as the reports are given it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/config/commands.hpp"
#include "runtime/sweep/best.hpp"
#include "runtime/sweep/crossover.hpp"
#include "runtime/sweep/sweep_result.hpp"

namespace testbed {

struct Sweep {
  SweepConfig config;
  std::string model;
  int64_t n_layers = 0;
  std::map<std::string, std::string> descriptions;  // of the clusters, by the name given
  std::vector<SweepResult> results;                 // in the order of the points
  std::vector<Crossover> crossovers;                // empty with --best
  std::vector<BestSplit> best;                      // with --best
};

}  // namespace testbed
