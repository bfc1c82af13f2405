// The register tiles that linear() is built from, one set per instruction set. Every output is one
// chain of sums over k in ascending order (pairs of k for vdpbf16ps, groups for quantised weights),
// kept in f32: a tile that continues from c goes on exactly where the last one stopped. So an
// output does not depend on the tile's shape, on the k blocks, or on the split over threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.hpp"
#include "kernels/cpu/packed_layout.hpp"
#include "kernels/cpu/unroll.hpp"

namespace testbed::cpu {

// How a tile reads x, packed for its n_rows rows:
enum class XPacking : uint8_t {
  f32,         // [k][n_rows]
  bf16_pairs,  // bf16 [k/2][n_rows][2]
  int8,        // codes [k/4][n_rows][4], and for each block of 32 columns what LinearTile names
};

// c[r][16 p + i] (+)= sum over k of x[r][k] * w[p][k][i], for n_panels panels of 16 rows of W and
// n_rows rows of x.
struct LinearTile {
  const std::byte* w;   // the k block in the first panel: its first column, or its first segment
  int64_t panel_bytes;  // from one panel to the next
  int n_panels;         // 1, 2 or 4, at most what panels_for() says
  const void* x;        // packed for this tile
  int n_rows;           // 1 ... max_rows
  int64_t n_cols;       // of the k block; even where W is BF16, whole blocks where x is int8
  bool first;           // sums start at zero, not at c
  int64_t prefetch_w;   // how many bytes ahead in each panel to prefetch into L2; 0: not
  int64_t prefetch_x;   // the same in x
  float* c;
  int64_t c_stride;  // elements from one row to the next

  // Quantised weights only:
  const PackedLayout* layout;
  // Where a row of W is one group: its F32 scales [16], which the last k block applies; w then is
  // the first column, not a segment.
  const std::byte* row_scales;
  bool last;
  // x int8, [block][n_rows]:
  const float* x_scales;
  const int32_t* x_negated_sums;  // of codes
  const float* x_sums;            // of codes, times the scale
};

// Columns of a panel that share their scales.
struct WeightGroup {
  const std::byte* codes;    // the first column's vector
  const std::byte* scales;   // [16]
  const std::byte* offsets;  // [16]
  int64_t first_col;         // in the k block
  int64_t n_cols;
};

// F32 [n_cols][16], as dequantise() gives them.
using ExpandGroup = void (*)(const WeightFormat& format, const WeightGroup& group, float* out);

struct LinearKernel {
  XPacking x_packing;
  int max_rows;        // rows of x in one tile
  int n_accumulators;  // n_panels * n_rows is at most this
  void (*tile)(const LinearTile&);

  // For one row the weights only stream through, each panel a stream of its own; vdpbf16ps wants
  // two at a time, to keep the adders busy.
  int row_panels = 4;
  int max_panels = 4;
  ExpandGroup expand = nullptr;  // W is quantised, the tile wants F32: it is expanded first

  constexpr int panels_for(int n_rows) const {
    const int most = n_rows == 1 ? row_panels : max_panels;
    if (most == 4 && 4 * n_rows <= n_accumulators) return 4;
    return most >= 2 && 2 * n_rows <= n_accumulators ? 2 : 1;
  }
};

// y[0, n) = c + bias, bias null for none; y F32 or BF16 (to nearest even).
using LinearStore = void (*)(const float* c, const float* bias, int64_t n, void* y, DType dtype);

LinearKernel portable_kernel(DType w_dtype);
LinearKernel avx2_kernel(DType w_dtype);
LinearKernel avx512_kernel(DType w_dtype);
LinearKernel avx512_bf16_kernel();
void avx2_store(const float* c, const float* bias, int64_t n, void* y, DType dtype);
void avx512_store(const float* c, const float* bias, int64_t n, void* y, DType dtype);

}  // namespace testbed::cpu
