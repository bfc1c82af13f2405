// The tiles of linear() for quantised weights, and what expands such weights to f32.
#pragma once

#include "kernels/base/weight_format.hpp"
#include "kernels/cpu/linear_kernels.hpp"

namespace testbed::cpu {

// int8 and int4 codes times int8 x. At one level all have the same max_rows.
LinearKernel portable_int_kernel();
LinearKernel avx2_int_kernel(const WeightFormat& format);
LinearKernel vnni_kernel(const WeightFormat& format);
// fp8 codes times bf16 x.
LinearKernel avx512_bf16_fp8_kernel();

// Exactly dequantise()'s values.
void portable_expand(const WeightFormat& format, const WeightGroup& group, float* out);
void avx2_expand(const WeightFormat& format, const WeightGroup& group, float* out);
void avx512_expand(const WeightFormat& format, const WeightGroup& group, float* out);

}  // namespace testbed::cpu
