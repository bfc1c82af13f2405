// ShardReader: reads a rank's slices of a model's tensors into the device's layout. Without a
// device it only counts: the planned bytes come from the same walk.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.hpp"
#include "runtime/model/matrix_loader.hpp"
#include "runtime/model/model.hpp"

namespace testbed {

class ShardReader {
 public:
  ShardReader(Device* device,
              const WeightSource& source,
              const ResidentWeights& wanted,
              DType compute,
              const std::function<void(int64_t, int64_t)>* progress,
              int64_t total_bytes)
      : device_(device),
        source_(source),
        wanted_(wanted),
        compute_(compute),
        progress_(progress),
        total_bytes_(total_bytes) {}

  // A layer's: the slices' rows stacked into one matrix, in one format. Slices that would be held
  // unlike each other are quantised as was asked for, or not at all. Throws WeightsError for
  // columns that cut a group.
  WeightMatrix matrix(const std::vector<Slice>& slices);
  // An embedding or the head.
  WeightMatrix table(const Slice& slice);
  // Never quantised; `what` names the kind of matrix in the notes.
  WeightMatrix plain_matrix(const Slice& slice, std::string_view what);
  // The slice's transpose, [cols, rows], never quantised.
  WeightMatrix transposed(const Slice& slice);
  // The same slice of several vectors, one after the other; F32.
  Tensor vectors(const std::vector<std::string>& names, IndexRange range);
  Tensor vector(const std::string& name, IndexRange range) { return vectors({name}, range); }
  // value = value * factor + addend, of a vector that was just read.
  void adjust(const Tensor& vector, float factor, float addend) const;
  // The one element of a scalar tensor; 1 for a device without data.
  float scalar(const std::string& name);

  int64_t column_granularity(const std::string& name) const {
    return testbed::column_granularity(source_, name, wanted_, compute_);
  }
  int64_t bytes() const { return bytes_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<WeightFormat>& quantised_formats() const { return quantised_formats_; }

 private:
  bool loads() const { return device_ != nullptr && device_->holds_data(); }
  StoredTensor stored(const Slice& slice) const;
  WeightFormat format_of(const std::vector<Slice>& slices) const;
  WeightMatrix quantised(const std::vector<Slice>& slices, const WeightFormat& format);
  DType plain_dtype_of(const std::vector<Slice>& slices);
  WeightMatrix stacked(const std::vector<Slice>& slices, const WeightFormat& format);
  void refuse_cut_groups(const Slice& slice, const WeightFormat& format) const;
  void note(std::string text);
  void note_conversion(DType from, const WeightFormat& to);

  Device* device_;
  const WeightSource& source_;
  ResidentWeights wanted_;
  DType compute_;
  const std::function<void(int64_t, int64_t)>* progress_;
  int64_t total_bytes_;
  int64_t bytes_ = 0;
  int64_t done_bytes_ = 0;
  std::vector<std::string> notes_;
  std::vector<WeightFormat> quantised_formats_;
};

}  // namespace testbed
