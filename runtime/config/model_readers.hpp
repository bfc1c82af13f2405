// Readers that give a ModelConfig. Each validates what it returns; what is missing, malformed or
// not supported is a ConfigError naming the file and the key.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/config/model_config.hpp"

namespace testbed {

class GgufFile;

// A Hugging Face folder or its config.json. The eos ids of a generation_config.json beside it are
// added (D12).
ModelConfig model_config_from_hf(const std::filesystem::path& folder_or_file);

// The text of a config.json; `source` is its path, for errors. Missing keys take the defaults of
// transformers where it has one for all families: MHA, head_dim = hidden_size / heads, theta 10000,
// eps 1e-6, silu, untied, F32.
ModelConfig model_config_from_hf_text(std::string_view json_text, const std::string& source);

// Adds the eos ids of a generation_config.json to config.eos_ids.
void add_generation_config(ModelConfig& config,
                           std::string_view json_text,
                           const std::string& source);

// GGUF metadata and tensor table (architectures llama, qwen2, qwen3, mistral). A wrong type of a
// metadata value is the WeightsError of GgufFile.
ModelConfig model_config_from_gguf(const GgufFile& file);

// A preset (configs/models/*.toml). Unknown keys are refused with file:line (D25).
ModelConfig model_config_from_toml(std::string_view toml_text, const std::string& source);

}  // namespace testbed
