// Preset search and model location.
#include "runtime/config/presets.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <optional>
#include <set>
#include <vector>

#include "kernels/base/errors.hpp"
#include "runtime/config/model_readers.hpp"
#include "runtime/config/text_input.hpp"
#include "runtime/weights/gguf_file.hpp"

namespace testbed {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> config_folders() {
  std::vector<fs::path> folders;
  if (const char* folder = std::getenv("TESTBED_CONFIG_DIR"); folder != nullptr && *folder != '\0')
    folders.emplace_back(folder);
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(program.parent_path().parent_path() / "configs");
  folders.emplace_back(TESTBED_SOURCE_CONFIGS);
  return folders;
}

bool is_preset_name(std::string_view name) {
  constexpr std::string_view allowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.front() != '.' &&
         name.find_first_not_of(allowed) == std::string_view::npos;
}

std::optional<fs::path> search_preset(std::string_view kind, std::string_view name) {
  if (!is_preset_name(name)) return std::nullopt;
  std::error_code error;
  for (const fs::path& folder : config_folders()) {
    fs::path path = folder / kind / fmt::format("{}.toml", name);
    if (fs::is_regular_file(path, error)) return path;
  }
  return std::nullopt;
}

}  // namespace

std::set<std::string> preset_names(std::string_view kind) {
  std::set<std::string> names;
  std::error_code error;
  for (const fs::path& folder : config_folders())
    for (const auto& entry : fs::directory_iterator(folder / kind, error))
      if (entry.path().extension() == ".toml") names.insert(entry.path().stem().string());
  return names;
}

fs::path find_preset(std::string_view kind, std::string_view name) {
  if (auto path = search_preset(kind, name)) return *path;
  throw ConfigError(fmt::format("no preset {} in configs/{}; there are: {}",
                                in_quotes(name),
                                kind,
                                fmt::join(preset_names(kind), ", ")));
}

ModelLocation locate_model(const std::string& model) {
  const fs::path path(model);
  std::error_code error;
  const auto preset = search_preset("models", model);
  if (fs::is_directory(path, error)) {
    const bool has_config = fs::exists(path / "config.json", error);
    if (preset && has_config)
      throw ConfigError(fmt::format(
          "--model {0}: both a preset and a folder; write ./{0} for the folder", model));
    if (!preset && !has_config)
      throw ConfigError(fmt::format("--model {}: the folder has no config.json", model));
    if (has_config) return {ModelKind::hugging_face, path};
  }
  if (preset) return {ModelKind::preset, *preset};
  if (fs::is_regular_file(path, error)) {
    if (path.extension() == ".gguf") return {ModelKind::gguf, path};
    if (path.extension() == ".toml") return {ModelKind::preset, path};
    if (path.extension() == ".json") return {ModelKind::hugging_face, path};
    throw ConfigError(fmt::format(
        "--model {}: expected a preset, a Hugging Face folder or a .gguf file", in_quotes(model)));
  }
  throw ConfigError(fmt::format("--model {}: no such preset, folder or file; presets: {}",
                                in_quotes(model),
                                fmt::join(preset_names("models"), ", ")));
}

ModelConfig read_model_config(const ModelLocation& location) {
  switch (location.kind) {
    case ModelKind::preset:
      return model_config_from_toml(read_text_file(location.path), location.path.string());
    case ModelKind::hugging_face:
      return model_config_from_hf(location.path);
    case ModelKind::gguf:
      return model_config_from_gguf(GgufFile::open(location.path));
  }
  throw ConfigError("unknown kind of model");
}

}  // namespace testbed
