// Conversion of stored elements to F32, F16 or BF16, block-quantised types included. Block layouts
// and formulas: ggml-common.h and ggml-quants.c (dequantize_row_*).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace testbed {

// Round to nearest even; above the range of f16 gives infinity.
f16 to_f16(float x);

// n elements at src, stored as `from`, into dst as `to` (F32, F16 or BF16). n must fill whole
// blocks of `from`. Neither pointer needs alignment. Exact but for the rounding to `to`.
void convert_elements(DType from, const std::byte* src, int64_t n, DType to, std::byte* dst);

}  // namespace testbed
