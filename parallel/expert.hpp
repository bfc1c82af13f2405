// Expert parallelism: a layer's experts, whole on the ranks of an expert group or each sharded over
// tp, and the two ways in which tokens meet them.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/index_range.hpp"
#include "kernels/device.hpp"
#include "kernels/workspace.hpp"
#include "parallel/comm/communicator.hpp"

namespace testbed {

// What the router said of m rows, on the host.
struct RoutedRows {
  std::span<const int32_t> ids;    // [m, top_k]
  std::span<const float> weights;  // [m, top_k]
  // [m] rows that another rank has, too, and that count there for MFU; empty: none.
  std::span<const uint8_t> copies = {};
};

// The experts that one rank holds: all, each cut over tp (ep = 1), or its share of whole ones.
struct LocalExperts {
  IndexRange held;                    // global ids
  std::vector<WeightMatrix> gate_up;  // [held] of [2 * d_ff_local, d_model]
  std::vector<WeightMatrix> down;     // [held] of [d_model, d_ff_local]
  Tensor gate_up_bias;                // F32 [held, 2 * d_ff_local] or empty
  Tensor down_bias;                   // F32 [held, d_model] or empty: once per sum over ranks
  Activation activation = Activation::silu;
  int64_t top_k = 1;  // experts of a token

  // out[t, :] = sum over the chosen experts held here of weight * expert(x[t, :]). x, out [m,
  // d_model]. Ids not held are left out.
  void forward(Device& device,
               Workspace& workspace,
               TensorView x,
               const RoutedRows& routed,
               TensorView out) const;
};

// What all-to-all moved from this rank, by rank of the group, its own rows included.
struct ExchangeBytes {
  std::vector<int64_t> sent;  // [ep] dispatch, combine and routing
};

// The ranks that share the experts: rows of tensors on the device, and what the host plans by.
struct ExpertGroup {
  Communicator& rows;
  Communicator& host;
};

// Experts over an expert group with tokens exchanged: each rank brings a slice of tokens x [m,
// d_model]; a token is sent once to each rank that holds any of its experts, and comes back as one
// weighted sum per such rank. out [m, d_model] is complete.
// Per call: one all-gather of counts, one all-to-all of routing, two of rows [*, d_model].
ExchangeBytes exchange_with_experts(Device& device,
                                    const ExpertGroup& ep,
                                    Workspace& workspace,
                                    const LocalExperts& experts,
                                    int64_t n_experts,
                                    TensorView x,
                                    const RoutedRows& routed,
                                    TensorView out);

// Experts of a rank of the group: split_range, so that uneven counts differ by one at most.
IndexRange experts_of_rank(int64_t n_experts, int ep, int ep_rank);

}  // namespace testbed
