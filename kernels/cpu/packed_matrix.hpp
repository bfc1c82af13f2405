// PackedMatrix: a weight matrix repacked once, at load, into the layout that serves decode and
// prefill. Rows go in panels of 16, zero-padded; within a panel the columns follow one another,
// BF16 two at a time:
//   BF16: [panel][k/2][16 rows][2]   (a 64-byte vector holds two columns of 16 rows: one vdpbf16ps)
//   F32, F16: [panel][k][16 rows]
//   quantised: see PackedLayout
#pragma once

#include <cstdint>

#include "kernels/base/tensor.hpp"
#include "kernels/base/weight_format.hpp"
#include "kernels/cpu/packed_layout.hpp"
#include "kernels/quantise.hpp"

namespace testbed::cpu {

class PackedMatrix {
 public:
  static constexpr int64_t panel_rows = PackedLayout::panel_rows;

  PackedMatrix() = default;
  // Plain: F32, F16 or BF16; quantised: one of weight_formats. All bytes zero.
  PackedMatrix(int64_t n_rows, int64_t n_cols, const WeightFormat& format);

  int64_t n_rows() const { return n_rows_; }
  int64_t n_cols() const { return n_cols_; }
  const WeightFormat& format() const { return format_; }
  bool is_quantised() const { return format_.is_quantised(); }
  DType dtype() const { return format_.dtype; }  // of plain elements
  int64_t n_panels() const { return (n_rows_ + panel_rows - 1) / panel_rows; }
  int64_t padded_cols() const { return padded_cols_; }
  int64_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t index) const {
    return static_cast<const std::byte*>(data_.data()) + index * panel_bytes_;
  }
  const PackedLayout& layout() const { return layout_; }  // of a quantised matrix

  // Rows [first_row, first_row + rows.n_rows()) from row-major memory of the same dtype. Different
  // rows may be stored from different threads if they are in different panels.
  void store_rows(int64_t first_row, TensorView rows);
  // The same of a quantised matrix, in its format.
  void store_rows(int64_t first_row, const QuantisedRows& rows);
  // One row, expanded to F32 [n_cols]; quantised ones as dequantise() does it.
  void load_row(int64_t row, float* out) const;

 private:
  std::byte* mutable_panel(int64_t index) {
    return static_cast<std::byte*>(data_.data()) + index * panel_bytes_;
  }

  int64_t n_rows_ = 0;
  int64_t n_cols_ = 0;
  int64_t padded_cols_ = 0;
  int64_t panel_bytes_ = 0;
  WeightFormat format_;
  PackedLayout layout_;
  Tensor data_;
};

}  // namespace testbed::cpu
