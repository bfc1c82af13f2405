// Conversion of stored elements to F32, F16 or BF16, block-quantised types included. Block layouts
// and formulas: ggml-common.h and ggml-quants.c (dequantize_row_*).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.hpp"
#include "kernels/base/float16.hpp"

namespace testbed {

// n elements at src, stored as `from`, into dst as `to` (F32, F16 or BF16). n must fill whole
// blocks of `from`. Neither pointer needs alignment. Exact but for the rounding to `to`.
void convert_elements(DType from, const std::byte* src, int64_t n, DType to, std::byte* dst);

// A row of blocks taken apart: codes one a byte, a scale a block, and the minimum of each (F16)
// where the type has one. n is a whole number of blocks.
struct BlockParts {
  int8_t* codes;
  f16* scales;
  f16* minima = nullptr;
};
// `from` has a native_format() of its own: Q8_0, Q4_0, Q4_1.
void unpack_blocks(DType from, const std::byte* src, int64_t n, BlockParts to);

}  // namespace testbed
