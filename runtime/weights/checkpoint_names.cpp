// Spellings and layouts of checkpoints, by family where a name alone does not tell.
#include "runtime/weights/checkpoint_names.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

namespace testbed {
namespace {

constexpr std::string_view layers_prefix = "model.layers.";

struct Spelling {
  std::string_view canonical;  // after "model.layers.N."
  std::string_view stored;
};

constexpr std::array<Spelling, 6> router_spellings{{
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},  // mixtral
    {"mlp.gate.weight", "mlp.router.weight"},             // gpt_oss
    {"mlp.gate.bias", "mlp.router.bias"},
    {"mlp.gate.weight", "router.proj.weight"},  // gemma4
    {"mlp.gate.input_scale", "router.scale"},
    {"mlp.gate.expert_scale", "router.per_expert_scale"},
}};

// Of mixtral's experts, which are each stored on their own.
constexpr std::array<Spelling, 3> mixtral_projections{{
    {"gate_proj", "w1"},
    {"down_proj", "w2"},
    {"up_proj", "w3"},
}};

// {5, "gate_proj"} of "mlp.experts.5.gate_proj".
struct ExpertModule {
  int64_t expert = 0;
  std::string_view projection;
};

std::optional<ExpertModule> split_expert(std::string_view module) {
  constexpr std::string_view prefix = "mlp.experts.";
  if (!module.starts_with(prefix)) return std::nullopt;
  module.remove_prefix(prefix.size());
  ExpertModule out;
  const auto [end, error] =
      std::from_chars(module.data(), module.data() + module.size(), out.expert);
  if (error != std::errc{}) return std::nullopt;
  out.projection = module.substr(static_cast<size_t>(end - module.data()) + 1);
  return out;
}

// gpt_oss: [E, in, out] and biases [E, out]; gate and up are the even and odd outputs of one
// tensor.
StoredPlace gpt_oss_expert(const ModelConfig& config,
                           const LayerTensorName& name,
                           const ExpertModule& module) {
  const int64_t n_experts = config.moe->n_experts;
  const bool down = module.projection == "down_proj";
  const int64_t in = down ? config.moe->d_ff : config.d_model;
  const int64_t out = down ? config.d_model : 2 * config.moe->d_ff;
  const int64_t column = module.projection == "up_proj" ? 1 : 0;
  const std::string stored = layer_tensor_name(
      name.layer, fmt::format("mlp.experts.{}", down ? "down_proj" : "gate_up_proj"));
  const int64_t row_stride = down ? 1 : 2;
  if (name.leaf == "bias")
    return {stored + "_bias", {n_experts, out}, module.expert * out + column, row_stride, 1};
  return {stored, {n_experts, in, out}, module.expert * in * out + column, row_stride, out};
}

// gemma4: [E, out, in], the rows of up after those of gate.
StoredPlace gemma4_expert(const ModelConfig& config,
                          const LayerTensorName& name,
                          const ExpertModule& module) {
  const bool down = module.projection == "down_proj";
  const int64_t in = down ? config.moe->d_ff : config.d_model;
  const int64_t out = down ? config.d_model : 2 * config.moe->d_ff;
  const int64_t first_row = module.projection == "up_proj" ? config.moe->d_ff : 0;
  return {layer_tensor_name(name.layer, down ? "experts.down_proj" : "experts.gate_up_proj"),
          {config.moe->n_experts, out, in},
          (module.expert * out + first_row) * in,
          in,
          1};
}

std::optional<StoredPlace> expert_place(const ModelConfig& config,
                                        const LayerTensorName& name,
                                        const TensorSpec& spec) {
  const auto module = split_expert(name.module);
  if (!module) return std::nullopt;
  if (config.family == "gpt_oss") return gpt_oss_expert(config, name, *module);
  if (config.family == "gemma4") return gemma4_expert(config, name, *module);
  for (const Spelling& spelling : mixtral_projections)
    if (spelling.canonical == module->projection)
      return whole_place(
          layer_tensor_name(
              name.layer,
              fmt::format(
                  "block_sparse_moe.experts.{}.{}.{}", module->expert, spelling.stored, name.leaf)),
          spec);
  return std::nullopt;
}

}  // namespace

StoredPlace whole_place(std::string name, const TensorSpec& spec) {
  const bool vector = spec.shape.rank() == 1;
  StoredPlace place{std::move(name), {}, 0, vector ? 1 : spec.shape[1], 1};
  for (int i = 0; i < spec.shape.rank(); ++i) place.shape.push_back(spec.shape[i]);
  return place;
}

std::optional<StoredPlace> find_place(const ModelConfig& config,
                                      const TensorSpec& spec,
                                      const IsStored& stored) {
  if (stored(spec.name)) return whole_place(spec.name, spec);
  const auto name = split_layer_name(spec.name, layers_prefix);
  if (!name) return std::nullopt;
  const std::string suffix = name->module + "." + name->leaf;
  for (const Spelling& spelling : router_spellings) {
    if (spelling.canonical != suffix) continue;
    const std::string other = layer_tensor_name(name->layer, spelling.stored);
    if (stored(other)) return whole_place(other, spec);
  }
  auto place = expert_place(config, *name, spec);
  if (const auto part = fused_part(config, *name))
    place = fused_place(
        layer_tensor_name(name->layer, part->fused_module + "." + name->leaf), *part, spec);
  return place && stored(place->name) ? place : std::nullopt;
}

std::optional<std::string> without_language_prefix(std::string_view name) {
  constexpr std::array<Spelling, 3> prefixes{{
      {"model.", "model.language_model."},
      {"model.", "language_model.model."},
      {"lm_head.", "language_model.lm_head."},
  }};
  for (const Spelling& prefix : prefixes)
    if (name.starts_with(prefix.stored))
      return fmt::format("{}{}", prefix.canonical, name.substr(prefix.stored.size()));
  return std::nullopt;
}

std::optional<LayerTensorName> split_layer_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  LayerTensorName out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  if (error != std::errc{}) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  const size_t last = name.rfind('.');
  if (!name.starts_with('.')) return std::nullopt;
  if (last > 0) out.module = name.substr(1, last - 1);
  out.leaf = name.substr(last + 1);
  return out;
}

std::optional<FusedPart> fused_part(const ModelConfig& config, const LayerTensorName& name) {
  const LayerShape layer = config.layer(name.layer);
  const int64_t q_rows = config.n_heads * layer.head_dim;
  const int64_t k_rows = layer.n_kv_heads * layer.head_dim;
  const int64_t qkv_rows = q_rows + k_rows + layer.n_kv_heads * layer.v_dim;
  const std::string qkv = "self_attn.qkv_proj";
  if (name.module == "self_attn.q_proj") return FusedPart{qkv, 0, qkv_rows};
  if (name.module == "self_attn.k_proj") return FusedPart{qkv, q_rows, qkv_rows};
  if (name.module == "self_attn.v_proj") return FusedPart{qkv, q_rows + k_rows, qkv_rows};
  const std::string gate_up = "mlp.gate_up_proj";
  if (name.module == "mlp.gate_proj") return FusedPart{gate_up, 0, 2 * layer.d_ff};
  if (name.module == "mlp.up_proj") return FusedPart{gate_up, layer.d_ff, 2 * layer.d_ff};
  return std::nullopt;
}

StoredPlace fused_place(std::string name, const FusedPart& part, const TensorSpec& spec) {
  StoredPlace place = whole_place(std::move(name), spec);
  place.shape[0] = part.fused_rows;
  place.first = part.first_row * place.row_stride;
  return place;
}

}  // namespace testbed
