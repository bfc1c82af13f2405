// The best split of a cluster, and the splits of which none is better in both respects.
#pragma once

#include <optional>
#include <vector>

#include "runtime/config/commands.hpp"
#include "runtime/sweep/sweep_result.hpp"

namespace testbed {

// What a split offers: low TPOT to a user, many tokens per GPU to its owner. Both are of decode
// steps: the TPOT of a run also holds what prefill steps delay its first tokens by.
struct Offer {
  size_t result = 0;  // which of the results
  double tpot_ms = 0.0;
  double tokens_per_s_per_device = 0.0;  // decode
};

// The offers of one cluster and workload.
struct BestSplit {
  Offer best;
  std::vector<Offer> pareto;  // by rising TPOT; each has more tokens per GPU than the one before
};

// Those of results[] on which none improves in one figure without losing in the other.
std::vector<Offer> pareto_front(std::vector<Offer> offers);

// One for every cluster and workload of which any point ran. Ties in the objective are decided by
// the other figure.
std::vector<BestSplit> find_best(const std::vector<SweepResult>& results, SweepConfig::Best best);

}  // namespace testbed
