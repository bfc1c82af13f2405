// PackedLayout: where a code, a scale and an offset of a quantised matrix lie in a panel of 16
// rows. A panel is one stream of segments, so that decode reads it from front to back; a segment is
// four groups of columns (the last may have fewer; where a row is one group, all of it):
//   [scales: group][16 rows]  [offsets: group][16 rows]  zeros to a multiple of 64 bytes  [codes]
// Codes, a 64-byte vector at a time:
//   int8: [k/4][16 rows][4], as unsigned bytes: code + 128 (vpdpbusd multiplies u8 by s8)
//   int4: [k/8][16 rows][4], columns 0 ... 3 in the low halves of the bytes, 4 ... 7 in the high
//   fp8:  [k/4][row/4][k/2 mod 2][row mod 4][k mod 2], so that interleaving two vectors of bytes
//         within 16-byte lanes gives pairs of columns of rows in order
// Columns are padded to whole blocks of 32 (fp8: to 4) with zero bytes. x is zero there, so they
// add nothing, whatever they stand for.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/weight_format.hpp"

namespace testbed::cpu {

struct PackedLayout {
  static constexpr int64_t panel_rows = 16;
  static constexpr int64_t block_cols = 32;  // of x that share a scale
  static constexpr int64_t segment_groups = 4;

  WeightFormat format;
  int64_t padded_cols = 0;
  int64_t n_groups = 0;
  int64_t group_cols = 0;  // padded_cols where a row is one group
  int64_t scale_bytes = 0;
  int64_t offset_bytes = 0;

  PackedLayout() = default;
  PackedLayout(const WeightFormat& quantised, int64_t n_cols)
      : format(quantised),
        n_groups(quantised.n_groups(n_cols)),
        scale_bytes(quantised.scale_bytes()),
        offset_bytes(quantised.offset_bytes()) {
    const int64_t unit = format.coding == WeightCoding::fp8 ? 4 : block_cols;
    padded_cols = (n_cols + unit - 1) / unit * unit;
    group_cols = format.group_cols == 0 ? padded_cols : format.group_cols;
  }

  bool one_group() const { return format.group_cols == 0; }
  int64_t segment_cols() const { return one_group() ? padded_cols : segment_groups * group_cols; }
  int64_t code_bytes(int64_t n_cols) const {
    return n_cols * (format.coding == WeightCoding::int4 ? panel_rows / 2 : panel_rows);
  }
  int64_t header_bytes(int64_t groups) const {
    const int64_t n_bytes = groups * panel_rows * (scale_bytes + offset_bytes);
    return (n_bytes + 63) / 64 * 64;
  }
  int64_t groups_from(int64_t first_group) const {
    return std::min(segment_groups, n_groups - first_group);
  }
  // Of the segment that begins with this group.
  int64_t segment_offset(int64_t first_group) const {
    return first_group / segment_groups *
           (header_bytes(segment_groups) + code_bytes(segment_groups * group_cols));
  }
  int64_t scale_offset(int64_t group) const {
    const int64_t first = group / segment_groups * segment_groups;
    return segment_offset(first) + (group - first) * panel_rows * scale_bytes;
  }
  int64_t offset_offset(int64_t group) const {
    const int64_t first = group / segment_groups * segment_groups;
    return segment_offset(first) + groups_from(first) * panel_rows * scale_bytes +
           (group - first) * panel_rows * offset_bytes;
  }
  // Of the vector that holds this column; columns of one segment follow one another.
  int64_t code_offset(int64_t column) const {
    const int64_t vector_cols = format.coding == WeightCoding::int4 ? 8 : 4;
    const int64_t group = column / group_cols;
    const int64_t first = group / segment_groups * segment_groups;
    return segment_offset(first) + header_bytes(groups_from(first)) +
           (column - first * group_cols) / vector_cols * 64;
  }
  // Of the byte in that vector.
  static int64_t byte_of(WeightCoding coding, int64_t lane, int64_t column) {
    if (coding != WeightCoding::fp8) return lane * 4 + column % 4;
    return lane / 4 * 16 + column % 4 / 2 * 8 + lane % 4 * 2 + column % 2;
  }
  int64_t panel_bytes() const {
    if (n_groups == 0) return 0;
    const int64_t last = (n_groups - 1) / segment_groups * segment_groups;
    return segment_offset(last) + header_bytes(groups_from(last)) +
           code_bytes(padded_cols - last * group_cols);
  }
};

}  // namespace testbed::cpu
