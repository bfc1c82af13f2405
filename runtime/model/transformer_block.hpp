// TransformerBlock: attention and MLP of one layer, sharded over tp. Reads ModelConfig; there is no
// class per family.
#pragma once

#include "parallel/linear.hpp"
#include "parallel/residual_stream.hpp"
#include "parallel/shard.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/config/rope.hpp"
#include "runtime/model/step_context.hpp"

namespace testbed {

// Attention with grouped KV heads over the paged cache; this rank's query heads and the KV heads
// they attend to.
struct Attention {
  ColumnParallelLinear wq;  // [n_heads_local * head_dim, d_model]
  ColumnParallelLinear wk;  // [n_kv_heads_local * head_dim, d_model]
  ColumnParallelLinear wv;
  RowParallelLinear wo;  // [d_model, n_heads_local * head_dim]
  Tensor q_norm;         // F32 [head_dim] or empty
  Tensor k_norm;
  HeadShard heads;
  int64_t head_dim = 0;
  int64_t window = 0;
  float norm_eps = 0.0F;

  // Partial sum [m, d_model] from the normed residual h [m, d_model]. No communication.
  TensorView forward(StepContext& context,
                     const RopeTable& rope,
                     int64_t layer,
                     TensorView h) const;
};

// down(silu(gate(h)) * up(h)).
struct GatedMlp {
  ColumnParallelLinear gate_up;  // [2 * d_ff_local, d_model]: gate rows, then up rows
  RowParallelLinear down;        // [d_model, d_ff_local]

  TensorView forward(StepContext& context, TensorView h) const;
};

class TransformerBlock {
 public:
  TransformerBlock(int64_t layer,
                   NormWeight attention_norm,
                   Attention attention,
                   NormWeight mlp_norm,
                   GatedMlp mlp)
      : layer_(layer),
        attention_norm_(std::move(attention_norm)),
        attention_(std::move(attention)),
        mlp_norm_(std::move(mlp_norm)),
        mlp_(std::move(mlp)) {}

  const NormWeight& input_norm() const { return attention_norm_; }

  // residual.normed() holds input_norm() of the residual on entry, and next_norm of it on return
  // (nullptr: the last block of a pipeline chunk). Two all-reduces of [m, d_model] over tp.
  void forward(StepContext& context,
               const RopeTable& rope,
               ResidualStream& residual,
               const NormWeight* next_norm) const;

 private:
  int64_t layer_;  // global index
  NormWeight attention_norm_;
  Attention attention_;
  NormWeight mlp_norm_;
  GatedMlp mlp_;
};

}  // namespace testbed
