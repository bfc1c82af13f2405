// MatrixLoader: fills a device's matrices with slices of stored tensors, piece by piece, in the
// format that each matrix is held in. Scales are those of the whole tensor, whatever slice is read.
#pragma once

#include <functional>
#include <string>

#include "kernels/device.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed {

// A slice of one stored tensor. Vectors are cols of one row.
struct Slice {
  std::string name;
  IndexRange rows;
  IndexRange cols;
};

class MatrixLoader {
 public:
  // loaded(n_rows) is called after each piece.
  MatrixLoader(Device& device,
               const WeightSource& source,
               const std::function<void(int64_t)>& loaded)
      : device_(device), source_(source), loaded_(loaded) {}

  // The slice into the weight's rows [first_row, first_row + slice.rows.size()). Throws
  // WeightsError naming the tensor.
  void load(const Slice& slice, const WeightMatrix& weight, int64_t first_row) const;

 private:
  void load_plain(const Slice& slice, const WeightMatrix& weight, int64_t first_row) const;
  void load_blocks(const Slice& slice, const WeightMatrix& weight, int64_t first_row) const;
  void load_quantising(const Slice& slice, const WeightMatrix& weight, int64_t first_row) const;
  void for_pieces(const Slice& slice,
                  int64_t piece_rows,
                  const std::function<void(IndexRange)>& load_piece) const;
  template <typename Rows>
  void store(const WeightMatrix& weight, int64_t first_row, const Rows& rows, int64_t n_rows) const;
  float amax_of(const std::string& name, const Shape& shape) const;

  Device& device_;
  const WeightSource& source_;
  const std::function<void(int64_t)>& loaded_;
};

}  // namespace testbed
