// The walk over the groups of a k block that all quantised tiles share. Of internal linkage:
// nothing may be merged with a copy that was compiled for another instruction set (so not even
// std::min or PackedLayout's functions are called).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_kernels.hpp"

namespace testbed::cpu {
namespace {

enum class Weights { int8, int4_zero_point, int4_eight, int4_minimum };

// Of one block of 32 columns.
template <Weights W>
constexpr int64_t block_bytes = W == Weights::int8 ? 512 : 256;

// The tile for int8 and int4 weights of this format: tile_of's is that of a template <Weights, bool
// block_is_group>.
template <typename TileOf>
void (*tile_for(const WeightFormat& format, const TileOf& tile_of))(const LinearTile&) {
  const bool block_is_group = format.group_cols == 32;
  const auto of_either = [&]<Weights W>() {
    return block_is_group ? tile_of.template operator()<W, true>()
                          : tile_of.template operator()<W, false>();
  };
  if (format.coding == WeightCoding::int8) return of_either.template operator()<Weights::int8>();
  if (format.offset == WeightOffset::zero_point) {
    return of_either.template operator()<Weights::int4_zero_point>();
  }
  return format.offset == WeightOffset::eight
             ? tile_of.template operator()<Weights::int4_eight, true>()
             : tile_of.template operator()<Weights::int4_minimum, true>();
}

template <typename OnGroup>
inline void for_each_group(const LinearTile& t, const OnGroup& on_group) {
  constexpr int64_t panel_rows = 16;
  const PackedLayout& layout = *t.layout;
  if (layout.format.group_cols == 0) {
    on_group(WeightGroup{t.w, t.row_scales, t.row_scales, 0, t.n_cols});  // no offsets
    return;
  }
  const int64_t scales_bytes = panel_rows * layout.scale_bytes;
  const int64_t offsets_bytes = panel_rows * layout.offset_bytes;
  const bool is_int4 = layout.format.coding == WeightCoding::int4;
  const int64_t column_bytes = is_int4 ? panel_rows / 2 : panel_rows;
  // Once for the walk, not a division for every segment.
  const int64_t all_groups = (t.n_cols + layout.group_cols - 1) / layout.group_cols;
  const int64_t n_segments = (all_groups + 3) / 4;
  const auto header_bytes = [&](int64_t n_groups) {
    return (n_groups * (scales_bytes + offsets_bytes) + 63) / 64 * 64;
  };
  const int64_t last_groups = all_groups - 4 * (n_segments - 1);
  const int64_t last_header = header_bytes(last_groups);
  const int64_t full_header = header_bytes(4);
  WeightGroup group{t.w, t.w, t.w, 0, 0};
  int64_t column = 0;
  for (int64_t segment = 1; segment <= n_segments; ++segment) {
    const int64_t n_groups = segment < n_segments ? 4 : last_groups;
    group.scales = group.codes;
    group.offsets = group.scales + n_groups * scales_bytes;
    group.codes += segment < n_segments ? full_header : last_header;
    for (int64_t g = 0; g < n_groups; ++g) {
      const int64_t rest = t.n_cols - column;
      group.first_col = column;
      group.n_cols = rest < layout.group_cols ? rest : layout.group_cols;
      on_group(group);
      group.codes += group.n_cols * column_bytes;
      group.scales += scales_bytes;
      group.offsets += offsets_bytes;
      column += group.n_cols;
    }
  }
}

}  // namespace
}  // namespace testbed::cpu
