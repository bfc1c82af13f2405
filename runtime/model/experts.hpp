// The MLPs of a layer: dense, or a mixture of experts behind a router, or both side by side.
#pragma once

#include <optional>

#include "parallel/expert.hpp"
#include "parallel/linear.hpp"
#include "parallel/residual_stream.hpp"
#include "runtime/model/step_context.hpp"

namespace testbed {

// down(activation(gate(h), up(h))).
struct GatedMlp {
  ColumnParallelLinear gate_up;  // [2 * d_ff_local, d_model]: gate rows, then up rows
  RowParallelLinear down;        // [d_model, d_ff_local]
  Activation activation = Activation::silu;

  // Partial sum [m, d_model].
  void forward(StepContext& context, TensorView h, TensorView partial) const;
};

struct Router {
  ReplicatedLinear gate;                 // [n_experts, d_model]
  std::optional<NormWeight> input_norm;  // gemma4: of the raw residual, which it then sees
  Tensor selection_bias;                 // F32 [n_experts] or empty
  Tensor expert_scale;                   // F32 [n_experts] or empty
  RoutingRule rule;
  int64_t n_experts = 0;
};

struct MoeMlp {
  Router router;
  LocalExperts experts;
  std::optional<GatedMlp> shared;  // experts that every token takes, cut over tp
  bool all_to_all = false;  // tokens travel to experts; else ranks sum what their own give to
                            // tokens that all of them have

  // The held rows of the sum over the chosen (and shared) experts of x [m, d_model]. routed_by:
  // what the router sees. One reduction over tp of [m, d_model]; with all-to-all and no shared
  // expert an all-gather of it instead, and the exchange over ep.
  TensorView forward(StepContext& context,
                     int64_t layer,
                     ResidualStream& residual,
                     TensorView routed_by,
                     TensorView x) const;

 private:
  TensorView exchange(StepContext& context,
                      ResidualStream& residual,
                      const Tensor& ids,
                      const Tensor& weights,
                      const std::vector<uint8_t>& copies,
                      TensorView x) const;
  void report(StepContext& context, const Tensor& ids, const ExchangeBytes& bytes) const;
};

}  // namespace testbed
