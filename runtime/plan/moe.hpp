// Experts that a batch touches, when each token is routed to k of E experts uniformly and
// independently.
#pragma once

#include <cstdint>

#include "kernels/base/routing.hpp"

namespace testbed::plan {

// A model of which `always` bytes are read by every token and `per_expert` bytes by the tokens of
// one expert (summed over layers).
double moe_weight_bytes(
    double always, double per_expert, int64_t n_experts, int64_t top_k, double n_tokens);

// 1 - C(E - n, k) / C(E, k): the probability that a token chooses any of n of the E experts.
double chance_of_any(int64_t n_experts, int64_t n, int64_t top_k);

// The tokens of an expert group.
struct GroupTokens {
  int64_t n_rows = 0;      // that its ranks bring
  int64_t n_distinct = 0;  // without copies
  int64_t n_mine = 0;      // that this rank brings
};

// One rank's part in one layer, in whole rows: what the group has of it, dealt evenly.
struct ExpertLoad {
  int64_t n_pairs = 0;    // rows that its experts compute
  int64_t n_touched = 0;  // of its experts
  int64_t n_sent = 0;     // rows to all ranks, its own among them: a token once for each rank
  int64_t n_received = 0;
};
ExpertLoad expert_load(
    int64_t n_experts, int64_t top_k, int ep, int ep_rank, const GroupTokens& tokens);

}  // namespace testbed::plan
