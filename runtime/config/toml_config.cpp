// ModelConfig from one of our presets.
#include <fmt/format.h>

#include <array>

#include "runtime/config/model_readers.hpp"
#include "runtime/config/text_input.hpp"
#include "runtime/config/toml_model_parts.hpp"
#include "runtime/config/toml_table.hpp"

namespace testbed {
namespace {

constexpr std::array model_keys = std::to_array<std::string_view>({"name",
                                                                   "family",
                                                                   "n_layers",
                                                                   "d_model",
                                                                   "n_heads",
                                                                   "n_kv_heads",
                                                                   "head_dim",
                                                                   "d_ff",
                                                                   "vocab_size",
                                                                   "max_positions",
                                                                   "norm_eps",
                                                                   "tied_embeddings",
                                                                   "qkv_bias",
                                                                   "output_bias",
                                                                   "mlp_bias",
                                                                   "qk_norm",
                                                                   "v_norm",
                                                                   "attention_sinks",
                                                                   "norms",
                                                                   "norm_adds_one",
                                                                   "activation",
                                                                   "scaled_embedding",
                                                                   "layer_scalars",
                                                                   "attention_scale",
                                                                   "attention_softcap",
                                                                   "final_softcap",
                                                                   "window",
                                                                   "full_every",
                                                                   "n_shared_kv_layers",
                                                                   "double_wide_shared_mlp",
                                                                   "eos_ids",
                                                                   "bos_id",
                                                                   "stored_dtype",
                                                                   "rope",
                                                                   "window_rope",
                                                                   "full_attention",
                                                                   "mla",
                                                                   "moe",
                                                                   "per_layer_input"});

int32_t token_id(const TomlTable& table, const toml::node& node, std::string_view key) {
  const auto id = node.value_exact<int64_t>();
  if (!id || *id < 0 || *id > INT32_MAX)
    table.fail(node.source().begin, fmt::format("{} must be token ids", key));
  return static_cast<int32_t>(*id);
}

void read_ids(const TomlTable& table, ModelConfig& model) {
  if (const toml::node* bos = table.find("bos_id")) model.bos_id = token_id(table, *bos, "bos_id");
  const toml::node* eos = table.find("eos_ids");
  if (eos == nullptr) return;
  if (!eos->is_array()) table.fail_at("eos_ids", "eos_ids must be an array");
  for (const toml::node& id : *eos->as_array())
    model.eos_ids.push_back(token_id(table, id, "eos_ids"));
}

DType read_dtype(const TomlTable& table) {
  const std::string name = table.get_string("stored_dtype");
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32})
    if (name == dtype_name(dtype)) return dtype;
  table.fail_at("stored_dtype",
                fmt::format("stored_dtype {} is not one of bf16, f16, f32", in_quotes(name)));
}

// "window" on every layer, or on all but every full_every-th.
std::vector<int64_t> read_windows(const TomlTable& table, int64_t n_layers) {
  const int64_t window = table.find_int("window").value_or(0);
  std::vector<int64_t> windows(static_cast<size_t>(n_layers), window);
  if (table.find("full_every") == nullptr) return windows;
  if (window == 0) table.fail_at("full_every", "full_every has no meaning without a window");
  const int64_t full_every = table.get_int_in("full_every", 2, 1 << 14);
  for (int64_t layer = full_every - 1; layer < n_layers; layer += full_every)
    windows[static_cast<size_t>(layer)] = 0;
  return windows;
}

void read_sizes(const TomlTable& table, ModelConfig& model) {
  constexpr int64_t max_layers = 1 << 14;
  model.n_layers = table.get_int_in("n_layers", 1, max_layers);
  model.d_model = table.get_int("d_model");
  model.n_heads = table.get_int("n_heads");
  // Latent attention has these from its own sizes, and with experts a dense MLP may be missing.
  model.n_kv_heads = model.mla ? model.n_heads : table.get_int("n_kv_heads");
  model.head_dim = model.mla ? model.mla->qk_dim() : table.get_int("head_dim");
  for (const char* derived : {"n_kv_heads", "head_dim"})
    if (model.mla && table.find(derived) != nullptr)
      table.fail_at(derived, fmt::format("{} comes from [mla]", derived));
  model.d_ff = model.moe ? table.find_int("d_ff").value_or(0) : table.get_int("d_ff");
  model.vocab_size = table.get_int("vocab_size");
  model.max_positions = table.get_int("max_positions");
  model.layer_windows = read_windows(table, model.n_layers);
  model.n_shared_kv_layers = table.find_int("n_shared_kv_layers").value_or(0);
}

void read_properties(const TomlTable& table, ModelConfig& model) {
  model.norm_eps = table.get_number("norm_eps");
  model.tied_embeddings = table.get_bool("tied_embeddings", false);
  model.qkv_bias = table.get_bool("qkv_bias", false);
  model.output_bias = table.get_bool("output_bias", false);
  model.mlp_bias = table.get_bool("mlp_bias", false);
  model.qk_norm = table.get_bool("qk_norm", false);
  model.v_norm = table.get_bool("v_norm", false);
  model.attention_sinks = table.get_bool("attention_sinks", false);
  model.norms = read_name<NormPlacement>(
      table, "norms", {{"pre", NormPlacement::pre}, {"sandwich", NormPlacement::sandwich}});
  model.norm_adds_one = table.get_bool("norm_adds_one", false);
  model.activation = read_name<Activation>(table,
                                           "activation",
                                           {{"silu", Activation::silu},
                                            {"gelu_tanh", Activation::gelu_tanh},
                                            {"clamped_swiglu", Activation::clamped_swiglu}});
  model.scaled_embedding = table.get_bool("scaled_embedding", false);
  model.layer_scalars = table.get_bool("layer_scalars", false);
  model.attention_scale = table.find_number("attention_scale");
  model.attention_softcap = table.find_number("attention_softcap");
  model.final_softcap = table.find_number("final_softcap");
  model.double_wide_shared_mlp = table.get_bool("double_wide_shared_mlp", false);
}

template <typename Part>
std::optional<Part> find_part(const TomlTable& table,
                              std::string_view key,
                              Part (*read)(const toml::table&, const std::string&)) {
  const toml::node* node = table.find(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_table()) table.fail_at(key, fmt::format("{} must be a table [{}]", key, key));
  return read(*node->as_table(), table.source());
}

ModelConfig read_model(const toml::table& toml, const std::string& source) {
  const TomlTable table(toml, source, model_keys);
  ModelConfig model;
  model.name = table.get_string("name");
  model.family = table.get_string("family");
  model.mla = find_part(table, "mla", read_toml_mla);
  model.moe = find_part(table, "moe", read_toml_moe);
  model.full_attention = find_part(table, "full_attention", read_toml_full_attention);
  model.per_layer_input = find_part(table, "per_layer_input", read_toml_per_layer_input);
  model.window_rope = find_part(table, "window_rope", read_toml_rope);
  read_sizes(table, model);
  read_properties(table, model);
  model.stored_dtype = read_dtype(table);
  read_ids(table, model);
  const auto rope = find_part(table, "rope", read_toml_rope);
  if (!rope) table.fail(toml.source().begin, "a table [rope] is required");
  model.rope = *rope;
  return model;
}

}  // namespace

ModelConfig model_config_from_toml(std::string_view toml_text, const std::string& source) {
  const toml::table document = parse_toml(toml_text, source);
  ModelConfig model = read_model(document, source);
  validate(model, source);
  return model;
}

}  // namespace testbed
