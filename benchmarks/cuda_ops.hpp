// The CUDA device's ops at the shapes that one rank of a model has, for bench_cuda_kernels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_device.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed::bench {

enum class Bound : uint8_t { memory, arithmetic };

struct BenchOp {
  std::string name;
  std::string shape;
  Bound bound = Bound::memory;
  // The call-th run: successive ones work on different memory. Nothing in it waits for the device.
  std::function<void(int64_t call)> run;
  // The same op through Device, which tells its CostSink what it costs, where run goes past it.
  std::function<void()> counted = {};
};

// What a rank holds of a layer's widths under tensor parallelism.
struct RankShape {
  int64_t d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab, n_experts, top_k;
};
RankShape rank_shape(const ModelConfig& model, int tp);

// batch sequences, each with the last n_rows of `context` tokens as rows.
struct StepShape {
  int64_t batch = 1;
  int64_t n_rows = 1;
  int64_t context = 0;
  int64_t rows() const { return batch * n_rows; }
  bool is_prefill() const { return n_rows > 1; }
};

struct RankBench {
  CudaDevice& device;
  const ModelConfig& model;
  RankShape shape;
  int64_t rotated_bytes;  // operands are rotated through so much memory, beyond the caches
};

// Matrix products of a layer and the head; of a mixture of experts also the experts' part. Weights
// are made here: ask once for all steps of a rank.
std::vector<std::vector<BenchOp>> product_ops(const RankBench& bench,
                                              const std::vector<StepShape>& steps);
// Over the cache: attention, writes, and what context parallelism adds.
std::vector<BenchOp> cache_ops(const RankBench& bench, const StepShape& step);
// Bound by memory, on rows and elements.
std::vector<BenchOp> row_ops(const RankBench& bench, const StepShape& step);
// Routing, dispatch and combination of tokens; none for a model without experts.
std::vector<BenchOp> routing_ops(const RankBench& bench, const StepShape& step);

}  // namespace testbed::bench
