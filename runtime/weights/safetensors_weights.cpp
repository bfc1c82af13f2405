// Safetensors files and folders, single or sharded, as a WeightSource.
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/weights/file_weights.hpp"
#include "runtime/weights/mapped_file.hpp"
#include "runtime/weights/safetensors_file.hpp"
#include "runtime/weights/strict_json.hpp"

namespace testbed {
namespace {

constexpr std::string_view index_name = "model.safetensors.index.json";

// All tensors of one model and the mappings they lie in.
struct Checkpoint {
  std::vector<SafetensorsFile> files;
  std::map<std::string, MappedTensor, std::less<>> tensors;
};

MappedTensor mapped(const SafetensorsFile& file,
                    const std::string& name,
                    const SafetensorsTensor& tensor) {
  std::optional<DType> dtype;
  if (tensor.dtype == "BF16") dtype = DType::BF16;
  if (tensor.dtype == "F16") dtype = DType::F16;
  if (tensor.dtype == "F32") dtype = DType::F32;
  return {name, file.name(), tensor.dtype, dtype, tensor.shape, tensor.data};
}

void add_file(const std::filesystem::path& path, Checkpoint& checkpoint) {
  const SafetensorsFile& file = checkpoint.files.emplace_back(SafetensorsFile::open(path));
  for (const auto& [name, tensor] : file.tensors())
    checkpoint.tensors.emplace(name, mapped(file, name, tensor));
}

// The file of each tensor, by the index.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const MappedFile map(path);
  const std::string_view text(reinterpret_cast<const char*>(map.bytes().data()),
                              map.bytes().size());
  const nlohmann::json index = parse_strict_json(text, path.string(), "index");
  const auto fail = [&](const std::string& what) {
    throw WeightsError(fmt::format("{}: {}", path.string(), what));
  };
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    fail("has no object 'weight_map'");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) fail(fmt::format("the file of tensor '{}' is not a string", name));
    const auto& spelled = file.get_ref<const std::string&>();
    if (spelled.empty() || spelled.find('/') != std::string::npos || spelled == "..")
      fail(fmt::format("tensor '{}': '{}' is not a file name", name, spelled));
    files.emplace(name, spelled);
  }
  return files;
}

void add_sharded(const std::filesystem::path& folder, Checkpoint& checkpoint) {
  const std::filesystem::path index_path = folder / index_name;
  std::map<std::string, SafetensorsFile> shards;
  for (const auto& [name, file] : read_index(index_path)) {
    const std::filesystem::path path = folder / file;
    auto shard = shards.find(file);
    if (shard == shards.end()) {
      if (!std::filesystem::exists(path))
        throw WeightsError(fmt::format(
            "{}: shard '{}' is listed but missing: {}", index_path.string(), file, path.string()));
      shard = shards.emplace(file, SafetensorsFile::open(path)).first;
    }
    const auto tensor = shard->second.tensors().find(name);
    if (tensor == shard->second.tensors().end())
      throw WeightsError(fmt::format("{}: tensor '{}' is not in it, although {} says so",
                                     path.string(),
                                     name,
                                     index_path.string()));
    checkpoint.tensors.emplace(name, mapped(shard->second, name, tensor->second));
  }
  for (auto& [file, shard] : shards) checkpoint.files.push_back(std::move(shard));
}

Checkpoint open_checkpoint(const std::filesystem::path& path) {
  Checkpoint checkpoint;
  if (!std::filesystem::is_directory(path)) {
    add_file(path, checkpoint);
  } else if (std::filesystem::exists(path / "model.safetensors")) {
    add_file(path / "model.safetensors", checkpoint);
  } else if (std::filesystem::exists(path / index_name)) {
    add_sharded(path, checkpoint);
  } else {
    throw WeightsError(
        fmt::format("{}: holds neither model.safetensors nor {}", path.string(), index_name));
  }
  return checkpoint;
}

std::optional<StoredPart> locate(const Checkpoint& checkpoint,
                                 const ModelConfig& config,
                                 const TensorSpec& spec) {
  const auto direct = checkpoint.tensors.find(spec.name);
  if (direct != checkpoint.tensors.end()) return StoredPart{direct->second};
  const auto parsed = split_layer_name(spec.name, "model.layers.");
  if (!parsed) return std::nullopt;
  const auto fused = fused_part(config, parsed->module);
  if (!fused) return std::nullopt;
  const auto it = checkpoint.tensors.find(
      layer_tensor_name(parsed->layer, fused->fused_suffix + "." + parsed->leaf));
  if (it == checkpoint.tensors.end()) return std::nullopt;
  return StoredPart{it->second, fused->first_row, fused->fused_rows};
}

// Tensors that say nothing: a tied head stored again, and rope tables that old exporters kept.
bool ignorable(const std::string& name, const ModelConfig& config) {
  return (config.tied_embeddings && name == head_name) || name.ends_with("rotary_emb.inv_freq");
}

}  // namespace

std::unique_ptr<WeightSource> open_safetensors(const std::filesystem::path& path,
                                               const ModelConfig& config) {
  const auto checkpoint = std::make_shared<const Checkpoint>(open_checkpoint(path));
  auto weights = std::make_unique<FileWeights>(
      path.string(),
      config,
      [&](const TensorSpec& spec) { return locate(*checkpoint, config, spec); },
      checkpoint);
  std::vector<FileWeights::Named> stored;
  for (const auto& [name, tensor] : checkpoint->tensors) {
    if (ignorable(name, config)) continue;
    const auto parsed = split_layer_name(name, "model.layers.");
    stored.push_back({name, tensor.file, parsed ? std::optional(parsed->layer) : std::nullopt});
  }
  weights->refuse_unused(stored, config.n_layers);
  return weights;
}

}  // namespace testbed
