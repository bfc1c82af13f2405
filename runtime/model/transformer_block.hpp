// TransformerBlock: attention and MLP of one layer, sharded over tp, cp and ep. Reads what the
// loader made of ModelConfig; there is no class per family.
#pragma once

#include <optional>
#include <variant>

#include "runtime/model/attention.hpp"
#include "runtime/model/experts.hpp"
#include "runtime/model/latent_attention.hpp"

namespace testbed {

// Rotary tables of a model: window layers may have their own (gemma3, gemma4).
struct RopeTables {
  RopeTable full;
  RopeTable window;
};

// residual += post_norm(projection(activation(gate(residual)) * inputs of the layer)) (gemma4). Its
// weights are small and held by every tp rank.
struct PerLayerInput {
  ReplicatedLinear gate;        // [dim, d_model]
  ReplicatedLinear projection;  // [d_model, dim]
  NormWeight post_norm;
  Activation activation = Activation::gelu_tanh;
  int64_t dim = 0;
};

// The norms of a layer; those that a family does not have are empty.
struct BlockNorms {
  NormWeight input;
  std::optional<NormWeight> post_attention;  // of attention's sum, before it is added (gemma)
  NormWeight mlp;                            // before the MLP
  std::optional<NormWeight> post_mlp;
  // Where a dense MLP and experts stand side by side (gemma4): before the experts, and of each sum.
  std::optional<NormWeight> experts;
  std::optional<NormWeight> post_dense;
  std::optional<NormWeight> post_experts;
};

struct TransformerBlock {
  int64_t layer = 0;  // global index
  LayerShape shape;
  BlockNorms norms;
  std::variant<Attention, LatentAttention> attention;
  std::optional<GatedMlp> mlp;
  std::optional<MoeMlp> moe;
  std::optional<PerLayerInput> per_layer_input;
  std::optional<float> output_scale;  // layer_scalar (gemma4)

  // residual.normed() holds norms.input of the residual on entry, and next_norm of it on return
  // (nullptr: the last block of a pipeline chunk). Two reductions of [m, d_model] over tp; three
  // where a dense MLP and experts stand side by side.
  void forward(StepContext& context,
               const RopeTables& rope,
               ResidualStream& residual,
               const NormWeight* next_norm) const;

 private:
  void attend(StepContext& context, const RopeTables& rope, ResidualStream& residual) const;
  TensorView mlp_sum(StepContext& context, ResidualStream& residual) const;
  TensorView side_by_side(StepContext& context, ResidualStream& residual) const;
  void add_per_layer_input(StepContext& context, ResidualStream& residual) const;
  bool changes_after_mlp() const { return per_layer_input || output_scale; }
};

}  // namespace testbed
