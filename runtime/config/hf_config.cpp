// ModelConfig from a Hugging Face config.json.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/base/errors.hpp"
#include "runtime/config/hf_rope.hpp"
#include "runtime/config/json_input.hpp"
#include "runtime/config/model_readers.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

constexpr int64_t max_size = 1LL << 31;  // of any count; validate() has the bound of each field

std::string read_family(const JsonObject& config) {
  const auto type = config.find_string("model_type");
  constexpr std::array<std::string_view, 4> families{"llama", "qwen2", "qwen3", "mistral"};
  if (!type) config.fail("model_type", "is missing; supported: llama, qwen2, qwen3, mistral");
  if (std::find(families.begin(), families.end(), *type) == families.end())
    config.fail("model_type",
                fmt::format("{} is not supported; supported: llama, qwen2, qwen3, mistral",
                            in_quotes(*type)));
  return *type;
}

void read_sizes(const JsonObject& config, ModelConfig& model) {
  model.n_layers = config.get_int("num_hidden_layers", 1, 1 << 14);
  model.d_model = config.get_int("hidden_size", 1, max_size);
  model.n_heads = config.get_int("num_attention_heads", 1, max_size);
  model.n_kv_heads = config.find_int("num_key_value_heads", 1, max_size).value_or(model.n_heads);
  model.d_ff = config.get_int("intermediate_size", 1, max_size);
  model.vocab_size = config.get_int("vocab_size", 1, max_size);
  model.max_positions = config.get_int("max_position_embeddings", 1, max_size);
  if (const auto explicit_size = config.find_int("head_dim", 1, max_size)) {
    model.head_dim = *explicit_size;
    return;
  }
  if (model.d_model % model.n_heads != 0)
    config.fail("head_dim",
                fmt::format("is missing, and hidden_size {} does not divide by {} heads",
                            model.d_model,
                            model.n_heads));
  model.head_dim = model.d_model / model.n_heads;
}

// What a family does whatever the file says must not be contradicted by the file.
void read_biases(const JsonObject& config, ModelConfig& model) {
  const bool attention_bias = config.find_bool("attention_bias").value_or(false);
  const bool mlp_bias = config.find_bool("mlp_bias").value_or(false);
  if (mlp_bias && model.family != "llama")
    config.fail("mlp_bias", fmt::format("is true, which {} does not have", model.family));
  if (attention_bias && model.family == "mistral")
    config.fail("attention_bias", "is true, which mistral does not have");
  model.mlp_bias = mlp_bias;
  if (model.family == "qwen2") {
    model.qkv_bias = true;  // always, and never on the output projection
    return;
  }
  model.qkv_bias = attention_bias;
  model.output_bias = attention_bias;
  model.qk_norm = model.family == "qwen3";
}

// Window of the layers that have one; 0 = none.
int64_t read_window(const JsonObject& config, const std::string& family) {
  const bool present = config.value().contains("sliding_window");
  const int64_t window = config.find_int("sliding_window", 1, max_size).value_or(0);
  if (family == "llama") {
    if (window != 0) config.fail("sliding_window", "is set, which llama does not have");
    return 0;
  }
  constexpr int64_t class_default = 4096;  // of MistralConfig, Qwen2Config and Qwen3Config
  if (family == "mistral") return present ? window : class_default;
  if (!config.find_bool("use_sliding_window").value_or(false)) return 0;
  return present ? window : class_default;
}

bool is_sliding(const JsonObject& config, const nlohmann::json& type) {
  if (type == "sliding_attention") return true;
  if (type != "full_attention")
    config.fail("layer_types",
                fmt::format("has {}; supported: full_attention, sliding_attention", shown(type)));
  return false;
}

std::vector<int64_t> read_layer_windows(const JsonObject& config, const ModelConfig& model) {
  const int64_t window = read_window(config, model.family);
  std::vector<int64_t> windows(static_cast<size_t>(model.n_layers), window);
  const nlohmann::json* types = config.find("layer_types");
  if (types != nullptr) {
    if (!types->is_array() || types->size() != windows.size())
      config.fail("layer_types", fmt::format("must list {} layers", windows.size()));
    for (size_t layer = 0; layer < windows.size(); ++layer) {
      const bool sliding = is_sliding(config, (*types)[layer]);
      if (sliding && window == 0)
        config.fail("layer_types", "has sliding_attention, but no sliding window is in use");
      if (!sliding) windows[layer] = 0;
    }
  } else if (model.family == "qwen2" || model.family == "qwen3") {
    constexpr int64_t class_default = 28;
    const int64_t n_full =
        config.find_int("max_window_layers", 0, max_size).value_or(class_default);
    for (int64_t layer = 0; layer < std::min(n_full, model.n_layers); ++layer)
      windows[static_cast<size_t>(layer)] = 0;
  }
  return windows;
}

// One id, a list of ids, or null (D12). Ids already there are kept and not repeated.
void add_eos_ids(const JsonObject& config, std::vector<int32_t>& ids) {
  const nlohmann::json* eos = config.find("eos_token_id");
  if (eos == nullptr) return;
  const auto add = [&](const nlohmann::json& value) {
    const int64_t id =
        json_int(value, fmt::format("{}: eos_token_id", config.where()), 0, INT32_MAX);
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(static_cast<int32_t>(id));
  };
  if (!eos->is_array()) return add(*eos);
  for (const auto& value : *eos) add(value);
}

DType read_dtype(const JsonObject& config) {
  const auto newer = config.find_string("dtype");
  const auto older = config.find_string("torch_dtype");
  if (newer && older && *newer != *older)
    config.fail("dtype",
                fmt::format("{} contradicts torch_dtype {}", in_quotes(*newer), in_quotes(*older)));
  const std::string name = newer ? *newer : older.value_or("float32");
  if (name == "bfloat16") return DType::BF16;
  if (name == "float16") return DType::F16;
  if (name == "float32") return DType::F32;
  config.fail(
      newer ? "dtype" : "torch_dtype",
      fmt::format("{} is not supported; supported: bfloat16, float16, float32", in_quotes(name)));
}

void refuse_unsupported(const JsonObject& config) {
  if (const auto act = config.find_string("hidden_act"); act && *act != "silu")
    config.fail("hidden_act", fmt::format("{} is not supported; supported: silu", in_quotes(*act)));
  if (config.has("quantization_config"))
    config.fail("quantization_config", "is set: quantised checkpoints are not built yet");
}

}  // namespace

ModelConfig model_config_from_hf_text(std::string_view json_text, const std::string& source) {
  const nlohmann::json document = parse_json(json_text, source);
  const JsonObject config(document, source);
  ModelConfig model;
  model.name = source;
  model.family = read_family(config);
  refuse_unsupported(config);
  read_sizes(config, model);
  model.norm_eps = config.find_number("rms_norm_eps").value_or(1e-6);
  model.tied_embeddings = config.find_bool("tie_word_embeddings").value_or(false);
  read_biases(config, model);
  model.rope = read_hf_rope(config, model.max_positions);
  model.layer_windows = read_layer_windows(config, model);
  add_eos_ids(config, model.eos_ids);
  if (const auto bos = config.find_int("bos_token_id", 0, INT32_MAX))
    model.bos_id = static_cast<int32_t>(*bos);
  model.stored_dtype = read_dtype(config);
  validate(model, source);
  return model;
}

void add_generation_config(ModelConfig& config,
                           std::string_view json_text,
                           const std::string& source) {
  const nlohmann::json document = parse_json(json_text, source);
  add_eos_ids(JsonObject(document, source), config.eos_ids);
  validate(config, source);
}

ModelConfig model_config_from_hf(const std::filesystem::path& folder_or_file) {
  namespace fs = std::filesystem;
  const bool is_folder = fs::is_directory(folder_or_file);
  const fs::path file = is_folder ? folder_or_file / "config.json" : folder_or_file;
  const fs::path folder = fs::absolute(file).lexically_normal().parent_path();
  ModelConfig model = model_config_from_hf_text(read_text_file(file), file.string());
  model.name = folder.filename().string();
  const fs::path generation = folder / "generation_config.json";
  if (fs::exists(generation))
    add_generation_config(model, read_text_file(generation), generation.string());
  return model;
}

}  // namespace testbed
