#include "kernels/cpu/packed_matrix.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/base/huge_pages.hpp"
#include "kernels/cpu/packed_quantised.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t panel_rows = PackedMatrix::panel_rows;

int64_t pad_cols(int64_t n_cols, DType dtype) {
  return dtype == DType::BF16 ? (n_cols + 1) / 2 * 2 : n_cols;
}

// Writes units [0, n_units) of n_rows rows to column-major panel memory. A unit is what lies
// together in the panel: one F32 or F16, or two BF16. Goes by lines of 64 bytes, so that each line
// of a row is fetched once.
template <typename Unit>
void transpose(
    const std::byte* rows, int64_t row_bytes, int64_t n_rows, int64_t n_units, std::byte* panel) {
  constexpr int64_t unit_bytes = sizeof(Unit);
  constexpr int64_t line_units = 64 / unit_bytes;
  for (int64_t begin = 0; begin < n_units; begin += line_units) {
    const int64_t count = std::min(line_units, n_units - begin);
    for (int64_t r = 0; r < n_rows; ++r) {
      Unit line[line_units];
      const std::byte* from = rows + r * row_bytes + begin * unit_bytes;
      std::byte* to = panel + (begin * panel_rows + r) * unit_bytes;
      if (count == line_units) {
        std::memcpy(line, from, sizeof(line));
        for (int64_t i = 0; i < line_units; ++i) {
          std::memcpy(to + i * panel_rows * unit_bytes, &line[i], sizeof(Unit));
        }
      } else {
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(to + i * panel_rows * unit_bytes, from + i * unit_bytes, sizeof(Unit));
        }
      }
    }
  }
}

}  // namespace

PackedMatrix::PackedMatrix(int64_t n_rows, int64_t n_cols, const WeightFormat& format)
    : n_rows_(n_rows), n_cols_(n_cols), format_(format) {
  CHECK(n_rows >= 0 && n_cols >= 0);
  if (format.is_quantised()) {
    CHECK(!format_name(format).empty());  // one that the kernels know
    layout_ = PackedLayout(format, n_cols);
    padded_cols_ = layout_.padded_cols;
    panel_bytes_ = layout_.panel_bytes();
  } else {
    CHECK(dtype() == DType::F32 || dtype() == DType::F16 || dtype() == DType::BF16);
    padded_cols_ = pad_cols(n_cols, dtype());
    panel_bytes_ = panel_rows * dtype_bytes(dtype(), padded_cols_);
  }
  data_ = in_huge_pages(DType::I8, {n_panels(), panel_bytes_});
}

void PackedMatrix::store_rows(int64_t first_row, TensorView rows) {
  const int64_t count = rows.n_rows();
  CHECK(!is_quantised() && rows.dtype() == dtype() && first_row >= 0 &&
        first_row + count <= n_rows_);
  CHECK(count == 0 || rows.row_elements() == n_cols_);
  const auto* from = static_cast<const std::byte*>(rows.data());
  const int64_t element_bytes = dtype_bytes(dtype(), 1);
  const int64_t row_bytes = n_cols_ * element_bytes;
  const int64_t unit_elements = dtype() == DType::BF16 ? 2 : 1;
  const int64_t unit_bytes = unit_elements * element_bytes;
  const int64_t n_units = n_cols_ / unit_elements;
  for (int64_t row = first_row; row < first_row + count;) {
    const int64_t lane = row % panel_rows;
    const int64_t n = std::min(panel_rows - lane, first_row + count - row);
    std::byte* to = mutable_panel(row / panel_rows) + lane * unit_bytes;
    if (dtype() == DType::F16) {
      transpose<uint16_t>(from, row_bytes, n, n_units, to);
    } else {
      transpose<uint32_t>(from, row_bytes, n, n_units, to);
    }
    if (n_units * unit_elements <
        n_cols_) {  // the last BF16 column of an odd number; its partner stays zero
      for (int64_t r = 0; r < n; ++r) {
        std::memcpy(to + (n_units * panel_rows + r) * unit_bytes,
                    from + r * row_bytes + n_units * unit_bytes,
                    static_cast<size_t>(element_bytes));
      }
    }
    from += n * row_bytes;
    row += n;
  }
}

void PackedMatrix::store_rows(int64_t first_row, const QuantisedRows& rows) {
  const int64_t count = rows.n_rows();
  CHECK(is_quantised() && rows.format == format_);
  CHECK(first_row >= 0 && first_row + count <= n_rows_ && rows.n_cols() == n_cols_);
  for (int64_t row = first_row; row < first_row + count;) {
    const int64_t lane = row % panel_rows;
    const int64_t n = std::min(panel_rows - lane, first_row + count - row);
    store_quantised(layout_, rows.rows(row - first_row, n), lane, mutable_panel(row / panel_rows));
    row += n;
  }
}

void PackedMatrix::load_row(int64_t row, float* out) const {
  CHECK(row >= 0 && row < n_rows_);
  const std::byte* from = panel(row / panel_rows);
  const int64_t lane = row % panel_rows;
  if (is_quantised()) {
    for_each_piece(layout_, from, {0, n_cols_}, [&](const WeightGroup& group) {
      load_quantised(format_, group, lane, out + group.first_col, 1);
    });
    return;
  }
  switch (dtype()) {
    case DType::F32:
      for (int64_t k = 0; k < n_cols_; ++k) {
        out[k] = reinterpret_cast<const float*>(from)[k * panel_rows + lane];
      }
      break;
    case DType::F16:
      for (int64_t k = 0; k < n_cols_; ++k) {
        out[k] = to_f32(reinterpret_cast<const f16*>(from)[k * panel_rows + lane]);
      }
      break;
    default:
      for (int64_t k = 0; k < n_cols_; ++k) {
        out[k] =
            to_f32(reinterpret_cast<const bf16*>(from)[(k / 2 * panel_rows + lane) * 2 + k % 2]);
      }
  }
}

}  // namespace testbed::cpu
