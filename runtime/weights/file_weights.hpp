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

#include "runtime/weights/checkpoint_names.hpp"
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

// One canonical tensor in a mapped one.
struct StoredPart {
  std::shared_ptr<const MappedTensor> tensor;
  StoredPlace place;
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
  void read_blocks(std::string_view name,
                   IndexRange rows,
                   IndexRange cols,
                   const QuantisedRows& dst) const override;
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

}  // namespace testbed
