// What tensor parallelism sends, and how long a link's line rate takes for it.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed::plan {

// Payload of one layer's all-reduces in a forward pass over n_tokens: two of [n_tokens, d_model].
int64_t all_reduce_bytes_per_layer(const ModelConfig& model, int64_t n_tokens, DType dtype);

// What a device sends in a ring all-reduce: 2 (n - 1) / n of n_bytes.
int64_t ring_all_reduce_wire_bytes(int64_t n_bytes, int n_devices);
// Bandwidth alone, without latency. bytes_per_s: one direction of a device's link.
double ring_all_reduce_seconds(int64_t n_bytes, int n_devices, double bytes_per_s);

}  // namespace testbed::plan
