// FileWeights: a WeightSource over mapped tensors, whatever the file format. The formats only say
// where each named tensor lies (StoredPart).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/weights/tensor_names.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed {

// A tensor as it lies in a file.
struct MappedTensor {
  std::string name;  // the file's own
  std::string file;
  std::string dtype_label;           // as the file spells it
  std::optional<DType> dtype;        // nullopt: refused when read
  std::vector<int64_t> shape;        // slowest first: [rows, cols]
  std::span<const std::byte> bytes;  // all of it, row-major
};

// One canonical tensor inside a stored one: rows [first_row, first_row + rows) of it. Rows of
// vectors are their elements.
struct StoredPart {
  MappedTensor tensor;
  int64_t first_row = 0;
  int64_t stored_rows = 0;  // of a fused tensor, all parts together; 0 if it is not fused
  // 0: rows in order. Otherwise GGUF's llama order, in heads of this many rows: row j*d/2 + i of a
  // head is stored as row 2i + j.
  int64_t permuted_head_dim = 0;
};

// Finds the stored part of a tensor that the model requires; nullopt if the files lack it.
using LocatePart = std::function<std::optional<StoredPart>(const TensorSpec&)>;

class FileWeights : public WeightSource {
 public:
  // `keep_alive` owns the mappings. Throws WeightsError if a required tensor is absent or has
  // another shape than the config gives it.
  FileWeights(std::string description,
              const ModelConfig& config,
              const LocatePart& locate,
              std::shared_ptr<const void> keep_alive);

  std::optional<StoredTensor> find(std::string_view name) const override;
  void read(std::string_view name, IndexRange rows, IndexRange cols, TensorView dst) const override;
  std::string description() const override { return description_; }

  // Throws WeightsError if a stored tensor that belongs to the model by its name is not part of
  // what the config describes: a bias that would be left out changes the answer. `stored` gives the
  // names in the files with the layer they belong to (nullopt: none).
  struct Named {
    std::string name;
    std::string file;
    std::optional<int64_t> layer;
  };
  void refuse_unused(const std::vector<Named>& stored, int64_t n_layers) const;

 private:
  struct Located {
    StoredPart part;
    Shape shape;  // canonical
  };
  const Located& locate(std::string_view name) const;

  std::string description_;
  std::map<std::string, Located, std::less<>> tensors_;
  std::shared_ptr<const void> keep_alive_;
};

// The part of a fused tensor that is `name`: rows after those of the parts before it (D5).
struct FusedPart {
  std::string fused_suffix;  // "self_attn.qkv_proj", without ".weight" or ".bias"
  int64_t first_row = 0;
  int64_t fused_rows = 0;
};
// `module` is "self_attn.q_proj" and so on; nullopt if that module is never part of a fused one.
std::optional<FusedPart> fused_part(const ModelConfig& config, std::string_view module);

// {layer, module, "weight" or "bias"} of "model.layers.3.self_attn.q_proj.weight"; nullopt if the
// name is not of a layer.
struct LayerTensorName {
  int64_t layer = 0;
  std::string module;
  std::string leaf;
};
std::optional<LayerTensorName> split_layer_name(std::string_view name, std::string_view prefix);

}  // namespace testbed
