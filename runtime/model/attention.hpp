// Attention with grouped KV heads over the paged cache; this rank's query heads and the KV heads
// they attend to. Window, soft cap, sinks, q/k/v norms and shared caches are data.
#pragma once

#include <optional>

#include "parallel/linear.hpp"
#include "parallel/shard.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/config/rope.hpp"
#include "runtime/model/step_context.hpp"

namespace testbed {

// What attention looks at: the cache of a layer, and how scores are made of it.
struct AttentionView {
  int64_t kv_layer = 0;  // whose cache it reads
  int64_t window = 0;
  float scale = 1.0F;
  float softcap = 0.0F;
  TensorView sinks = {};  // F32 [n_heads_local] or empty
  int64_t model_dim = 0;  // AttentionParams::model_dim
};

// The keys and values that a layer writes; none if it reads another layer's.
struct KeyValueProjection {
  ColumnParallelLinear wk;                 // [n_kv_heads_local * head_dim, d_model]
  std::optional<ColumnParallelLinear> wv;  // nullopt: V is the raw output of wk
  Tensor k_norm;                           // F32 [head_dim] or empty
  bool norms_v = false;                    // by an RMSNorm without weights
};

struct Attention {
  ColumnParallelLinear wq;  // [n_heads_local * head_dim, d_model]
  std::optional<KeyValueProjection> key_value;
  RowParallelLinear wo;  // [d_model, n_heads_local * head_dim]
  Tensor q_norm;         // F32 [head_dim] or empty
  Tensor sinks;          // F32 [n_heads_local] or empty
  HeadShard heads;
  LayerShape shape;
  float scale = 1.0F;
  float softcap = 0.0F;
  float norm_eps = 0.0F;

  // Partial sum [m, d_model] from the normed residual h [m, d_model]. Communicates over cp only.
  void forward(StepContext& context,
               const RopeTable& rope,
               int64_t layer,
               TensorView h,
               TensorView partial) const;

 private:
  struct Projected {
    TensorView q;  // [m, n_heads_local, head_dim]
    TensorView k;  // [m, n_kv_heads_local, head_dim]
    TensorView v;  // [m, n_kv_heads_local, v_dim]
  };
  Projected project(StepContext& context, TensorView h) const;
  void write_keys(
      StepContext& context, const RopeTable& rope, int64_t layer, TensorView k, TensorView v) const;
};

// q [m, n_heads, head_dim] over the cached tokens of the layer, out [m, n_heads, v_dim]: on this
// rank alone, around the cp ring, or merged over cp, as the microbatch is placed.
void attend(StepContext& context,
            const AttentionView& view,
            std::span<const int32_t> head_to_kv,
            TensorView q,
            TensorView out);

RopeFrequencies frequencies_of(const RopeTable& rope);

}  // namespace testbed
