// ShardReader: reads a rank's slices of a model's tensors, piece by piece, into the device's
// layout. Without a device it only counts: the planned bytes come from the same walk.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "runtime/model/model.hpp"

namespace testbed {

// A slice of one stored tensor. Vectors are cols of one row.
struct Slice {
  std::string name;
  IndexRange rows;
  IndexRange cols;
};

class ShardReader {
 public:
  ShardReader(Device* device,
              const WeightSource& source,
              ResidentWeights wanted,
              DType compute,
              const std::function<void(int64_t, int64_t)>* progress,
              int64_t total_bytes)
      : device_(device),
        source_(source),
        wanted_(wanted),
        compute_(compute),
        progress_(progress),
        total_bytes_(total_bytes) {}

  // The slices' rows stacked into one matrix.
  WeightMatrix matrix(const std::vector<Slice>& slices);
  // The slice's transpose: [cols, rows].
  WeightMatrix transposed(const Slice& slice);
  // The same slice of several vectors, one after the other; F32.
  Tensor vectors(const std::vector<std::string>& names, IndexRange range);
  Tensor vector(const std::string& name, IndexRange range) { return vectors({name}, range); }
  // value = value * factor + addend, of a vector that was just read.
  void adjust(const Tensor& vector, float factor, float addend) const;
  // The one element of a scalar tensor; 1 for a device without data.
  float scalar(const std::string& name);

  int64_t block_elements(const std::string& name) const;
  int64_t bytes() const { return bytes_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  bool loads() const { return device_ != nullptr && device_->holds_data(); }
  DType dtype_of(const std::vector<Slice>& slices);
  void note(DType stored, DType resident);
  int64_t copy(const Slice& slice, const WeightMatrix& weight, int64_t row);

  Device* device_;
  const WeightSource& source_;
  ResidentWeights wanted_;
  DType compute_;
  const std::function<void(int64_t, int64_t)>* progress_;
  int64_t total_bytes_;
  int64_t bytes_ = 0;
  int64_t done_bytes_ = 0;
  Tensor staging_;
  std::vector<std::string> notes_;
};

}  // namespace testbed
