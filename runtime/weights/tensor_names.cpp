// Names and shapes of a model's tensors.
#include "runtime/weights/tensor_names.hpp"

#include <fmt/format.h>

#include <utility>

namespace testbed {
namespace {

// Lists the tensors of one layer, step by step of its forward pass.
class LayerList {
 public:
  LayerList(const ModelConfig& config, int64_t layer)
      : config_(config),
        shape_(config.layer(layer)),
        owns_kv_(shape_.kv_layer == layer),
        prefix_(layer_tensor_name(layer, "")) {}

  std::vector<TensorSpec> run() && {
    if (shape_.has_experts) out_.reserve(static_cast<size_t>(32 + 6 * config_.moe->n_experts));
    norm("input_layernorm", config_.d_model);
    if (config_.mla)
      latent_attention(*config_.mla);
    else
      attention();
    norm("post_attention_layernorm", config_.d_model);
    if (config_.norms == NormPlacement::sandwich)
      norm("pre_feedforward_layernorm", config_.d_model);
    if (shape_.d_ff > 0) mlp("mlp", shape_.d_ff, config_.mlp_bias);
    if (shape_.has_experts) experts(*config_.moe);
    if (config_.norms == NormPlacement::sandwich)
      norm("post_feedforward_layernorm", config_.d_model);
    if (config_.per_layer_input) per_layer_input(config_.per_layer_input->dim);
    if (config_.layer_scalars) add("layer_scalar", Shape{1}, TensorKind::scale);
    return std::move(out_);
  }

 private:
  void add(std::string_view suffix, Shape shape, TensorKind kind) {
    out_.push_back({prefix_ + std::string(suffix), shape, kind});
  }
  void norm(std::string_view module, int64_t n) {
    add(std::string(module) + ".weight", Shape{n}, TensorKind::norm);
  }
  void linear(const std::string& module, int64_t rows, int64_t cols, bool bias) {
    add(module + ".weight", Shape{rows, cols}, TensorKind::matrix);
    if (bias) add(module + ".bias", Shape{rows}, TensorKind::bias);
  }
  void mlp(const std::string& module, int64_t d_ff, bool bias) {
    linear(module + ".gate_proj", d_ff, config_.d_model, bias);
    linear(module + ".up_proj", d_ff, config_.d_model, bias);
    linear(module + ".down_proj", config_.d_model, d_ff, bias);
  }

  // A layer that reads another's cache has neither keys nor values of its own.
  void attention() {
    const int64_t q_rows = config_.n_heads * shape_.head_dim;
    const bool own_values = owns_kv_ && !shape_.key_is_value;
    linear("self_attn.q_proj", q_rows, config_.d_model, config_.qkv_bias);
    if (owns_kv_)
      linear("self_attn.k_proj",
             shape_.n_kv_heads * shape_.head_dim,
             config_.d_model,
             config_.qkv_bias);
    if (own_values)
      linear(
          "self_attn.v_proj", shape_.n_kv_heads * shape_.v_dim, config_.d_model, config_.qkv_bias);
    if (config_.qk_norm) norm("self_attn.q_norm", shape_.head_dim);
    if (config_.qk_norm && owns_kv_) norm("self_attn.k_norm", shape_.head_dim);
    if (config_.attention_sinks) add("self_attn.sinks", Shape{config_.n_heads}, TensorKind::bias);
    output_projection();
  }

  void latent_attention(const MlaConfig& mla) {
    const int64_t q_rows = config_.n_heads * mla.qk_dim();
    if (mla.q_lora_rank == 0) {
      linear("self_attn.q_proj", q_rows, config_.d_model, false);
    } else {
      linear("self_attn.q_a_proj", mla.q_lora_rank, config_.d_model, false);
      norm("self_attn.q_a_layernorm", mla.q_lora_rank);
      linear("self_attn.q_b_proj", q_rows, mla.q_lora_rank, false);
    }
    linear("self_attn.kv_a_proj_with_mqa", mla.cached_dim(), config_.d_model, false);
    norm("self_attn.kv_a_layernorm", mla.kv_lora_rank);
    linear("self_attn.kv_b_proj",
           config_.n_heads * (mla.nope_dim + mla.v_dim),
           mla.kv_lora_rank,
           false);
    output_projection();
  }

  void output_projection() {
    linear(
        "self_attn.o_proj", config_.d_model, config_.n_heads * shape_.v_dim, config_.output_bias);
  }

  void experts(const MoeConfig& moe) {
    if (moe.beside_mlp) norm("post_feedforward_layernorm_1", config_.d_model);
    if (moe.beside_mlp) add("mlp.gate.input_scale", Shape{config_.d_model}, TensorKind::scale);
    linear("mlp.gate", moe.n_experts, config_.d_model, moe.router_bias);
    if (moe.selection_bias)
      add("mlp.gate.e_score_correction_bias", Shape{moe.n_experts}, TensorKind::bias);
    if (moe.beside_mlp) add("mlp.gate.expert_scale", Shape{moe.n_experts}, TensorKind::scale);
    if (moe.beside_mlp) norm("pre_feedforward_layernorm_2", config_.d_model);
    for (int64_t expert = 0; expert < moe.n_experts; ++expert)
      mlp(fmt::format("mlp.experts.{}", expert), moe.d_ff, moe.expert_bias);
    if (moe.shared_d_ff > 0) mlp("mlp.shared_experts", moe.shared_d_ff, false);
    if (moe.beside_mlp) norm("post_feedforward_layernorm_2", config_.d_model);
  }

  void per_layer_input(int64_t dim) {
    linear("per_layer_input_gate", dim, config_.d_model, false);
    linear("per_layer_projection", config_.d_model, dim, false);
    norm("post_per_layer_input_norm", config_.d_model);
  }

  const ModelConfig& config_;
  LayerShape shape_;
  bool owns_kv_;
  std::string prefix_;
  std::vector<TensorSpec> out_;
};

}  // namespace

std::string layer_tensor_name(int64_t layer, std::string_view suffix) {
  return fmt::format("model.layers.{}.{}", layer, suffix);
}

std::vector<TensorSpec> layer_tensors(const ModelConfig& config, int64_t layer) {
  return LayerList(config, layer).run();
}

std::vector<TensorSpec> required_tensors(const ModelConfig& config) {
  const Shape table{config.vocab_size, config.d_model};
  std::vector<TensorSpec> out;
  const auto add = [&](std::string_view name, Shape shape, TensorKind kind) {
    out.push_back({std::string(name), shape, kind});
  };
  add(embedding_name, table, TensorKind::matrix);
  if (const auto& inputs = config.per_layer_input) {
    const int64_t width = config.n_layers * inputs->dim;
    add(per_layer_embedding_name, Shape{inputs->vocab_size, width}, TensorKind::matrix);
    add(per_layer_model_projection_name, Shape{width, config.d_model}, TensorKind::matrix);
    add(per_layer_projection_norm_name, Shape{inputs->dim}, TensorKind::norm);
  }
  for (int64_t layer = 0; layer < config.n_layers; ++layer)
    for (TensorSpec& spec : layer_tensors(config, layer)) out.push_back(std::move(spec));
  add(final_norm_name, Shape{config.d_model}, TensorKind::norm);
  if (!config.tied_embeddings) add(head_name, table, TensorKind::matrix);
  return out;
}

std::vector<std::string> tensor_names(const ModelConfig& config) {
  std::vector<std::string> names;
  for (TensorSpec& spec : required_tensors(config)) names.push_back(std::move(spec.name));
  return names;
}

}  // namespace testbed
