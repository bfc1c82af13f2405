// From which batch decode is bound by arithmetic, its KV cache included: the cache is read once per
// sequence, so it grows with the batch as the FLOPs do, and sets a limit to the intensity.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/step_roofline.hpp"

namespace testbed::plan {

// One decode pass in which every sequence gives one token. Weights and KV are what is read;
// activations are left out, as in docs/metrics.md's roofline.
struct DecodePass {
  double weight_bytes = 0.0;  // once per pass, whatever the batch
  double expert_bytes = 0.0;  // of all experts; a batch reads those that it touches (moe.hpp)
  int64_t n_experts = 1;
  int64_t top_k = 1;
  double flops_per_sequence = 0.0;  // matrices and attention
  double kv_bytes_per_sequence = 0.0;

  double weights_read(double batch) const;
  double bytes(double batch) const { return weights_read(batch) + batch * kv_bytes_per_sequence; }
  double intensity(double batch) const { return batch * flops_per_sequence / bytes(batch); }
  // Of an endless batch, FLOP/byte; infinite without a cache.
  double intensity_limit() const { return flops_per_sequence / kv_bytes_per_sequence; }
  double tokens_per_s(double batch, const Roof& roof) const {
    return batch / roof.seconds(batch * flops_per_sequence, bytes(batch));
  }
};

// Of the whole model on one device. The embedding table is not read.
DecodePass decode_pass(const ModelConfig& model, int64_t context, const StepFormats& formats);

// B*: the batch at which intensity(B) = ridge; nullopt: never, the cache grows faster.
std::optional<double> compute_bound_batch(const DecodePass& pass, double ridge);

// The longest context at which there is a B*; 0: none; nullopt: at every context. pass_at must lose
// intensity_limit() as the context grows.
std::optional<int64_t> context_limit(const std::function<DecodePass(int64_t)>& pass_at,
                                     double ridge);

// The same model with another cache, at the same context.
struct BatchLimit {
  std::string change;  // "as it is", "fp8 KV cache", ...
  double kv_bytes_per_sequence = 0.0;
  double intensity_limit = 0.0;  // FLOP/byte
  std::optional<double> batch;   // B*
  std::optional<int64_t> context_limit;
};

// The first is the model as it is; the others are what would raise the limit, where it has not got
// that already.
std::vector<BatchLimit> batch_limits(const ModelConfig& model,
                                     int64_t context,
                                     const StepFormats& formats,
                                     double ridge);

}  // namespace testbed::plan
