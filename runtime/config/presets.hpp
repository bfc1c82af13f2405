// Where presets lie, and what --model means.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "runtime/config/model_config.hpp"

namespace testbed {

// configs/KIND/NAME.toml, looked for in $TESTBED_CONFIG_DIR, then in ../configs of the executable,
// then in the source tree it was built from. Throws ConfigError listing the presets there are.
std::filesystem::path find_preset(std::string_view kind, std::string_view name);

// Of all those places.
std::set<std::string> preset_names(std::string_view kind);

enum class ModelKind : uint8_t { preset, hugging_face, gguf };

struct ModelLocation {
  ModelKind kind = ModelKind::preset;
  std::filesystem::path path;  // the TOML file, the folder or config.json, the .gguf file
};

// A preset's name or TOML file, a Hugging Face folder (or its config.json), or a .gguf file.
ModelLocation locate_model(const std::string& model);

// Reads the file(s) at a location.
ModelConfig read_model_config(const ModelLocation& location);

}  // namespace testbed
