// Quantised weights on the device: their layout, and the ops on it. What a code stands for:
// kernels/base/weight_format.hpp, kernels/quantise.hpp.
#pragma once

#include <span>

#include "kernels/cuda/gemm.hpp"
#include "kernels/quantise.hpp"

namespace testbed::cuda {

// A matrix [n_rows, n_cols] is one piece of memory: codes, then scales, then offsets.
// Codes lie in units of 16 rows x 64 columns, unit by unit along a strip of 16 rows, padded with
// zeros. Within a unit they lie as the lanes of a warp multiply them (mma_m16n8k16_bf16, ptx.cuh):
// with g = lane / 4 and t = lane % 4 a lane has, of rows g and g + 8 and of each half of 32
// columns, the columns 8 t ... 8 t + 7: 16 bytes of 4-bit codes, two times 16 bytes of 8-bit ones.
// Columns 4 s ... 4 s + 3 of them are the operand A of step s: register i has of row g + 8 (i % 2)
// the columns 2 (i / 2) and the next, which are
//   4 bits: bits 4 i and 16 + 4 i of word 2 half + s,
//   8 bits: bytes i % 2 and 2 + i % 2 of word 2 s + i / 2 of the half,
// so that a mask leaves both halves of a register of two bf16. A row of x gives the operand B of
// both steps in one access of 16 bytes.
// Scales and offsets: for each strip and group 16 of them, those of rows r and r + 8 side by side.
struct QuantisedLayout {
  int64_t n_rows;
  int64_t n_cols;
  int64_t n_units;     // of a strip
  int64_t n_groups;    // with a group for each half of a unit: of whole units
  int64_t scales_at;   // bytes from the start; multiples of 256
  int64_t offsets_at;  // where there are none, the end
  int64_t n_bytes;
  int32_t unit_shift;  // the group of a unit is unit >> unit_shift; -1: a group for each half
  int32_t scale_is_f32;
  WeightCoding coding;
  WeightOffset offset;
  uint8_t padding[6];

  QuantisedLayout(const WeightFormat& format, int64_t n_rows, int64_t n_cols);
  bool is_4_bit() const { return coding == WeightCoding::int4; }
};
constexpr int64_t strip_rows = 16;
constexpr int64_t unit_cols = 64;
constexpr int64_t half_cols = 32;

// quantised_rows.cu.
// Rows [first_row, ...) of a matrix that is zeros where nothing has been stored yet. codes, scales,
// offsets: as in QuantisedRows, of n_rows rows, on the device; fp8 codes without NaN.
struct StoredRows {
  const int8_t* codes;
  const void* scales;
  const void* offsets;
  int64_t first_row;
  int64_t n_rows;
  int64_t n_groups;  // of a row
};
void store_quantised(Queue& queue,
                     const QuantisedLayout& layout,
                     void* matrix,
                     const StoredRows& rows);
// out BF16 [n, n_cols] = rows [first_row, first_row + n), rounded to nearest; first_row a multiple
// of strip_rows.
void expand_quantised(Queue& queue,
                      const QuantisedLayout& layout,
                      const void* matrix,
                      int64_t first_row,
                      TensorView out);
// As rows.hpp's embed; values are dequantise()'s, rounded to out's dtype.
void embed_quantised(Queue& queue,
                     std::span<const int32_t> ids,
                     const QuantisedLayout& layout,
                     const void* table,
                     int64_t first_id,
                     TensorView out);

// quantised_linear.cu. y = x w^T + bias with the weights' exact values, sums in f32: x [m, n_cols]
// F32 or BF16, y [m, n_rows] F32 or BF16.
//   BF16: tensor cores, for up to most_fused_rows rows (kernels/cost.hpp) of a matrix or an expert
//   at a time. A code less its zero point is exact in bf16, and so are its products with x
//   in f32; sums over at most a group's columns are scaled, and added. A minimum times the sum of
//   x is added apart: rounding is relative to |code scale| + |minimum|, not to the weight.
//   F32: CUDA cores, for checks: products of dequantise()'s values.
// Grouped like GroupedLinear (gemm.hpp): rows [first_row[g], first_row[g + 1]) are multiplied by
// weights[g], of equal layouts, and get biases[g].
struct QuantisedLinear {
  TensorView x;
  TensorView y;
  QuantisedLayout layout;
  const void* matrix = nullptr;           // of all rows, or of groups:
  const int64_t* first_row = nullptr;     // [n_groups + 1], device
  const void* const* matrices = nullptr;  // [n_groups], device
  int64_t n_groups = 0;
  const float* biases = nullptr;  // [n_rows] or [n_groups, n_rows], device
};
void quantised_linear(Queue& queue, const QuantisedLinear& call);

// quantised.cpp. The same for many rows of BF16 x and one matrix, of weights rounded to bf16: as
// many rows of them at a time as scratch (device memory, for at least 16) holds are expanded into
// it and multiplied by the library, in stream order.
void quantised_linear_expanded(Queue& queue,
                               Gemm& gemm,
                               const QuantisedLinear& call,
                               TensorView scratch);

}  // namespace testbed::cuda
