// What a step computes, without how it is split.
#pragma once

#include <cstdint>

namespace testbed::plan {

// Tokens of a block of the KV cache, as in a run without --kv-block.
inline constexpr int64_t kv_block_size = 16;

// A batch of equal sequences: each has n_cached tokens in the cache and adds n_new.
struct StepShape {
  int64_t batch = 1;
  int64_t n_new = 1;
  int64_t n_cached = 0;  // decode at context S: S - 1, and its own token is the S-th
  bool decode = false;   // rows are on every cp rank, MLA's projections are absorbed
  int64_t n_tokens() const { return batch * n_new; }
  int64_t context() const { return n_cached + n_new; }
};

inline StepShape decode_shape(int64_t batch, int64_t context) {
  return {.batch = batch, .n_new = 1, .n_cached = context - 1, .decode = true};
}
inline StepShape prefill_shape(int64_t batch, int64_t prompt_tokens) {
  return {.batch = batch, .n_new = prompt_tokens, .n_cached = 0, .decode = false};
}

}  // namespace testbed::plan
