// ModelConfig from a Hugging Face config.json: what is common, and which family reads the rest.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "kernels/base/errors.hpp"
#include "runtime/config/hf_family.hpp"
#include "runtime/config/model_readers.hpp"
#include "runtime/config/text_input.hpp"

namespace testbed {
namespace {

const std::array<HfFamily, 12> hf_families{
    {{"llama", "llama", read_hf_dense},
     {"qwen2", "qwen2", read_hf_dense},
     {"qwen3", "qwen3", read_hf_dense},
     {"mistral", "mistral", read_hf_dense},
     {"gemma2", "gemma2", read_hf_gemma2, {.head_dim = 256, .tied_embeddings = true}},
     {"gemma3_text",
      "gemma3",
      read_hf_gemma3,
      {.vocab_size = 262208,
       .max_positions = 131072,
       .n_heads = 8,
       .n_kv_heads = 4,
       .head_dim = 256,
       .tied_embeddings = true}},
     {"gemma4_text",
      "gemma4",
      read_hf_gemma4,
      {.vocab_size = 262144,
       .max_positions = 131072,
       .n_heads = 8,
       .n_kv_heads = 4,
       .head_dim = 256,
       .tied_embeddings = true}},
     {"mixtral", "mixtral", read_hf_mixtral, {.norm_eps = 1e-5}},
     {"qwen3_moe", "qwen3_moe", read_hf_qwen3_moe},
     {"deepseek_v2", "deepseek_v2", read_hf_deepseek_v2, {.head_dim = 64}},
     {"deepseek_v3", "deepseek_v3", read_hf_deepseek_v3, {.head_dim = 64}},
     {"gpt_oss", "gpt_oss", read_hf_gpt_oss, {.head_dim = 64, .norm_eps = 1e-5}}}};

// Checkpoints with other modalities beside the text model, which is in text_config.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> containers{
    {{"gemma3", "gemma3_text"}, {"gemma4", "gemma4_text"}}};

[[noreturn]] void fail_model_type(const JsonObject& config, const std::string& problem) {
  std::vector<std::string_view> names;
  names.reserve(hf_families.size() + containers.size());
  for (const HfFamily& family : hf_families) names.push_back(family.model_type);
  for (const auto& [container, text] : containers) names.push_back(container);
  config.fail("model_type", fmt::format("{}; supported: {}", problem, fmt::join(names, ", ")));
}

const HfFamily& find_hf_family(const JsonObject& config) {
  const auto type = config.find_string("model_type");
  if (!type) fail_model_type(config, "is missing");
  for (const HfFamily& family : hf_families)
    if (family.model_type == *type) return family;
  fail_model_type(config, fmt::format("{} is not supported", in_quotes(*type)));
}

// The text model's own configuration; what a container says for all of its parts is taken where
// the text part does not say it.
nlohmann::json text_part(const nlohmann::json& document, const std::string& source) {
  const JsonObject outer(document, source);
  const auto type = outer.find_string("model_type");
  for (const auto& [container, text_type] : containers) {
    if (type != container) continue;
    const auto part = outer.find_object("text_config");
    if (!part) outer.fail("text_config", "is missing");
    nlohmann::json text = part->value();
    if (text.value("model_type", nlohmann::json()).is_null()) text["model_type"] = text_type;
    if (text["model_type"] != text_type)
      part->fail("model_type", fmt::format("must be {} within {}", text_type, container));
    for (const char* key : {"dtype",
                            "torch_dtype",
                            "eos_token_id",
                            "bos_token_id",
                            "tie_word_embeddings",
                            "quantization_config"})
      if (outer.has(key) && !part->has(key)) text[key] = document[key];
    return text;
  }
  return document;
}

int64_t size_of(const JsonObject& config,
                std::string_view key,
                const std::optional<int64_t>& fallback) {
  return fallback ? config.find_int(key, 1, max_size).value_or(*fallback)
                  : config.get_int(key, 1, max_size);
}

void read_sizes(const JsonObject& config, const HfDefaults& defaults, ModelConfig& model) {
  model.n_layers = config.get_int("num_hidden_layers", 1, 1 << 14);
  model.d_model = config.get_int("hidden_size", 1, max_size);
  model.n_heads = size_of(config, "num_attention_heads", defaults.n_heads);
  model.n_kv_heads = config.find_int("num_key_value_heads", 1, max_size)
                         .value_or(defaults.n_kv_heads.value_or(model.n_heads));
  model.d_ff = config.get_int("intermediate_size", 1, max_size);
  model.vocab_size = size_of(config, "vocab_size", defaults.vocab_size);
  model.max_positions = size_of(config, "max_position_embeddings", defaults.max_positions);
}

void read_head_dim(const JsonObject& config, const HfDefaults& defaults, ModelConfig& model) {
  const auto explicit_size = config.find_int("head_dim", 1, max_size);
  if (explicit_size || defaults.head_dim) {
    model.head_dim = explicit_size ? *explicit_size : *defaults.head_dim;
    return;
  }
  if (model.d_model % model.n_heads != 0)
    config.fail("head_dim",
                fmt::format("is missing, and hidden_size {} does not divide by {} heads",
                            model.d_model,
                            model.n_heads));
  model.head_dim = model.d_model / model.n_heads;
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

}  // namespace

ModelConfig model_config_from_hf_text(std::string_view json_text, const std::string& source) {
  const nlohmann::json document = text_part(parse_json(json_text, source), source);
  const JsonObject config(document, source);
  const HfFamily& family = find_hf_family(config);
  if (config.has("quantization_config"))
    config.fail("quantization_config", "is set: quantised checkpoints are not built yet");
  ModelConfig model;
  model.name = source;
  model.family = family.family;
  read_sizes(config, family.defaults, model);
  read_head_dim(config, family.defaults, model);
  model.norm_eps = config.find_number("rms_norm_eps").value_or(family.defaults.norm_eps);
  model.tied_embeddings =
      config.find_bool("tie_word_embeddings").value_or(family.defaults.tied_embeddings);
  family.read(config, model);
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
