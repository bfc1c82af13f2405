// WeightSource: the tensors of one model by their canonical names (tensor_names.hpp:
// "model.layers.3.self_attn.q_proj.weight"), wherever they are stored: safetensors, GGUF, or
// computed from a seed. Reads are slices, so that a rank touches only the bytes of its shard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/index_range.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/quantise.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed {

struct StoredTensor {
  DType dtype;  // as stored
  Shape shape;  // [rows, cols], or [n] for vectors
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // nullopt if the model has no such tensor. A tensor of the file that holds several
  // (qkv_proj, gate_up_proj, all experts) is found under the names of its parts (D5).
  virtual std::optional<StoredTensor> find(std::string_view name) const = 0;

  // Elements [rows] x [cols] of a matrix into dst [rows.size(), cols.size()], F32, BF16 or F16,
  // contiguous, converted (block-quantised types are expanded). A vector is read as cols of its
  // only row: rows = {0, 1}. Column ranges of quantised tensors must start and end on a block
  // boundary, else WeightsError (D4). Throws WeightsError naming the tensor and file.
  virtual void read(std::string_view name,
                    IndexRange rows,
                    IndexRange cols,
                    TensorView dst) const = 0;

  // The same slice of a matrix that is stored in blocks, as they are: codes, scales and offsets in
  // native_format() of the stored dtype.
  virtual void read_blocks(std::string_view name,
                           IndexRange rows,
                           IndexRange cols,
                           const QuantisedRows& dst) const = 0;

  // "random(seed=0)", or the file or folder, as reported.
  virtual std::string description() const = 0;
};

// A folder with model.safetensors or model.safetensors.index.json, or one .safetensors file.
std::unique_ptr<WeightSource> open_safetensors(const std::filesystem::path& path,
                                               const ModelConfig& config);

// One GGUF file, or the first of a split set (…-00001-of-0000N.gguf).
std::unique_ptr<WeightSource> open_gguf(const std::filesystem::path& path,
                                        const ModelConfig& config);

// Every element is a function of (seed, tensor name, global index) only, so that all shardings see
// the same model. Values are rounded to config.stored_dtype.
std::unique_ptr<WeightSource> make_random_weights(const ModelConfig& config, uint64_t seed);

// A matrix's stored dtype when the source has one (auto), by path: folder or file. Chooses the
// reader above.
std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path,
                                           const ModelConfig& config);

}  // namespace testbed
