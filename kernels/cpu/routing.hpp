// The router's choice, on the host: logits to experts and weights. Arithmetic in f32; the result
// depends on the row alone.
#pragma once

#include "kernels/base/routing.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace testbed::cpu {

// logits F32 [m, n_experts]; ids I32, weights F32 [m, top_k], sorted by weight, descending; ties,
// of the choice and of the order, to the lowest id. A row with NaN gets NaN weights and valid ids.
void route(TensorView logits,
           const RoutingParams& params,
           TensorView ids,
           TensorView weights,
           ThreadPool& pool);

}  // namespace testbed::cpu
