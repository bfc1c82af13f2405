// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): the cache holds one latent and one
// rotated key per token, replicated over tp; heads are split. A prompt's keys and values are
// expanded from the latents; decoding absorbs the expansion into the query and the output, so that
// it reads the latents once and no more.
#pragma once

#include <optional>
#include <vector>

#include "parallel/linear.hpp"
#include "parallel/residual_stream.hpp"
#include "parallel/shard.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/config/rope.hpp"
#include "runtime/model/step_context.hpp"

namespace testbed {

struct LatentAttention {
  std::optional<ReplicatedLinear> wq_a;  // [q_lora_rank, d_model]
  NormWeight q_a_norm;
  ColumnParallelLinear wq;  // [n_heads_local * qk_dim, q_lora_rank or d_model]
  ReplicatedLinear wkv_a;   // [kv_lora_rank + rope_dim, d_model]
  NormWeight kv_a_norm;     // [kv_lora_rank]
  WeightMatrix wkv_b;       // [n_heads_local * (nope_dim + v_dim), kv_lora_rank]
  std::vector<WeightMatrix>
      absorb_k;  // [n_heads_local] of [kv_lora_rank, nope_dim]: K's, transposed
  std::vector<WeightMatrix> absorb_v;  // [n_heads_local] of [v_dim, kv_lora_rank]
  RowParallelLinear wo;                // [d_model, n_heads_local * v_dim]
  IndexRange heads;
  MlaConfig mla;
  float scale = 1.0F;

  // Partial sum [m, d_model] from the normed residual h [m, d_model]. Communicates over cp only.
  void forward(StepContext& context,
               const RopeTable& rope,
               int64_t layer,
               TensorView h,
               TensorView partial) const;

 private:
  TensorView queries(StepContext& context, const RopeTable& rope, TensorView h) const;
  void write_latents(StepContext& context,
                     const RopeTable& rope,
                     int64_t layer,
                     TensorView h) const;
  void attend_absorbed(StepContext& context, int64_t layer, TensorView q, TensorView out) const;
  void attend_expanded(StepContext& context, int64_t layer, TensorView q, TensorView out) const;
};

}  // namespace testbed
