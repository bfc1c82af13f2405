#include "runtime/model/shard_reader.hpp"

#include <algorithm>

#include "kernels/base/errors.hpp"

namespace testbed {

WeightMatrix ShardReader::matrix(const std::vector<Slice>& slices) {
  int64_t n_rows = 0;
  for (const Slice& slice : slices) n_rows += slice.rows.size();
  const int64_t n_cols = slices.front().cols.size();
  const DType dtype = dtype_of(slices);
  bytes_ += dtype_bytes(dtype, n_rows * n_cols);
  if (device_ == nullptr) return {n_rows, n_cols, dtype, nullptr};
  WeightMatrix weight = device_->allocate_weight(n_rows, n_cols, dtype);
  if (!loads()) return weight;
  int64_t row = 0;
  for (const Slice& slice : slices) row = copy(slice, weight, row);
  return weight;
}

WeightMatrix ShardReader::transposed(const Slice& slice) {
  const int64_t n_rows = slice.cols.size();
  const int64_t n_cols = slice.rows.size();
  const DType dtype = dtype_of({slice});
  bytes_ += dtype_bytes(dtype, n_rows * n_cols);
  if (device_ == nullptr) return {n_rows, n_cols, dtype, nullptr};
  WeightMatrix weight = device_->allocate_weight(n_rows, n_cols, dtype);
  if (!loads()) return weight;
  const Tensor stored(dtype, {n_cols, n_rows});
  source_.read(slice.name, slice.rows, slice.cols, stored);
  const Tensor turned(dtype, {n_rows, n_cols});
  const auto element_bytes = static_cast<size_t>(dtype_bytes(dtype, 1));
  const auto* from = static_cast<const std::byte*>(stored.data());
  auto* to = static_cast<std::byte*>(turned.data());
  for (int64_t row = 0; row < n_rows; ++row) {
    for (int64_t col = 0; col < n_cols; ++col) {
      std::copy_n(from + static_cast<size_t>(col * n_rows + row) * element_bytes,
                  element_bytes,
                  to + static_cast<size_t>(row * n_cols + col) * element_bytes);
    }
  }
  device_->store_rows(weight, 0, turned);
  return weight;
}

Tensor ShardReader::vectors(const std::vector<std::string>& names, IndexRange range) {
  const int64_t n = static_cast<int64_t>(names.size()) * range.size();
  bytes_ += dtype_bytes(DType::F32, n);
  if (device_ == nullptr) return {};
  Tensor out = device_->allocate(DType::F32, {n});
  if (!loads()) return out;
  const TensorView rows = out.view().reshaped({static_cast<int64_t>(names.size()), range.size()});
  for (size_t i = 0; i < names.size(); ++i) {
    source_.read(names[i], {0, 1}, range, rows.rows(static_cast<int64_t>(i), 1));
  }
  return out;
}

void ShardReader::adjust(const Tensor& vector, float factor, float addend) const {
  if (!loads()) return;
  auto* values = vector.as<float>();
  for (int64_t i = 0; i < vector.n_elements(); ++i) values[i] = values[i] * factor + addend;
}

float ShardReader::scalar(const std::string& name) {
  if (!loads()) return 1.0F;
  const Tensor value(DType::F32, {1});
  source_.read(name, {0, 1}, {0, 1}, value.view().reshaped({1, 1}));
  return *value.as<float>();
}

int64_t ShardReader::block_elements(const std::string& name) const {
  const std::optional<StoredTensor> stored = source_.find(name);
  return stored ? dtype_info(stored->dtype).block_elements : 1;
}

DType ShardReader::dtype_of(const std::vector<Slice>& slices) {
  std::optional<DType> result;
  for (const Slice& slice : slices) {
    const std::optional<StoredTensor> stored = source_.find(slice.name);
    if (!stored) throw WeightsError(source_.description() + ": no tensor " + slice.name);
    const DType resident = resident_dtype(stored->dtype, wanted_, compute_);
    if (resident != stored->dtype) note(stored->dtype, resident);
    if (result && *result != resident) {  // parts stored unlike each other
      note(resident, DType::F32);
      return DType::F32;
    }
    result = resident;
  }
  return *result;
}

void ShardReader::note(DType stored, DType resident) {
  const std::string text = "weights converted: " + std::string(dtype_name(stored)) + " -> " +
                           std::string(dtype_name(resident));
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
}

int64_t ShardReader::copy(const Slice& slice, const WeightMatrix& weight, int64_t row) {
  constexpr int64_t piece_bytes = int64_t{8} << 20;
  const int64_t row_bytes = std::max<int64_t>(1, dtype_bytes(weight.dtype(), weight.n_cols()));
  const int64_t piece_rows = std::max<int64_t>(16, piece_bytes / row_bytes / 16 * 16);
  for (int64_t r = slice.rows.begin; r < slice.rows.end; r += piece_rows) {
    const int64_t n = std::min(piece_rows, slice.rows.end - r);
    if (staging_.dtype() != weight.dtype() || staging_.n_elements() < n * weight.n_cols()) {
      staging_ = Tensor(weight.dtype(), {piece_rows * weight.n_cols()});
    }
    const TensorView rows(staging_.data(), weight.dtype(), {n, weight.n_cols()});
    source_.read(slice.name, {r, r + n}, slice.cols, rows);
    device_->store_rows(weight, row, rows);
    row += n;
    done_bytes_ += n * row_bytes;
    if (progress_ != nullptr) (*progress_)(done_bytes_, total_bytes_);
  }
  return row;
}

}  // namespace testbed
