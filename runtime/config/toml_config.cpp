// ModelConfig from one of our presets.
#include <fmt/format.h>

#include <array>

#include "runtime/config/model_readers.hpp"
#include "runtime/config/text_input.hpp"
#include "runtime/config/toml_table.hpp"

namespace testbed {
namespace {

constexpr std::array<std::string_view, 20> model_keys{
    "name",       "family",          "n_layers", "d_model",     "n_heads",
    "n_kv_heads", "head_dim",        "d_ff",     "vocab_size",  "max_positions",
    "norm_eps",   "tied_embeddings", "qkv_bias", "output_bias", "mlp_bias",
    "qk_norm",    "window",          "eos_ids",  "bos_id",      "stored_dtype"};
constexpr std::array<std::string_view, 12> rope_keys{"kind",
                                                     "theta",
                                                     "factor",
                                                     "low_freq_factor",
                                                     "high_freq_factor",
                                                     "original_max_positions",
                                                     "beta_fast",
                                                     "beta_slow",
                                                     "truncate",
                                                     "attention_factor",
                                                     "mscale",
                                                     "mscale_all_dim"};

RopeKind read_kind(const TomlTable& rope) {
  const std::string kind = rope.find_string("kind").value_or("plain");
  if (kind == "plain") return RopeKind::plain;
  if (kind == "linear") return RopeKind::linear;
  if (kind == "llama3") return RopeKind::llama3;
  if (kind == "yarn") return RopeKind::yarn;
  rope.fail_at(
      "kind",
      fmt::format("rope kind {} is not one of plain, linear, llama3, yarn", in_quotes(kind)));
}

// A kind takes its own keys and no others: a factor under kind "plain" would do nothing.
void refuse_idle_keys(const TomlTable& table, RopeKind kind) {
  const auto allowed = [&](std::string_view key) {
    if (key == "kind" || key == "theta") return true;
    if (kind == RopeKind::plain) return false;
    if (key == "factor") return true;
    if (kind == RopeKind::linear) return false;
    if (key == "original_max_positions") return true;
    const bool is_llama3_key = key == "low_freq_factor" || key == "high_freq_factor";
    return (kind == RopeKind::llama3) == is_llama3_key;
  };
  for (const std::string_view key : rope_keys)
    if (table.find(key) != nullptr && !allowed(key))
      table.fail_at(key, fmt::format("{} has no meaning for this rope kind", key));
}

RopeConfig read_rope(const toml::table& toml, const std::string& source) {
  const TomlTable table(toml, source, rope_keys);
  RopeConfig rope;
  rope.kind = read_kind(table);
  refuse_idle_keys(table, rope.kind);
  rope.theta = table.get_number("theta");
  if (rope.kind == RopeKind::plain) return rope;
  rope.factor = table.get_number("factor");
  if (rope.kind == RopeKind::linear) return rope;
  rope.original_max_positions = table.get_int("original_max_positions");
  if (rope.kind == RopeKind::llama3) {
    rope.low_freq_factor = table.get_number("low_freq_factor");
    rope.high_freq_factor = table.get_number("high_freq_factor");
    return rope;
  }
  rope.beta_fast = table.find_number("beta_fast").value_or(rope.beta_fast);
  rope.beta_slow = table.find_number("beta_slow").value_or(rope.beta_slow);
  rope.truncate = table.get_bool("truncate", true);
  rope.attention_factor = table.find_number("attention_factor");
  rope.mscale = table.find_number("mscale");
  rope.mscale_all_dim = table.find_number("mscale_all_dim");
  return rope;
}

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

std::vector<int64_t> read_windows(const TomlTable& table, int64_t n_layers) {
  const int64_t window = table.find_int("window").value_or(0);
  return std::vector<int64_t>(static_cast<size_t>(n_layers), window);
}

ModelConfig read_model(const toml::table& toml, const std::string& source) {
  std::vector<std::string_view> keys(model_keys.begin(), model_keys.end());
  keys.emplace_back("rope");
  const TomlTable table(toml, source, keys);
  ModelConfig model;
  model.name = table.get_string("name");
  model.family = table.get_string("family");
  constexpr int64_t max_layers = 1 << 14;
  model.n_layers = table.get_int_in("n_layers", 1, max_layers);
  model.d_model = table.get_int("d_model");
  model.n_heads = table.get_int("n_heads");
  model.n_kv_heads = table.get_int("n_kv_heads");
  model.head_dim = table.get_int("head_dim");
  model.d_ff = table.get_int("d_ff");
  model.vocab_size = table.get_int("vocab_size");
  model.max_positions = table.get_int("max_positions");
  model.norm_eps = table.get_number("norm_eps");
  model.tied_embeddings = table.get_bool("tied_embeddings", false);
  model.qkv_bias = table.get_bool("qkv_bias", false);
  model.output_bias = table.get_bool("output_bias", false);
  model.mlp_bias = table.get_bool("mlp_bias", false);
  model.qk_norm = table.get_bool("qk_norm", false);
  model.layer_windows = read_windows(table, model.n_layers);
  model.stored_dtype = read_dtype(table);
  read_ids(table, model);
  const toml::node* rope = table.find("rope");
  if (rope == nullptr || !rope->is_table())
    table.fail(rope == nullptr ? toml.source().begin : rope->source().begin,
               "a table [rope] is required");
  model.rope = read_rope(*rope->as_table(), source);
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
