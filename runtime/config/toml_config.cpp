// ModelConfig from one of our presets.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "kernels/base/errors.hpp"
#include "runtime/config/model_readers.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// One table whose every key must be known. Errors carry file:line.
class TomlTable {
 public:
  TomlTable(const toml::table& table, std::string source, std::span<const std::string_view> known)
      : table_(table), source_(std::move(source)) {
    for (const auto& [key, value] : table_) refuse_unknown(key, known);
  }

  [[noreturn]] void fail(const toml::source_position& at, std::string_view message) const {
    throw ConfigError(fmt::format("{}:{}: {}", source_, at.line, message));
  }

  const toml::node* find(std::string_view key) const { return table_.get(key); }

  // `is` names the expected type in the message.
  template <typename T>
  std::optional<T> find_as(std::string_view key, std::string_view is) const {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    auto value = node->value_exact<T>();
    if (!value) fail(node->source().begin, fmt::format("{} must be {}", key, is));
    return value;
  }
  std::optional<int64_t> find_int(std::string_view key) const {
    return find_as<int64_t>(key, "a whole number");
  }
  std::optional<double> find_number(std::string_view key) const {
    const toml::node* node = find(key);
    if (node != nullptr && node->is_integer()) return static_cast<double>(*find_int(key));
    return find_as<double>(key, "a number");
  }
  template <typename T>
  T required(std::string_view key, const std::optional<T>& value) const {
    if (!value) fail(table_.source().begin, fmt::format("{} is missing", key));
    return *value;
  }
  int64_t get_int(std::string_view key) const { return required(key, find_int(key)); }
  bool get_bool(std::string_view key, bool fallback) const {
    return find_as<bool>(key, "true or false").value_or(fallback);
  }
  double get_number(std::string_view key) const { return required(key, find_number(key)); }
  std::string get_string(std::string_view key) const {
    return required(key, find_as<std::string>(key, "a string"));
  }

 private:
  void refuse_unknown(const toml::key& key, std::span<const std::string_view> known) const {
    if (std::find(known.begin(), known.end(), key.str()) != known.end()) return;
    const auto closest =
        std::min_element(known.begin(), known.end(), [&](std::string_view a, std::string_view b) {
          return edit_distance(key.str(), a) < edit_distance(key.str(), b);
        });
    std::string message = fmt::format("unknown key {}", in_quotes(key.str()));
    if (edit_distance(key.str(), *closest) <= 3)
      message += fmt::format("; did you mean {}?", *closest);
    fail(key.source().begin, message);
  }

  const toml::table& table_;
  std::string source_;
};

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
  const std::string kind = rope.find_as<std::string>("kind", "a string").value_or("plain");
  if (kind == "plain") return RopeKind::plain;
  if (kind == "linear") return RopeKind::linear;
  if (kind == "llama3") return RopeKind::llama3;
  if (kind == "yarn") return RopeKind::yarn;
  rope.fail(rope.find("kind")->source().begin,
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
    if (const toml::node* node = table.find(key); node != nullptr && !allowed(key))
      table.fail(node->source().begin, fmt::format("{} has no meaning for this rope kind", key));
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
  if (!eos->is_array()) table.fail(eos->source().begin, "eos_ids must be an array");
  for (const toml::node& id : *eos->as_array())
    model.eos_ids.push_back(token_id(table, id, "eos_ids"));
}

DType read_dtype(const TomlTable& table) {
  const std::string name = table.get_string("stored_dtype");
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32})
    if (name == dtype_name(dtype)) return dtype;
  table.fail(table.find("stored_dtype")->source().begin,
             fmt::format("stored_dtype {} is not one of bf16, f16, f32", in_quotes(name)));
}

std::vector<int64_t> read_windows(const TomlTable& table, int64_t n_layers) {
  const int64_t window = table.find_int("window").value_or(0);
  constexpr int64_t max_layers = 1 << 14;
  if (n_layers < 1 || n_layers > max_layers)
    table.fail(table.find("n_layers")->source().begin,
               fmt::format("n_layers is {}; expected 1 to {}", n_layers, max_layers));
  return std::vector<int64_t>(static_cast<size_t>(n_layers), window);
}

ModelConfig read_model(const toml::table& toml, const std::string& source) {
  std::vector<std::string_view> keys(model_keys.begin(), model_keys.end());
  keys.emplace_back("rope");
  const TomlTable table(toml, source, keys);
  ModelConfig model;
  model.name = table.get_string("name");
  model.family = table.get_string("family");
  model.n_layers = table.get_int("n_layers");
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
  try {
    const toml::table document = toml::parse(toml_text);
    ModelConfig model = read_model(document, source);
    validate(model, source);
    return model;
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}:{}: invalid TOML: {}",
                                  source,
                                  error.source().begin.line,
                                  std::string_view(error.description())));
  }
}

}  // namespace testbed
