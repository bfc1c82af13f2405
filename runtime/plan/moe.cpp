#include "runtime/plan/moe.hpp"

#include <algorithm>
#include <cmath>

#include "parallel/expert.hpp"
#include "parallel/shard.hpp"

namespace testbed::plan {

double moe_weight_bytes(
    double always, double per_expert, int64_t n_experts, int64_t top_k, double n_tokens) {
  return always + per_expert * expected_experts(n_experts, top_k, n_tokens);
}

double chance_of_any(int64_t n_experts, int64_t n, int64_t top_k) {
  double none = 1.0;
  for (int64_t i = 0; i < top_k; ++i) {
    none *= static_cast<double>(std::max<int64_t>(0, n_experts - n - i)) /
            static_cast<double>(n_experts - i);
  }
  return 1.0 - none;
}

ExpertLoad expert_load(
    int64_t n_experts, int64_t top_k, int ep, int ep_rank, const GroupTokens& tokens) {
  const auto share = [&](int64_t n) { return split_range(n, ep, ep_rank).size(); };
  const auto chance = [&](int rank) {
    return chance_of_any(n_experts, experts_of_rank(n_experts, ep, rank).size(), top_k);
  };
  const int64_t n_touched =
      std::llround(expected_experts(n_experts, top_k, static_cast<double>(tokens.n_distinct)));
  // Copies of a token go where it goes.
  const double copies = tokens.n_distinct == 0 ? 0.0
                                               : static_cast<double>(tokens.n_rows) /
                                                     static_cast<double>(tokens.n_distinct);
  const auto n_distinct_pairs = static_cast<double>(share(tokens.n_distinct * top_k));
  ExpertLoad load{.n_pairs = std::llround(copies * n_distinct_pairs)};
  // Shares of two rounded sums: rows have an expert, and no expert is without rows.
  const int64_t most = std::min(experts_of_rank(n_experts, ep, ep_rank).size(), load.n_pairs);
  load.n_touched = std::clamp<int64_t>(share(n_touched), std::min<int64_t>(1, most), most);
  double n_destinations = 0.0;
  for (int rank = 0; rank < ep; ++rank) n_destinations += chance(rank);
  load.n_sent = std::llround(static_cast<double>(tokens.n_mine) * n_destinations);
  load.n_received = std::llround(static_cast<double>(tokens.n_rows) * chance(ep_rank));
  return load;
}

}  // namespace testbed::plan
