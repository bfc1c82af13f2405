#include "runtime/model/shard_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/errors.hpp"

namespace testbed {

WeightMatrix ShardReader::matrix(const std::vector<Slice>& slices) {
  const WeightFormat format = format_of(slices);
  if (!format.is_quantised()) return stacked(slices, plain_dtype_of(slices));
  return quantised(slices, format);
}

WeightMatrix ShardReader::table(const Slice& slice) {
  const WeightFormat format =
      resident_format(stored(slice).dtype, wanted_, compute_, MatrixRole::table);
  if (!format.is_quantised()) return plain_matrix(slice, "embeddings and head");
  if (wanted_.quantised && format != *wanted_.quantised) {
    note(fmt::format("embeddings and head: {}", format_name(format)));
  }
  return quantised({slice}, format);
}

WeightMatrix ShardReader::plain_matrix(const Slice& slice, std::string_view what) {
  const DType dtype = plain_dtype_of({slice});
  if (wanted_.quantised) note(fmt::format("not quantised: {}, {}", what, dtype_name(dtype)));
  return stacked({slice}, dtype);
}

WeightMatrix ShardReader::stacked(const std::vector<Slice>& slices, const WeightFormat& format) {
  int64_t n_rows = 0;
  for (const Slice& slice : slices) n_rows += slice.rows.size();
  const int64_t n_cols = slices.front().cols.size();
  bytes_ += format.n_bytes(n_rows, n_cols);
  if (device_ == nullptr) return {n_rows, n_cols, format, nullptr};
  WeightMatrix weight = device_->allocate_weight(n_rows, n_cols, format);
  if (!loads()) return weight;
  const std::function<void(int64_t)> loaded = [&](int64_t n) {
    done_bytes_ += format.n_bytes(n, n_cols);
    if (progress_ != nullptr) (*progress_)(done_bytes_, total_bytes_);
  };
  const MatrixLoader loader(*device_, source_, loaded);
  int64_t row = 0;
  for (const Slice& slice : slices) {
    loader.load(slice, weight, row);
    row += slice.rows.size();
  }
  return weight;
}

WeightMatrix ShardReader::transposed(const Slice& slice) {
  const int64_t n_rows = slice.cols.size();
  const int64_t n_cols = slice.rows.size();
  const DType dtype = plain_dtype_of({slice});
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
  const Tensor rows(DType::F32, {static_cast<int64_t>(names.size()), range.size()});
  for (size_t i = 0; i < names.size(); ++i) {
    source_.read(names[i], {0, 1}, range, rows.view().rows(static_cast<int64_t>(i), 1));
  }
  device_->upload(rows, out);
  return out;
}

void ShardReader::adjust(const Tensor& vector, float factor, float addend) const {
  if (!loads()) return;
  const Tensor host(DType::F32, vector.shape());
  device_->download(vector, host);
  auto* values = host.as<float>();
  for (int64_t i = 0; i < host.n_elements(); ++i) values[i] = values[i] * factor + addend;
  device_->upload(host, vector);
}

float ShardReader::scalar(const std::string& name) {
  if (!loads()) return 1.0F;
  const Tensor value(DType::F32, {1});
  source_.read(name, {0, 1}, {0, 1}, value.view().reshaped({1, 1}));
  return *value.as<float>();
}

StoredTensor ShardReader::stored(const Slice& slice) const {
  const std::optional<StoredTensor> found = source_.find(slice.name);
  if (!found) throw WeightsError(source_.description() + ": no tensor " + slice.name);
  return *found;
}

WeightFormat ShardReader::format_of(const std::vector<Slice>& slices) const {
  const WeightFormat first = resident_format(stored(slices.front()).dtype, wanted_, compute_);
  const bool alike = std::all_of(slices.begin(), slices.end(), [&](const Slice& slice) {
    return resident_format(stored(slice).dtype, wanted_, compute_) == first;
  });
  if (alike) return first;
  return wanted_.quantised.value_or(compute_);
}

WeightMatrix ShardReader::quantised(const std::vector<Slice>& slices, const WeightFormat& format) {
  for (const Slice& slice : slices) {
    refuse_cut_groups(slice, format);
    const DType from = stored(slice).dtype;
    if (native_format(from) == format) {
      note(fmt::format("weights computed as stored: {}", dtype_name(from)));
    } else {
      note_conversion(from, format);
    }
  }
  if (std::find(quantised_formats_.begin(), quantised_formats_.end(), format) ==
      quantised_formats_.end()) {
    quantised_formats_.push_back(format);
  }
  return stacked(slices, format);
}

DType ShardReader::plain_dtype_of(const std::vector<Slice>& slices) {
  std::optional<DType> result;
  for (const Slice& slice : slices) {
    const DType from = stored(slice).dtype;
    const DType resident = resident_plain_dtype(from, wanted_.plain, compute_);
    if (resident != from) note_conversion(from, resident);
    if (result && *result != resident) {  // parts stored unlike each other
      note_conversion(resident, DType::F32);
      return DType::F32;
    }
    result = resident;
  }
  return *result;
}

// D4. Scales are of the whole tensor's groups.
void ShardReader::refuse_cut_groups(const Slice& slice, const WeightFormat& format) const {
  const int64_t n_cols = stored(slice).shape[-1];
  const int64_t group = format.col_granularity();
  const auto cuts = [&](int64_t col) { return col % group != 0 && col != n_cols; };
  if (!cuts(slice.cols.begin) && !cuts(slice.cols.end)) return;
  throw WeightsError(
      fmt::format("{}: tensor '{}': columns [{}, {}) do not start and end on a "
                  "group of {} of {}",
                  source_.description(),
                  slice.name,
                  slice.cols.begin,
                  slice.cols.end,
                  group,
                  format_name(format)));
}

void ShardReader::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) {
    notes_.push_back(std::move(text));
  }
}

void ShardReader::note_conversion(DType from, const WeightFormat& to) {
  note(fmt::format("weights converted: {} -> {}", dtype_name(from), format_name(to)));
}

}  // namespace testbed
