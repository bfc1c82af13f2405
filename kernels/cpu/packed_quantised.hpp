// Rows of quantised codes into a panel and out of it (PackedLayout).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/index_range.hpp"
#include "kernels/cpu/linear_kernels.hpp"
#include "kernels/cpu/packed_layout.hpp"
#include "kernels/quantise.hpp"

namespace testbed::cpu {

// rows: at most 16 - lane, as rows [lane, ...) of the panel.
void store_quantised(const PackedLayout& layout,
                     const QuantisedRows& rows,
                     int64_t lane,
                     std::byte* panel);

// One row of a group as dequantise() gives it, F32 [n_cols] at multiples of out_stride.
void load_quantised(const WeightFormat& format,
                    const WeightGroup& group,
                    int64_t lane,
                    float* out,
                    int64_t out_stride);

// on_piece(WeightGroup) for the part of each group that lies in these columns; they begin at a
// multiple of 8.
template <typename OnPiece>
void for_each_piece(const PackedLayout& layout,
                    const std::byte* panel,
                    IndexRange columns,
                    const OnPiece& on_piece) {
  for (int64_t k = columns.begin; k < columns.end;) {
    const int64_t g = k / layout.group_cols;
    const int64_t end = std::min((g + 1) * layout.group_cols, columns.end);
    const WeightGroup piece{panel + layout.code_offset(k),
                            panel + layout.scale_offset(g),
                            panel + layout.offset_offset(g),
                            k,
                            end - k};
    on_piece(piece);
    k = end;
  }
}

}  // namespace testbed::cpu
