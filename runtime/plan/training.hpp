// Training with Adam in mixed precision: memory, the ZeRO stages (Rajbhandari et al. 2020), FLOPs.
#pragma once

#include <cstdint>

namespace testbed::plan {

// Bytes per parameter: bf16 weight and gradient, f32 master weight and the two moments.
struct AdamBytes {
  int64_t weight = 2;
  int64_t gradient = 2;
  int64_t optimizer = 12;
  int64_t total() const { return weight + gradient + optimizer; }
};

// Bytes per parameter on one of n data-parallel devices. Stage 1 shards the optimizer, 2 also the
// gradients, 3 also the weights; 0 shards nothing.
double zero_bytes_per_parameter(int stage, int64_t n_devices);
// What n devices save against none; as n grows: 4 for stage 1, 8 for stage 2, n for stage 3.
double zero_saving(int stage, int64_t n_devices);
// Elements sent per parameter and step, as n grows: a reduce-scatter and an all-gather (2); stage 3
// gathers the weights once more (3).
int64_t zero_traffic_per_parameter(int stage);

// 2 for the forward pass and 4 for the backward pass; recomputing activations repeats the forward
// pass.
int64_t training_flops_per_token(int64_t n_parameters, bool recompute);

// All-reduces of [tokens, d_model] per layer over tp: two in the forward pass, two in the backward.
inline constexpr int64_t forward_all_reduces_per_layer = 2;
inline constexpr int64_t backward_all_reduces_per_layer = 2;

}  // namespace testbed::plan
