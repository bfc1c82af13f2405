// Rows and columns copied, and sums of rows: what lays activations out between the matrix products.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "kernels/device.hpp"

namespace testbed::cpu {

// out[i, :] = x[rows[i], :]; a row -1 gives zeros.
void gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out, ThreadPool& pool);

// out[i, out_column + j] = x[i / repeat, x_column + j] for j < n; both [rows, last dimension].
void copy_columns(TensorView x,
                  int64_t x_column,
                  int64_t n,
                  TensorView out,
                  int64_t out_column,
                  ThreadPool& pool);

// out row t is the sum of sums.weights[i] * x[sums.rows[i], :], in order in f32, rounded once.
void combine_rows(
    TensorView x, const WeightedRows& sums, TensorView out, ThreadPool& pool, Isa isa);

}  // namespace testbed::cpu
