// The tensors a ModelConfig consists of, by their canonical names: those of Hugging Face, with one
// spelling for what its families spell differently. Random weights, validation and the model loader
// all go by this list; how a checkpoint spells and lays out a tensor: checkpoint_names.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/tensor.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed {

// scale: multiplies (layer_scalar, the router's scales). bias: adds, attention sinks included.
enum class TensorKind : uint8_t { matrix, norm, scale, bias };

struct TensorSpec {
  std::string name;
  Shape shape;  // matrix: [rows (output), cols (input)]; the others: [n]
  TensorKind kind = TensorKind::matrix;
};

inline constexpr std::string_view embedding_name = "model.embed_tokens.weight";
inline constexpr std::string_view final_norm_name = "model.norm.weight";
inline constexpr std::string_view head_name = "lm_head.weight";
// Per-layer inputs (gemma4): one embedding and one projection for the layers together.
inline constexpr std::string_view per_layer_embedding_name = "model.embed_tokens_per_layer.weight";
inline constexpr std::string_view per_layer_model_projection_name =
    "model.per_layer_model_projection.weight";
inline constexpr std::string_view per_layer_projection_norm_name =
    "model.per_layer_projection_norm.weight";

// "model.layers.3.self_attn.q_proj.weight" for (3, "self_attn.q_proj.weight").
std::string layer_tensor_name(int64_t layer, std::string_view suffix);

// Of one layer, in the order of the forward pass.
std::vector<TensorSpec> layer_tensors(const ModelConfig& config, int64_t layer);

// Of the whole model: embeddings, layers, final norm, head (absent if tied).
std::vector<TensorSpec> required_tensors(const ModelConfig& config);
std::vector<std::string> tensor_names(const ModelConfig& config);

}  // namespace testbed
