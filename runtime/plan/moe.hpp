// Experts that a batch touches, when each token is routed to k of E experts uniformly and
// independently.
#pragma once

#include <cstdint>

namespace testbed::plan {

// E (1 - (1 - k/E)^B): the expected number of distinct experts that B tokens read.
double expected_experts(int64_t n_experts, int64_t top_k, double n_tokens);

// A model of which `always` bytes are read by every token and `per_expert` bytes by the tokens of
// one expert (summed over layers).
double moe_weight_bytes(
    double always, double per_expert, int64_t n_experts, int64_t top_k, double n_tokens);

}  // namespace testbed::plan
