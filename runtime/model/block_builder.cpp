#include "runtime/model/block_builder.hpp"

#include <cmath>

#include "parallel/expert.hpp"
#include "runtime/weights/tensor_names.hpp"

namespace testbed {
namespace {

IndexRange times(IndexRange range, int64_t factor) {
  return {range.begin * factor, range.end * factor};
}

}  // namespace

NormWeight BlockBuilder::norm(const std::string& name, int64_t n) {
  NormWeight weight{reader_.vector(name, all(n)), static_cast<float>(config_.norm_eps)};
  if (config_.norm_adds_one) reader_.adjust(weight.weight, 1.0F, 1.0F);
  return weight;
}

ReplicatedLinear BlockBuilder::replicated(WeightMatrix weight, const std::string& name, bool bias) {
  const int64_t n_rows = weight.n_rows();
  ReplicatedLinear linear(std::move(weight),
                          bias ? reader_.vector(name + ".bias", all(n_rows)) : Tensor{});
  if (position_.tp_rank != 0) linear.set_replica();
  return linear;
}

ReplicatedLinear BlockBuilder::replicated(const std::string& name,
                                          int64_t rows,
                                          int64_t cols,
                                          bool bias) {
  return replicated(reader_.matrix({{name + ".weight", all(rows), all(cols)}}), name, bias);
}

ColumnParallelLinear BlockBuilder::column_parallel(const std::string& name,
                                                   IndexRange rows,
                                                   int64_t n_cols,
                                                   bool bias) {
  return {reader_.matrix({{name + ".weight", rows, all(n_cols)}}),
          bias ? reader_.vector(name + ".bias", rows) : Tensor{}};
}

RowParallelLinear BlockBuilder::row_parallel(const std::string& name, IndexRange cols, bool bias) {
  return {reader_.matrix({{name + ".weight", all(config_.d_model), cols}}),
          bias && position_.tp_rank == 0 ? reader_.vector(name + ".bias", all(config_.d_model))
                                         : Tensor{}};
}

BlockNorms BlockBuilder::norms(const std::string& prefix, const LayerShape& shape) {
  BlockNorms norms;
  norms.input = model_norm(prefix + "input_layernorm.weight");
  if (config_.norms == NormPlacement::pre) {
    norms.mlp = model_norm(prefix + "post_attention_layernorm.weight");
    return norms;
  }
  norms.post_attention = model_norm(prefix + "post_attention_layernorm.weight");
  norms.mlp = model_norm(prefix + "pre_feedforward_layernorm.weight");
  norms.post_mlp = model_norm(prefix + "post_feedforward_layernorm.weight");
  if (shape.d_ff > 0 && shape.has_experts) {
    norms.experts = model_norm(prefix + "pre_feedforward_layernorm_2.weight");
    norms.post_dense = model_norm(prefix + "post_feedforward_layernorm_1.weight");
    norms.post_experts = model_norm(prefix + "post_feedforward_layernorm_2.weight");
  }
  return norms;
}

KeyValueProjection BlockBuilder::key_value(const std::string& prefix,
                                           const LayerShape& shape,
                                           const HeadShard& heads) {
  KeyValueProjection project;
  project.wk = column_parallel(
      prefix + "k_proj", times(heads.kv_heads, shape.head_dim), config_.d_model, config_.qkv_bias);
  if (!shape.key_is_value) {
    project.wv = column_parallel(
        prefix + "v_proj", times(heads.kv_heads, shape.v_dim), config_.d_model, config_.qkv_bias);
  }
  if (!heads.first_replica) {
    project.wk.set_replica();
    if (project.wv) project.wv->set_replica();
  }
  if (config_.qk_norm) project.k_norm = norm(prefix + "k_norm.weight", shape.head_dim).weight;
  project.norms_v = config_.v_norm;
  return project;
}

Attention BlockBuilder::attention(const std::string& prefix,
                                  int64_t layer,
                                  const LayerShape& shape) {
  Attention a;
  a.heads = heads_of_rank(shape, config_.n_heads, position_);
  a.shape = shape;
  a.scale = static_cast<float>(config_.scale_of_scores(layer));
  a.softcap = static_cast<float>(config_.attention_softcap.value_or(0.0));
  a.norm_eps = static_cast<float>(config_.norm_eps);
  a.wq = column_parallel(
      prefix + "q_proj", times(a.heads.heads, shape.head_dim), config_.d_model, config_.qkv_bias);
  if (shape.kv_layer == layer) a.key_value = key_value(prefix, shape, a.heads);
  a.wo = row_parallel(prefix + "o_proj", times(a.heads.heads, shape.v_dim), config_.output_bias);
  if (config_.qk_norm) a.q_norm = norm(prefix + "q_norm.weight", shape.head_dim).weight;
  if (config_.attention_sinks) a.sinks = reader_.vector(prefix + "sinks", a.heads.heads);
  return a;
}

// The expansion of the latent, once more in the two forms that decoding multiplies by.
void BlockBuilder::absorb(const std::string& name, LatentAttention& a) {
  const MlaConfig& mla = a.mla;
  constexpr const char* unquantised_name = "kv_b_proj";
  const int64_t both = mla.nope_dim + mla.v_dim;
  const IndexRange latent = all(mla.kv_lora_rank);
  a.wkv_b = reader_.plain_matrix({name, times(a.heads, both), latent}, unquantised_name);
  a.absorb_k.reserve(static_cast<size_t>(a.heads.size()));
  a.absorb_v.reserve(static_cast<size_t>(a.heads.size()));
  for (int64_t head = a.heads.begin; head < a.heads.end; ++head) {
    const int64_t first = head * both;
    a.absorb_k.push_back(reader_.transposed({name, {first, first + mla.nope_dim}, latent}));
    a.absorb_v.push_back(reader_.plain_matrix({name, {first + mla.nope_dim, first + both}, latent},
                                              unquantised_name));
  }
}

LatentAttention BlockBuilder::latent_attention(const std::string& prefix, int64_t layer) {
  LatentAttention a;
  a.mla = *config_.mla;
  a.heads = split_range(config_.n_heads, position_.tp, position_.tp_rank);
  a.scale = static_cast<float>(config_.scale_of_scores(layer));
  const IndexRange q = times(a.heads, a.mla.qk_dim());
  const auto latent_norm = [&](const std::string& name, int64_t n) {
    return NormWeight{reader_.vector(name, all(n)), static_cast<float>(a.mla.norm_eps)};
  };
  if (a.mla.q_lora_rank > 0) {
    a.wq_a = replicated(prefix + "q_a_proj", a.mla.q_lora_rank, config_.d_model, false);
    a.q_a_norm = latent_norm(prefix + "q_a_layernorm.weight", a.mla.q_lora_rank);
    a.wq = column_parallel(prefix + "q_b_proj", q, a.mla.q_lora_rank, false);
  } else {
    a.wq = column_parallel(prefix + "q_proj", q, config_.d_model, false);
  }
  a.wkv_a = replicated(prefix + "kv_a_proj_with_mqa", a.mla.cached_dim(), config_.d_model, false);
  a.kv_a_norm = latent_norm(prefix + "kv_a_layernorm.weight", a.mla.kv_lora_rank);
  absorb(prefix + "kv_b_proj.weight", a);
  a.wo = row_parallel(prefix + "o_proj", times(a.heads, a.mla.v_dim), config_.output_bias);
  return a;
}

IndexRange BlockBuilder::columns_of_rank(const std::string& name, int64_t n) const {
  return split_range(n, position_.tp, position_.tp_rank, reader_.column_granularity(name));
}

GatedMlp BlockBuilder::mlp(const std::string& prefix, int64_t d_ff, bool with_bias) {
  // Columns of the down projection are cut on quantisation blocks (D4), so gate and up are too.
  const IndexRange ff = columns_of_rank(prefix + "down_proj.weight", d_ff);
  Tensor bias;
  if (with_bias) {
    bias = reader_.vectors({prefix + "gate_proj.bias", prefix + "up_proj.bias"}, ff);
  }
  return {{reader_.matrix({{prefix + "gate_proj.weight", ff, all(config_.d_model)},
                           {prefix + "up_proj.weight", ff, all(config_.d_model)}}),
           std::move(bias)},
          row_parallel(prefix + "down_proj", ff, with_bias),
          config_.activation};
}

Router BlockBuilder::router(const std::string& prefix) {
  const MoeConfig& moe = *config_.moe;
  Router router;
  router.rule = moe.routing;
  router.n_experts = moe.n_experts;
  // The choice of experts is not worth its few bytes.
  router.gate = replicated(
      reader_.plain_matrix({prefix + "gate.weight", all(moe.n_experts), all(config_.d_model)},
                           "router gates"),
      prefix + "gate",
      moe.router_bias);
  if (moe.selection_bias) {
    router.selection_bias =
        reader_.vector(prefix + "gate.e_score_correction_bias", all(moe.n_experts));
  }
  if (moe.beside_mlp) {
    const auto d_model = static_cast<float>(config_.d_model);
    router.input_norm =
        NormWeight{reader_.vector(prefix + "gate.input_scale", all(config_.d_model)),
                   static_cast<float>(config_.norm_eps)};
    reader_.adjust(router.input_norm->weight, 1.0F / std::sqrt(d_model), 0.0F);
    router.expert_scale = reader_.vector(prefix + "gate.expert_scale", all(moe.n_experts));
  }
  return router;
}

// ep = 1: every expert, cut over tp like a dense MLP. ep > 1: this rank's experts, whole.
LocalExperts BlockBuilder::local_experts(const std::string& prefix) {
  const MoeConfig& moe = *config_.moe;
  const bool whole = position_.ep > 1;
  const IndexRange ff =
      whole ? all(moe.d_ff) : columns_of_rank(prefix + "experts.0.down_proj.weight", moe.d_ff);
  LocalExperts experts;
  experts.held = experts_of_rank(moe.n_experts, position_.ep, position_.ep_rank);
  experts.activation = config_.activation;
  experts.top_k = moe.routing.top_k;
  experts.gate_up.reserve(static_cast<size_t>(experts.held.size()));
  experts.down.reserve(static_cast<size_t>(experts.held.size()));
  std::vector<std::string> gate_up_biases;
  std::vector<std::string> down_biases;
  for (int64_t expert = experts.held.begin; expert < experts.held.end; ++expert) {
    const std::string name = prefix + "experts." + std::to_string(expert) + ".";
    experts.gate_up.push_back(
        reader_.matrix({{name + "gate_proj.weight", ff, all(config_.d_model)},
                        {name + "up_proj.weight", ff, all(config_.d_model)}}));
    experts.down.push_back(reader_.matrix({{name + "down_proj.weight", all(config_.d_model), ff}}));
    gate_up_biases.insert(gate_up_biases.end(), {name + "gate_proj.bias", name + "up_proj.bias"});
    down_biases.push_back(name +
                          "down_proj.bias");  // NOLINT(performance-inefficient-vector-operation)
  }
  if (moe.expert_bias) {
    experts.gate_up_bias = reader_.vectors(gate_up_biases, ff);
    if (whole || position_.tp_rank == 0) {
      experts.down_bias = reader_.vectors(down_biases, all(config_.d_model));
    }
  }
  return experts;
}

MoeMlp BlockBuilder::experts(const std::string& prefix) {
  MoeMlp moe{.router = router(prefix),
             .experts = local_experts(prefix),
             .shared = std::nullopt,
             .all_to_all = position_.experts_all_to_all};
  if (config_.moe->shared_d_ff > 0) {
    moe.shared = mlp(prefix + "shared_experts.", config_.moe->shared_d_ff, false);
  }
  return moe;
}

PerLayerInput BlockBuilder::per_layer_input(const std::string& prefix) {
  const int64_t dim = config_.per_layer_input->dim;
  return {.gate = replicated(prefix + "per_layer_input_gate", dim, config_.d_model, false),
          .projection = replicated(prefix + "per_layer_projection", config_.d_model, dim, false),
          .post_norm = model_norm(prefix + "post_per_layer_input_norm.weight"),
          .activation = config_.activation,
          .dim = dim};
}

TransformerBlock BlockBuilder::block(int64_t layer) {
  const std::string prefix = layer_tensor_name(layer, "");
  TransformerBlock block;
  block.layer = layer;
  block.shape = config_.layer(layer);
  block.norms = norms(prefix, block.shape);
  if (config_.mla) {
    block.attention = latent_attention(prefix + "self_attn.", layer);
  } else {
    block.attention = attention(prefix + "self_attn.", layer, block.shape);
  }
  if (block.shape.d_ff > 0) block.mlp = mlp(prefix + "mlp.", block.shape.d_ff, config_.mlp_bias);
  if (block.shape.has_experts) block.moe = experts(prefix + "mlp.");
  if (config_.per_layer_input) block.per_layer_input = per_layer_input(prefix);
  if (config_.layer_scalars) block.output_scale = reader_.scalar(prefix + "layer_scalar");
  return block;
}

}  // namespace testbed
