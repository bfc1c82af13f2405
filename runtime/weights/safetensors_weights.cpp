// Safetensors files and folders, single or sharded, as a WeightSource.
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/weights/checkpoint_names.hpp"
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
  std::map<std::string, std::shared_ptr<const MappedTensor>, std::less<>> tensors;
};

std::shared_ptr<const MappedTensor> mapped(const SafetensorsFile& file,
                                           const std::string& name,
                                           const SafetensorsTensor& tensor) {
  std::optional<DType> dtype;
  if (tensor.dtype == "BF16") dtype = DType::BF16;
  if (tensor.dtype == "F16") dtype = DType::F16;
  if (tensor.dtype == "F32") dtype = DType::F32;
  return std::make_shared<MappedTensor>(
      MappedTensor{name, file.name(), tensor.dtype, dtype, tensor.shape, tensor.data});
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

// A multimodal checkpoint put under the names of its language model alone; the encoders of other
// modalities are left out.
void keep_language_model(Checkpoint& checkpoint) {
  decltype(checkpoint.tensors) kept;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    const auto short_name = without_language_prefix(name);
    if (!short_name && name != head_name) continue;
    if (!kept.emplace(short_name.value_or(name), tensor).second)
      throw WeightsError(
          fmt::format("{}: tensor '{}' is stored under two names", tensor->file, name));
  }
  if (kept.size() > checkpoint.tensors.count(head_name)) checkpoint.tensors = std::move(kept);
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
  keep_language_model(checkpoint);
  return checkpoint;
}

// Tables over all layers whose first part is that of a model cut by --layers.
void fit_to_cut_layers(const ModelConfig& config, const MappedTensor& tensor, StoredPlace& place) {
  if (!config.per_layer_input || tensor.shape.size() != 2) return;
  const auto wider = [&](size_t axis) {
    const int64_t n = tensor.shape[axis];
    return n > place.shape[axis] && n % config.per_layer_input->dim == 0;
  };
  if (place.name == per_layer_model_projection_name && wider(0)) place.shape[0] = tensor.shape[0];
  if (place.name == per_layer_embedding_name && wider(1))
    place.shape[1] = place.row_stride = tensor.shape[1];
}

std::optional<StoredPart> locate(const Checkpoint& checkpoint,
                                 const ModelConfig& config,
                                 const TensorSpec& spec) {
  const auto stored = [&](const std::string& name) { return checkpoint.tensors.contains(name); };
  auto place = find_place(config, spec, stored);
  if (!place) return std::nullopt;
  const auto& tensor = checkpoint.tensors.find(place->name)->second;
  fit_to_cut_layers(config, *tensor, *place);
  return StoredPart{tensor, *std::move(place)};
}

// Keys and values that no layer reads, because this one reads another's.
bool unread_kv(const std::optional<LayerTensorName>& name, const ModelConfig& config) {
  if (!name || name->layer >= config.n_layers) return false;
  return config.layer(name->layer).kv_layer != name->layer &&
         (name->module == "self_attn.k_proj" || name->module == "self_attn.v_proj" ||
          name->module == "self_attn.k_norm");
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
  stored.reserve(checkpoint->tensors.size());
  for (const auto& [name, tensor] : checkpoint->tensors) {
    const auto parsed = split_layer_name(name, "model.layers.");
    if (ignorable(name, config) || unread_kv(parsed, config)) continue;
    stored.push_back(
        {tensor->name, tensor->file, parsed ? std::optional(parsed->layer) : std::nullopt});
  }
  weights->refuse_unused(stored, config.n_layers);
  return weights;
}

}  // namespace testbed
