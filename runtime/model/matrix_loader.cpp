#include "runtime/model/matrix_loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

constexpr int64_t piece_bytes = int64_t{8} << 20;
// Rows that devices pack together: those of different panels may be stored at the same time.
constexpr int64_t panel_rows = 16;
// The most rows that share a scale, but for a whole tensor's. Pieces end at multiples of it.
constexpr int64_t most_group_rows = 128;

// Rows of width elements that fill a piece.
int64_t piece_rows_of(int64_t width, int64_t element_bytes) {
  const int64_t row_bytes = std::max<int64_t>(1, width * element_bytes);
  return std::max<int64_t>(1, piece_bytes / row_bytes / most_group_rows) * most_group_rows;
}

// Columns [cols) of rows whose one group is the row.
void copy_columns(const QuantisedRows& from, IndexRange cols, const QuantisedRows& to) {
  CHECK(from.format.n_groups(from.n_cols()) == 1);
  for (int64_t row = 0; row < from.n_rows(); ++row) {
    std::copy_n(from.codes.as<int8_t>() + row * from.n_cols() + cols.begin,
                cols.size(),
                to.codes.as<int8_t>() + row * cols.size());
  }
  std::memcpy(to.scales.data(), from.scales.data(), static_cast<size_t>(from.scales.n_bytes()));
}

}  // namespace

void MatrixLoader::load(const Slice& slice, const WeightMatrix& weight, int64_t first_row) const {
  const WeightFormat& format = weight.format();
  if (!format.is_quantised()) {
    load_plain(slice, weight, first_row);
  } else if (format == native_format(source_.find(slice.name).value().dtype)) {
    load_blocks(slice, weight, first_row);
  } else {
    load_quantising(slice, weight, first_row);
  }
}

// Pieces end at multiples of piece_rows of the whole tensor.
void MatrixLoader::for_pieces(const Slice& slice,
                              int64_t piece_rows,
                              const std::function<void(IndexRange)>& load_piece) const {
  for (int64_t row = slice.rows.begin; row < slice.rows.end;) {
    const int64_t end = std::min(slice.rows.end, (row / piece_rows + 1) * piece_rows);
    load_piece({row, end});
    loaded_(end - row);
    row = end;
  }
}

// Cut between panels of the weight.
template <typename Rows>
void MatrixLoader::store(const WeightMatrix& weight,
                         int64_t first_row,
                         const Rows& rows,
                         int64_t n_rows) const {
  const int64_t first_panel = first_row / panel_rows;
  const int64_t end_panel = (first_row + n_rows + panel_rows - 1) / panel_rows;
  device_.on_host_threads(end_panel - first_panel, 1, [&](int64_t begin, int64_t end) {
    const int64_t from = std::max(first_row, (first_panel + begin) * panel_rows);
    const int64_t to = std::min(first_row + n_rows, (first_panel + end) * panel_rows);
    device_.store_rows(weight, from, rows.rows(from - first_row, to - from));
  });
}

void MatrixLoader::load_plain(const Slice& slice,
                              const WeightMatrix& weight,
                              int64_t first_row) const {
  const int64_t piece_rows = piece_rows_of(weight.n_cols(), dtype_bytes(weight.dtype(), 1));
  const Tensor staging(weight.dtype(), {std::min(piece_rows, slice.rows.size()), weight.n_cols()});
  for_pieces(slice, piece_rows, [&](IndexRange piece) {
    const TensorView rows = staging.view().rows(0, piece.size());
    device_.on_host_threads(piece.size(), panel_rows, [&](int64_t begin, int64_t end) {
      source_.read(slice.name,
                   {piece.begin + begin, piece.begin + end},
                   slice.cols,
                   rows.rows(begin, end - begin));
    });
    store(weight, first_row + piece.begin - slice.rows.begin, rows, piece.size());
  });
}

void MatrixLoader::load_blocks(const Slice& slice,
                               const WeightMatrix& weight,
                               int64_t first_row) const {
  const int64_t piece_rows = piece_rows_of(weight.n_cols(), 1);
  const QuantisedTensor staging(
      weight.format(), std::min(piece_rows, slice.rows.size()), weight.n_cols());
  for_pieces(slice, piece_rows, [&](IndexRange piece) {
    const QuantisedRows rows = staging.view().rows(0, piece.size());
    device_.on_host_threads(piece.size(), panel_rows, [&](int64_t begin, int64_t end) {
      source_.read_blocks(slice.name,
                          {piece.begin + begin, piece.begin + end},
                          slice.cols,
                          rows.rows(begin, end - begin));
    });
    store(weight, first_row + piece.begin - slice.rows.begin, rows, piece.size());
  });
}

// A piece is read wider than it is where scales ask for it: whole rows where a row shares one,
// whole groups of rows. A tensor's one scale asks for a pass over all of it.
void MatrixLoader::load_quantising(const Slice& slice,
                                   const WeightMatrix& weight,
                                   int64_t first_row) const {
  const WeightFormat& format = weight.format();
  const Shape shape = source_.find(slice.name).value().shape;
  std::optional<float> amax;
  if (format.group_rows == 0) amax = amax_of(slice.name, shape);
  const bool whole_rows = format.group_cols == 0 && !amax;
  const IndexRange cols = whole_rows ? IndexRange{0, shape[1]} : slice.cols;
  const int64_t group_rows = std::max(format.group_rows, 1);
  CHECK(most_group_rows % group_rows == 0);
  const int64_t granule = std::max(group_rows, panel_rows);

  const int64_t piece_rows = piece_rows_of(cols.size(), sizeof(float));
  const int64_t most_rows = std::min(piece_rows, slice.rows.size() + 2 * group_rows);
  const Tensor wide(DType::F32, {most_rows, cols.size()});
  const QuantisedTensor staging(format, most_rows, cols.size());
  const bool cuts = cols != slice.cols;
  const QuantisedTensor cut(format, cuts ? most_rows : 0, slice.cols.size());

  for_pieces(slice, piece_rows, [&](IndexRange piece) {
    const IndexRange read{
        piece.begin / group_rows * group_rows,
        std::min(shape[0], (piece.end + group_rows - 1) / group_rows * group_rows)};
    device_.on_host_threads(read.size(), granule, [&](int64_t begin, int64_t end) {
      const TensorView values = wide.view().rows(begin, end - begin);
      source_.read(slice.name, {read.begin + begin, read.begin + end}, cols, values);
      try {
        quantise(values, staging.view().rows(begin, end - begin), amax);
      } catch (const WeightsError& error) {
        throw WeightsError(
            fmt::format("{}: tensor '{}': {}", source_.description(), slice.name, error.what()));
      }
    });
    QuantisedRows rows = staging.view().rows(piece.begin - read.begin, piece.size());
    if (cuts) {
      copy_columns(rows, slice.cols, cut.view().rows(0, piece.size()));
      rows = cut.view().rows(0, piece.size());
    }
    store(weight, first_row + piece.begin - slice.rows.begin, rows, piece.size());
  });
}

// Of the whole tensor.
float MatrixLoader::amax_of(const std::string& name, const Shape& shape) const {
  const int64_t piece_rows = std::min(shape[0], piece_rows_of(shape[1], sizeof(float)));
  const Tensor wide(DType::F32, {piece_rows, shape[1]});
  std::atomic<float> largest = 0.0F;
  for (int64_t row = 0; row < shape[0]; row += piece_rows) {
    const int64_t n = std::min(piece_rows, shape[0] - row);
    device_.on_host_threads(n, 1, [&](int64_t begin, int64_t end) {
      const TensorView values = wide.view().rows(begin, end - begin);
      source_.read(name, {row + begin, row + end}, {0, shape[1]}, values);
      const float of_rows = largest_magnitude(values);
      float before = largest.load();
      while (before < of_rows && !largest.compare_exchange_weak(before, of_rows)) {
      }
    });
  }
  return largest.load();
}

}  // namespace testbed
