// Context parallelism: attention over a sequence whose cached blocks are spread over a cp group.
// Ring attention (Liu et al. 2023, arXiv:2310.01889): blocks rotate by async send and receive while
// the attention of the blocks at hand is computed; partial results merge by log-sum-exp in f32.
#pragma once

#include <functional>
#include <span>

#include "kernels/device.hpp"
#include "kernels/workspace.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/ring_plan.hpp"

namespace testbed {

// Partial attention of this rank's rows over the blocks of `kv`: out F32 [m, n_heads, v_dim], lse
// F32 [m, n_heads].
using PartialAttention = std::function<void(const KvView& kv,
                                            std::span<const AttentionSequence> sequences,
                                            TensorView out,
                                            TensorView lse)>;

// What merges at the end: [m, n_heads, v_dim] in the compute dtype, and the sinks that then count.
struct AttentionResult {
  TensorView out;
  TensorView sinks;  // F32 [n_heads] or empty
};

class ContextParallelAttention {
 public:
  // on_step(s) is called when step s of a ring begins, and with -1 after the last: the timeline is
  // told where it is.
  ContextParallelAttention(Device& device,
                           Communicator& cp,
                           Workspace& workspace,
                           std::function<void(int)> on_step)
      : device_(device), cp_(cp), workspace_(workspace), on_step_(std::move(on_step)) {}

  // Rows are split over the group. cp messages of whole blocks to the next rank, at most cp - 1.
  void ring(const RingPlan& plan,
            const KvView& cache,
            const PartialAttention& attend,
            const AttentionResult& result);

  // Every rank has all m rows and a part of the cache. One all-gather over cp of F32
  // [m, n_heads, v_dim + 1] per rank; merged in rank order, so that all ranks hold the same bits.
  void merge(const KvView& cache,
             std::span<const AttentionSequence> sequences,
             const PartialAttention& attend,
             const AttentionResult& result);

 private:
  Device& device_;
  Communicator& cp_;
  Workspace& workspace_;
  std::function<void(int)> on_step_;
};

}  // namespace testbed
