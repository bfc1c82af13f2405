// How checkpoints spell and lay out a canonical tensor: the other names of a module, and tensors
// that hold several canonical ones (fused projections, packed experts).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/weights/tensor_names.hpp"

namespace testbed {

// A canonical tensor inside a stored one, in elements of the stored one: element [r, c] is
// first + r * row_stride + c * col_stride. The elements of a vector are rows.
struct StoredPlace {
  std::string name;            // of the stored tensor
  std::vector<int64_t> shape;  // that the stored tensor must have, slowest first
  int64_t first = 0;
  int64_t row_stride = 1;
  int64_t col_stride = 1;
};

// The tensor of its own that `spec` is stored as, under `name`.
StoredPlace whole_place(std::string name, const TensorSpec& spec);

// The place of `spec` in a safetensors checkpoint, by whether a tensor of some name is `stored`;
// nullopt if it has none of the names that this tensor may have.
using IsStored = std::function<bool(const std::string&)>;
std::optional<StoredPlace> find_place(const ModelConfig& config,
                                      const TensorSpec& spec,
                                      const IsStored& stored);

// The name without the prefix that multimodal checkpoints put before their language model:
// "model.layers.0..." for "model.language_model.layers.0..."; nullopt if it has no such prefix.
std::optional<std::string> without_language_prefix(std::string_view name);

// {layer, module, leaf} of "model.layers.3.self_attn.q_proj.weight": 3, "self_attn.q_proj",
// "weight"; of "model.layers.3.layer_scalar": 3, "", "layer_scalar"; nullopt if the name is not of
// a layer.
struct LayerTensorName {
  int64_t layer = 0;
  std::string module;
  std::string leaf;
};
std::optional<LayerTensorName> split_layer_name(std::string_view name, std::string_view prefix);

// The part of a fused projection that a module is: rows after those of the parts before it (D5).
struct FusedPart {
  std::string fused_module;  // "self_attn.qkv_proj"
  int64_t first_row = 0;
  int64_t fused_rows = 0;
};
// nullopt if that module is never part of a fused one.
std::optional<FusedPart> fused_part(const ModelConfig& config, const LayerTensorName& name);
// Where the fused tensor of this name holds `spec`.
StoredPlace fused_place(std::string name, const FusedPart& part, const TensorSpec& spec);

}  // namespace testbed
