// PackedMatrix: a weight matrix repacked once, at load, into the layout that serves decode and
// prefill. Rows go in panels of 16, zero-padded; within a panel the columns follow one another,
// BF16 two at a time:
//   BF16: [panel][k/2][16 rows][2]   (a 64-byte vector holds two columns of 16 rows: one vdpbf16ps)
//   F32, F16: [panel][k][16 rows]
#pragma once

#include <cstdint>

#include "kernels/base/tensor.hpp"

namespace testbed::cpu {

class PackedMatrix {
 public:
  static constexpr int64_t panel_rows = 16;

  PackedMatrix() = default;
  PackedMatrix(int64_t n_rows, int64_t n_cols, DType dtype);  // F32, F16 or BF16; zero

  int64_t n_rows() const { return n_rows_; }
  int64_t n_cols() const { return n_cols_; }
  DType dtype() const { return dtype_; }
  int64_t n_panels() const { return (n_rows_ + panel_rows - 1) / panel_rows; }
  int64_t padded_cols() const { return padded_cols_; }
  int64_t panel_bytes() const { return panel_rows * dtype_bytes(dtype_, padded_cols_); }
  const std::byte* panel(int64_t index) const {
    return static_cast<const std::byte*>(data_.data()) + index * panel_bytes();
  }

  // Rows [first_row, first_row + rows.n_rows()) from row-major memory of the same dtype. Different
  // rows may be stored from different threads if they are in different panels.
  void store_rows(int64_t first_row, TensorView rows);
  // One row, expanded to F32 [n_cols].
  void load_row(int64_t row, float* out) const;

 private:
  int64_t n_rows_ = 0;
  int64_t n_cols_ = 0;
  int64_t padded_cols_ = 0;
  DType dtype_ = DType::BF16;
  Tensor data_;
};

}  // namespace testbed::cpu
