// Reading slices of mapped tensors, and the checks that all file formats share.
#include "runtime/weights/file_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

// D4.
void refuse_cut_blocks(const std::string& name,
                       const MappedTensor& tensor,
                       DType dtype,
                       IndexRange cols) {
  const int64_t block = dtype_info(dtype).block_elements;
  if (cols.begin % block == 0 && cols.end % block == 0) return;
  throw WeightsError(fmt::format("{}: columns [{}, {}) do not start and end on a block of {} {}",
                                 where(name, tensor),
                                 cols.begin,
                                 cols.end,
                                 block,
                                 dtype_name(dtype)));
}

// Where in the stored tensor, in elements, canonical row `row` begins.
int64_t row_start(const StoredPart& part, int64_t row) {
  const int64_t d = part.permuted_head_dim;
  if (d != 0) {
    const int64_t in_head = row % d;
    const int64_t j = in_head / (d / 2);
    const int64_t i = in_head % (d / 2);
    row += 2 * i + j - in_head;
  }
  return part.place.first + row * part.place.row_stride;
}

struct Slice {
  IndexRange rows;
  IndexRange cols;
};

// Rows of adjacent columns: as they lie, or row by row.
void copy_rows(const StoredPart& part, DType dtype, const Slice& slice, TensorView dst) {
  const std::byte* src = part.tensor->bytes.data();
  auto* out = static_cast<std::byte*>(dst.data());
  const int64_t width = slice.cols.size();
  if (width == part.place.row_stride && part.permuted_head_dim == 0) {
    const int64_t first = row_start(part, slice.rows.begin) + slice.cols.begin;
    convert_elements(
        dtype, src + dtype_bytes(dtype, first), slice.rows.size() * width, dst.dtype(), out);
    return;
  }
  for (int64_t row = slice.rows.begin; row < slice.rows.end; ++row) {
    const int64_t first = row_start(part, row) + slice.cols.begin;
    convert_elements(dtype, src + dtype_bytes(dtype, first), width, dst.dtype(), out);
    out += dtype_bytes(dst.dtype(), width);
  }
}

// Transposed: a column's rows lie row_stride apart and are scattered into dst, in tiles that keep
// the touched lines of dst in cache. Word has the size of dst's elements.
template <typename Word>
void gather_columns(const StoredPart& part, DType dtype, const Slice& slice, TensorView dst) {
  constexpr int64_t tile = 128;
  constexpr int64_t max_row_stride = 2;  // gate and up interleaved
  const StoredPlace& place = part.place;
  CHECK(place.row_stride <= max_row_stride && part.permuted_head_dim == 0);
  std::array<Word, max_row_stride * tile> run;
  auto* out = static_cast<Word*>(dst.data());
  const int64_t width = slice.cols.size();
  for (int64_t row = slice.rows.begin; row < slice.rows.end; row += tile) {
    const int64_t n = std::min(tile, slice.rows.end - row);
    for (int64_t col = slice.cols.begin; col < slice.cols.end; ++col) {
      const int64_t first = row_start(part, row) + col * place.col_stride;
      convert_elements(dtype,
                       part.tensor->bytes.data() + dtype_bytes(dtype, first),
                       (n - 1) * place.row_stride + 1,
                       dst.dtype(),
                       reinterpret_cast<std::byte*>(run.data()));
      Word* to = out + (row - slice.rows.begin) * width + (col - slice.cols.begin);
      for (int64_t i = 0; i < n; ++i)
        to[i * width] = run[static_cast<size_t>(i * place.row_stride)];
    }
  }
}

void copy_slice(const StoredPart& part, DType dtype, const Slice& slice, TensorView dst) {
  if (part.place.col_stride == 1)
    copy_rows(part, dtype, slice, dst);
  else if (dst.dtype() == DType::F32)
    gather_columns<uint32_t>(part, dtype, slice, dst);
  else
    gather_columns<uint16_t>(part, dtype, slice, dst);
}

}  // namespace

FileWeights::FileWeights(std::string description,
                         const ModelConfig& config,
                         const LocatePart& locate,
                         std::shared_ptr<const void> keep_alive)
    : description_(std::move(description)), keep_alive_(std::move(keep_alive)) {
  for (const TensorSpec& spec : required_tensors(config)) {
    std::optional<StoredPart> part = locate(spec);
    if (!part)
      throw WeightsError(fmt::format("{}: tensor '{}' of shape [{}] is missing",
                                     description_,
                                     spec.name,
                                     fmt::join(dims_of(spec.shape), ", ")));
    if (part->tensor->shape != part->place.shape)
      throw WeightsError(fmt::format("{} has shape [{}], the model needs [{}]",
                                     where(spec.name, *part->tensor),
                                     fmt::join(part->tensor->shape, ", "),
                                     fmt::join(part->place.shape, ", ")));
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
  return StoredTensor{readable_dtype(it->first, *it->second.part.tensor), it->second.shape};
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
  const DType dtype = readable_dtype(spelled, *part.tensor);
  if (rows.size() == 0 || cols.size() == 0) return;
  // A vector is a column: its elements are rows, which fused and permuted parts speak of.
  const Slice slice = vector ? Slice{cols, {0, 1}} : Slice{rows, cols};
  const int64_t block = dtype_info(dtype).block_elements;
  if (vector && block > 1)
    throw WeightsError(fmt::format("{} is a vector in block type {}, which is not supported",
                                   where(spelled, *part.tensor),
                                   dtype_name(dtype)));
  refuse_cut_blocks(spelled, *part.tensor, dtype, slice.cols);
  copy_slice(part, dtype, slice, dst);
}

void FileWeights::read_blocks(std::string_view name,
                              IndexRange rows,
                              IndexRange cols,
                              const QuantisedRows& dst) const {
  const Located& located = locate(name);
  const StoredPart& part = located.part;
  const std::string spelled(name);
  const DType dtype = readable_dtype(spelled, *part.tensor);
  CHECK(located.shape.rank() == 2 && part.place.col_stride == 1);
  CHECK(dst.format.is_quantised() && dst.format == native_format(dtype));
  CHECK(0 <= rows.begin && rows.begin <= rows.end && rows.end <= located.shape[0]);
  CHECK(0 <= cols.begin && cols.begin <= cols.end && cols.end <= located.shape[1]);
  CHECK(dst.n_rows() == rows.size() && dst.n_cols() == cols.size());
  refuse_cut_blocks(spelled, *part.tensor, dtype, cols);
  const int64_t n_blocks = dst.format.n_groups(cols.size());
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t at = row - rows.begin;
    unpack_blocks(dtype,
                  part.tensor->bytes.data() + dtype_bytes(dtype, row_start(part, row) + cols.begin),
                  cols.size(),
                  {.codes = dst.codes.as<int8_t>() + at * cols.size(),
                   .scales = dst.scales.as<f16>() + at * n_blocks,
                   .minima = dst.format.offset == WeightOffset::minimum
                                 ? dst.offsets.as<f16>() + at * n_blocks
                                 : nullptr});
  }
}

void FileWeights::refuse_unused(const std::vector<Named>& stored, int64_t n_layers) const {
  std::set<std::string_view> used;
  for (const auto& [name, located] : tensors_) used.insert(located.part.tensor->name);
  for (const Named& tensor : stored) {
    if (tensor.layer && *tensor.layer >= n_layers) continue;  // cut off by --layers
    if (!used.contains(tensor.name))
      throw WeightsError(
          fmt::format("{}: tensor '{}' is not part of the model that the configuration describes",
                      tensor.file,
                      tensor.name));
  }
}

}  // namespace testbed
