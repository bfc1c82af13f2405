// What tensor parallelism sends, and how long a link's line rate takes for it.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed::plan {

// All-reduces over tp of one layer: after attention, and after the MLP or the experts; one more
// where these stand side by side (gemma4). Experts reached by all-to-all without shared ones need
// none: their slices are gathered.
int64_t all_reduces_of_layer(const ModelConfig& model, int64_t layer, bool experts_all_to_all);
int64_t all_gathers_of_layer(const ModelConfig& model, int64_t layer, bool experts_all_to_all);

// Payload of one layer's all-reduces in a forward pass over n_tokens, of a layer with two: each of
// [n_tokens, d_model].
int64_t all_reduce_bytes_per_layer(const ModelConfig& model, int64_t n_tokens, DType dtype);

// What a device sends in a ring all-reduce: 2 (n - 1) / n of n_bytes.
int64_t ring_all_reduce_wire_bytes(int64_t n_bytes, int n_devices);
// In a ring all-gather to n_bytes: (n - 1) / n of them.
int64_t ring_all_gather_wire_bytes(int64_t n_bytes, int n_devices);
// Bandwidth alone, without latency. bytes_per_s: one direction of a device's link.
double ring_all_reduce_seconds(int64_t n_bytes, int n_devices, double bytes_per_s);

}  // namespace testbed::plan
