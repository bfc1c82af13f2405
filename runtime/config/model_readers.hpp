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

// The text of a config.json; `source` is its path, for errors. Of a multimodal checkpoint (gemma3,
// gemma4) its text_config. Missing keys take the defaults of the family's class in transformers,
// but for sizes that its files always have.
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
