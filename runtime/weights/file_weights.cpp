// Reading slices of mapped tensors, and the checks that all file formats share.
#include "runtime/weights/file_weights.hpp"

#include <fmt/format.h>

#include <charconv>
#include <set>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/weights/convert.hpp"

namespace testbed {
namespace {

std::vector<int64_t> dims_of(const Shape& shape) {
  std::vector<int64_t> dims(static_cast<size_t>(shape.rank()));
  for (int i = 0; i < shape.rank(); ++i) dims[static_cast<size_t>(i)] = shape[i];
  return dims;
}

std::string where(const std::string& name, const MappedTensor& tensor) {
  if (tensor.name == name) return fmt::format("{}: tensor '{}'", tensor.file, name);
  return fmt::format("{}: tensor '{}' (stored as '{}')", tensor.file, name, tensor.name);
}

DType readable_dtype(const std::string& name, const MappedTensor& tensor) {
  if (!tensor.dtype)
    throw WeightsError(fmt::format(
        "{} has type {}, which is not supported", where(name, tensor), tensor.dtype_label));
  return *tensor.dtype;
}

// The stored row of canonical row `row`.
int64_t stored_row(const StoredPart& part, int64_t row) {
  const int64_t d = part.permuted_head_dim;
  if (d == 0) return part.first_row + row;
  const int64_t in_head = row % d;
  const int64_t j = in_head / (d / 2);
  const int64_t i = in_head % (d / 2);
  return part.first_row + row - in_head + 2 * i + j;
}

// Where `rows` x `cols` of a stored tensor with n_cols columns go.
struct Slice {
  IndexRange rows;
  IndexRange cols;
  int64_t n_cols = 0;
};

void copy_slice(const StoredPart& part, DType dtype, const Slice& slice, TensorView dst) {
  const std::byte* src = part.tensor.bytes.data();
  auto* out = static_cast<std::byte*>(dst.data());
  const int64_t width = slice.cols.size();
  if (width == slice.n_cols && part.permuted_head_dim == 0) {
    const int64_t first = stored_row(part, slice.rows.begin) * slice.n_cols;
    convert_elements(
        dtype, src + dtype_bytes(dtype, first), slice.rows.size() * width, dst.dtype(), out);
    return;
  }
  for (int64_t row = slice.rows.begin; row < slice.rows.end; ++row) {
    const int64_t first = stored_row(part, row) * slice.n_cols + slice.cols.begin;
    convert_elements(dtype, src + dtype_bytes(dtype, first), width, dst.dtype(), out);
    out += dtype_bytes(dst.dtype(), width);
  }
}

}  // namespace

FileWeights::FileWeights(std::string description,
                         const ModelConfig& config,
                         const LocatePart& locate,
                         std::shared_ptr<const void> keep_alive)
    : description_(std::move(description)), keep_alive_(std::move(keep_alive)) {
  for (const TensorSpec& spec : required_tensors(config)) {
    std::optional<StoredPart> part = locate(spec);
    const std::vector<int64_t> expected = dims_of(spec.shape);
    if (!part)
      throw WeightsError(fmt::format("{}: tensor '{}' of shape [{}] is missing",
                                     description_,
                                     spec.name,
                                     fmt::join(expected, ", ")));
    std::vector<int64_t> stored = expected;
    if (part->stored_rows != 0) stored[0] = part->stored_rows;
    if (part->tensor.shape != stored)
      throw WeightsError(fmt::format("{} has shape [{}], the model needs [{}]",
                                     where(spec.name, part->tensor),
                                     fmt::join(part->tensor.shape, ", "),
                                     fmt::join(stored, ", ")));
    tensors_.emplace(spec.name, Located{*std::move(part), spec.shape});
  }
}

const FileWeights::Located& FileWeights::locate(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end())
    throw WeightsError(fmt::format("{}: the model has no tensor '{}'", description_, name));
  return it->second;
}

std::optional<StoredTensor> FileWeights::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return std::nullopt;
  return StoredTensor{readable_dtype(it->first, it->second.part.tensor), it->second.shape};
}

void FileWeights::read(std::string_view name,
                       IndexRange rows,
                       IndexRange cols,
                       TensorView dst) const {
  const Located& located = locate(name);
  const StoredPart& part = located.part;
  const bool vector = located.shape.rank() == 1;
  const int64_t n_rows = vector ? 1 : located.shape[0];
  const int64_t n_cols = located.shape[-1];
  CHECK(0 <= rows.begin && rows.begin <= rows.end && rows.end <= n_rows);
  CHECK(0 <= cols.begin && cols.begin <= cols.end && cols.end <= n_cols);
  CHECK(dst.n_elements() == rows.size() * cols.size());
  const std::string spelled(name);
  const DType dtype = readable_dtype(spelled, part.tensor);
  if (rows.size() == 0 || cols.size() == 0) return;
  // A vector is a column: its elements are rows, which fused and permuted parts speak of.
  const Slice slice = vector ? Slice{cols, {0, 1}, 1} : Slice{rows, cols, n_cols};
  const int64_t block = dtype_info(dtype).block_elements;
  if (vector && block > 1)
    throw WeightsError(fmt::format("{} is a vector in block type {}, which is not supported",
                                   where(spelled, part.tensor),
                                   dtype_name(dtype)));
  if (slice.cols.begin % block != 0 || slice.cols.end % block != 0)
    throw WeightsError(fmt::format("{}: columns [{}, {}) do not start and end on a block of {} {}",
                                   where(spelled, part.tensor),
                                   cols.begin,
                                   cols.end,
                                   block,
                                   dtype_name(dtype)));
  copy_slice(part, dtype, slice, dst);
}

void FileWeights::refuse_unused(const std::vector<Named>& stored, int64_t n_layers) const {
  std::set<std::string_view> used;
  for (const auto& [name, located] : tensors_) used.insert(located.part.tensor.name);
  for (const Named& tensor : stored) {
    if (tensor.layer && *tensor.layer >= n_layers) continue;  // cut off by --layers
    if (!used.contains(tensor.name))
      throw WeightsError(
          fmt::format("{}: tensor '{}' is not part of the model that the configuration describes",
                      tensor.file,
                      tensor.name));
  }
}

std::optional<FusedPart> fused_part(const ModelConfig& config, std::string_view module) {
  const int64_t q_rows = config.n_heads * config.head_dim;
  const int64_t kv_rows = config.n_kv_heads * config.head_dim;
  const int64_t qkv_rows = q_rows + 2 * kv_rows;
  if (module == "self_attn.q_proj") return FusedPart{"self_attn.qkv_proj", 0, qkv_rows};
  if (module == "self_attn.k_proj") return FusedPart{"self_attn.qkv_proj", q_rows, qkv_rows};
  if (module == "self_attn.v_proj")
    return FusedPart{"self_attn.qkv_proj", q_rows + kv_rows, qkv_rows};
  if (module == "mlp.gate_proj") return FusedPart{"mlp.gate_up_proj", 0, 2 * config.d_ff};
  if (module == "mlp.up_proj") return FusedPart{"mlp.gate_up_proj", config.d_ff, 2 * config.d_ff};
  return std::nullopt;
}

std::optional<LayerTensorName> split_layer_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  LayerTensorName out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  if (error != std::errc{}) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  const size_t last = name.rfind('.');
  if (!name.starts_with('.') || last == 0) return std::nullopt;
  out.module = name.substr(1, last - 1);
  out.leaf = name.substr(last + 1);
  return out;
}

}  // namespace testbed
