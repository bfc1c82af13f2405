// y = x W^T + bias over packed weights: a matrix-vector product for few rows of x (decode: bound by
// reading W once), a cache-blocked matrix product for many (prefill: bound by arithmetic). Sums are
// in f32.
//
// Quantised W, w = dequantise()'s value:
//   x F32: true f32 arithmetic on w, bit for bit what a plain F32 matrix of w gives.
//   x BF16, int8 and int4 codes: each row of x is quantised in groups of 32 columns, symmetrically
//     (scale s = max|x| / 127, code = rint(x / s) to even); dot products of codes are exact
//     integers, at every level the same, and scales are applied in f32, in the order of k. So y is
//     sum over k of w x' up to the rounding of f32 sums, where |x' - x| <= s / 2: it differs from
//     the product with x by at most sum over groups of (s / 2) sum over k of the group |w|.
//     A group that is not finite makes its row of y NaN.
//   x BF16, fp8 codes: nothing is quantised. With avx512_bf16 codes are multiplied as they are (an
//     e4m3 number is a bf16 number) and the scale of a group is applied to its sum; else as with
//     x F32.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/routing.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/packed_matrix.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace testbed::cpu {

// One of the products that share x.
struct LinearJob {
  const PackedMatrix* w;  // [n, k]
  const float* bias;      // F32 [n] or null
  TensorView y;           // [m, n] F32 or BF16
};

// x [m, k]: F32 (any W; true f32 arithmetic: nothing is rounded to bf16) or BF16 (plain F32 and F16
// weights: widened to f32). A row's result does not depend on the other rows of x, on the other
// jobs, nor on the number of threads. x is packed once for all jobs, and the threads share all
// their rows of W in one parallel section.
void linear(std::span<const LinearJob> jobs, TensorView x, ThreadPool& pool, Isa isa);

void linear(const PackedMatrix& w,
            TensorView x,
            const float* bias,
            TensorView y,
            ThreadPool& pool,
            Isa isa);

// job.y [m, 2f] = gate | up, in out's dtype, and out [m, f] = activation(gate, up), in one section:
// a thread's gates and ups are those of the same columns. To the bit what linear() and then
// gated_activation() give.
void linear_gated(const LinearJob& job,
                  TensorView x,
                  Activation activation,
                  TensorView out,
                  ThreadPool& pool,
                  Isa isa);
// Whether it takes this matrix: the ups begin a panel.
inline bool can_gate(const PackedMatrix& w) {
  return w.n_rows() > 0 && w.n_rows() % (2 * PackedMatrix::panel_rows) == 0;
}

}  // namespace testbed::cpu
