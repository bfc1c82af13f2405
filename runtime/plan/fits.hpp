// What fits: weights, cache and users on the devices of a split.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/step_roofline.hpp"

namespace testbed::plan {

// Weights that a rank holds, vectors in F32 as the loader keeps them; MLA's expansion in the two
// forms that prompts and decoding multiply by.
int64_t resident_weight_bytes(const ModelConfig& model,
                              const ShardPosition& position,
                              const NumberFormat& format);

// Cards for n_bytes, if they could be cut anywhere.
int64_t cards_needed(double n_bytes, double memory_bytes);

inline constexpr std::array<int64_t, 3> user_contexts = {8 << 10, 32 << 10, 128 << 10};

// Of the fullest device of a split.
struct Fit {
  Split split;
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token = 0;  // on the cp rank that keeps the token
  // Of one conversation at user_contexts: windows clipped, split over cp.
  std::array<int64_t, user_contexts.size()> kv_bytes{};
  int64_t free_bytes = 0;  // after the weights; negative: they do not fit
  std::array<int64_t, user_contexts.size()> users{};  // whole conversations at user_contexts
};

// Conversations of `context` tokens that the split holds at once beside the weights.
int64_t users_of(const ModelConfig& model,
                 const Split& split,
                 const StepFormats& formats,
                 int64_t memory_bytes,
                 int64_t context);

Fit fit_of(const ModelConfig& model,
           const Split& split,
           const StepFormats& formats,
           int64_t memory_bytes);

// Every legal tp of the split on up to max_devices.
std::vector<Fit> fits_by_tp(const ModelConfig& model,
                            const Split& split,
                            int max_devices,
                            const StepFormats& formats,
                            int64_t memory_bytes);

}  // namespace testbed::plan
