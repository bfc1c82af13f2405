// What the decoding kernels share: which keys a block has, and how the states of its warps become a
// result, or one split's share of it.
#pragma once

#include "kernels/cuda/attention_code.cuh"

namespace testbed::cuda {

constexpr int state_warps = 4;
constexpr int state_threads = state_warps * warp_size;

// blockIdx.x = row * n_splits + split.
struct Split {
  int64_t row;  // of AttentionCall::rows
  int32_t index;
};
__device__ inline Split split_of_block(const AttentionCall& call) {
  const auto n = static_cast<unsigned>(call.n_splits);
  return {blockIdx.x / n, static_cast<int32_t>(blockIdx.x % n)};
}

struct KeyRange {
  int64_t first;
  int64_t end;
};
// Splits are whole steps of the kernel and at least min_keys_per_split, so late ones may be empty:
// there are as many as the longest context needs.
__device__ inline KeyRange keys_of_split(const AttentionCall& call,
                                         const AttentionRow& row,
                                         const Split& split,
                                         int32_t keys_per_step) {
  const int32_t n_keys = row.end_key - row.first_key;
  const int32_t n_steps = (n_keys + keys_per_step - 1) / keys_per_step;
  constexpr auto least = static_cast<int32_t>(min_keys_per_split);
  int32_t per_split = (n_steps + call.n_splits - 1) / call.n_splits * keys_per_step;
  if (call.n_splits > 1 && per_split < least) per_split = least;
  const int64_t first = row.first_key + int64_t{split.index} * per_split;
  return {first, first + per_split < row.end_key ? first + per_split : row.end_key};
}

// Of a split without keys nothing is read but its maximum. True if this block's is one.
__device__ inline bool is_empty_split(const AttentionCall& call,
                                      const HeadGroup& group,
                                      const Split& split,
                                      const KeyRange& keys,
                                      int64_t i_row,
                                      int32_t n_queries) {
  if (keys.first < keys.end || call.n_splits == 1) return false;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n_queries * group.n; i += blockDim.x) {
    const int64_t row = i_row + i / group.n;
    const int64_t at = row * call.n_heads + call.heads[group.first + i % group.n];
    float* stats = split_stats(call, at * call.n_splits + split.index);
    stats[0] = -INFINITY;
    stats[1] = 0.0F;
  }
  return true;
}

// The warps' states, in shared memory: outputs [state_warps, heads, padded_v], stats [state_warps,
// heads, 2].
template <int heads, int padded_v>
struct WarpStates {
  static constexpr int n_floats = state_warps * heads * (padded_v + 2);
  float* memory;
  __device__ float* out(int warp, int h) const { return memory + (warp * heads + h) * padded_v; }
  __device__ float* stats(int warp, int h) const {
    return memory + state_warps * heads * padded_v + (warp * heads + h) * 2;
  }
};

template <typename States>
__device__ void store_head(
    const AttentionCall& call, const States& states, int h, int32_t head, const Split& split) {
  float maximum = -INFINITY;
  for (int w = 0; w < state_warps; ++w) maximum = fmaxf(maximum, states.stats(w, h)[0]);
  float keep[state_warps];
  float sum = 0.0F;
  for (int w = 0; w < state_warps; ++w) {
    keep[w] = exp2f(states.stats(w, h)[0] - finite_maximum(maximum));
    sum += keep[w] * states.stats(w, h)[1];
  }
  const bool whole = call.n_splits == 1;
  const int64_t at = (whole ? call.rows[split.row].row : split.row) * int64_t{call.n_heads} + head;
  const int64_t at_split = at * call.n_splits + split.index;
  const float factor = whole ? row_factor(call, head, maximum, sum) : 1.0F;
  for (int d = static_cast<int>(threadIdx.x); d < call.kv.v_dim; d += state_threads) {
    float x = 0.0F;
    for (int w = 0; w < state_warps; ++w) x += keep[w] * states.out(w, h)[d];
    if (whole) {
      store_out(call, at * call.kv.v_dim + d, x * factor);
    } else {
      call.partial[at_split * call.kv.v_dim + d] = x;
    }
  }
  if (threadIdx.x != 0) return;
  if (whole) {
    store_lse(call, at, maximum, sum);
  } else {
    split_stats(call, at_split)[0] = maximum;
    split_stats(call, at_split)[1] = sum;
  }
}

}  // namespace testbed::cuda
