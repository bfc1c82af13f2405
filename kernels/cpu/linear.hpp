// y = x W^T + bias over packed weights: a matrix-vector product for few rows of x (decode: bound by
// reading W once), a cache-blocked matrix product for many (prefill: bound by arithmetic). Sums are
// in f32.
#pragma once

#include <cstdint>

#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/packed_matrix.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace testbed::cpu {

// x [m, k]: BF16 (then W is BF16) or F32 (any W; true f32 arithmetic: nothing is rounded to bf16).
// bias F32 [n] or null. y [m, n] F32 or BF16. A row's result does not depend on the other rows of
// x, nor on the number of threads.
void linear(const PackedMatrix& w,
            TensorView x,
            const float* bias,
            TensorView y,
            ThreadPool& pool,
            Isa isa);

}  // namespace testbed::cpu
