// Names and shapes of a model's tensors.
#include "runtime/weights/tensor_names.hpp"

#include <fmt/format.h>

namespace testbed {

std::string layer_tensor_name(int64_t layer, std::string_view suffix) {
  return fmt::format("model.layers.{}.{}", layer, suffix);
}

std::vector<TensorSpec> layer_tensors(const ModelConfig& config, int64_t layer) {
  const int64_t q_rows = config.n_heads * config.head_dim;
  const int64_t kv_rows = config.n_kv_heads * config.head_dim;
  std::vector<TensorSpec> out;
  const auto norm = [&](std::string_view suffix, int64_t n) {
    out.push_back({layer_tensor_name(layer, suffix), Shape{n}, TensorKind::norm});
  };
  const auto linear = [&](std::string_view module, int64_t rows, int64_t cols, bool bias) {
    const std::string name = layer_tensor_name(layer, module);
    out.push_back({name + ".weight", Shape{rows, cols}, TensorKind::matrix});
    if (bias) out.push_back({name + ".bias", Shape{rows}, TensorKind::bias});
  };
  norm("input_layernorm.weight", config.d_model);
  linear("self_attn.q_proj", q_rows, config.d_model, config.qkv_bias);
  linear("self_attn.k_proj", kv_rows, config.d_model, config.qkv_bias);
  linear("self_attn.v_proj", kv_rows, config.d_model, config.qkv_bias);
  if (config.qk_norm) {
    norm("self_attn.q_norm.weight", config.head_dim);
    norm("self_attn.k_norm.weight", config.head_dim);
  }
  linear("self_attn.o_proj", config.d_model, q_rows, config.output_bias);
  norm("post_attention_layernorm.weight", config.d_model);
  linear("mlp.gate_proj", config.d_ff, config.d_model, config.mlp_bias);
  linear("mlp.up_proj", config.d_ff, config.d_model, config.mlp_bias);
  linear("mlp.down_proj", config.d_model, config.d_ff, config.mlp_bias);
  return out;
}

std::vector<TensorSpec> required_tensors(const ModelConfig& config) {
  const Shape table{config.vocab_size, config.d_model};
  std::vector<TensorSpec> out;
  out.push_back({std::string(embedding_name), table, TensorKind::matrix});
  for (int64_t layer = 0; layer < config.n_layers; ++layer)
    for (TensorSpec& spec : layer_tensors(config, layer)) out.push_back(std::move(spec));
  out.push_back({std::string(final_norm_name), Shape{config.d_model}, TensorKind::norm});
  if (!config.tied_embeddings) out.push_back({std::string(head_name), table, TensorKind::matrix});
  return out;
}

std::vector<std::string> tensor_names(const ModelConfig& config) {
  std::vector<std::string> names;
  for (TensorSpec& spec : required_tensors(config)) names.push_back(std::move(spec.name));
  return names;
}

}  // namespace testbed
