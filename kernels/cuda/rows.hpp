// Ops on rows and elements, bound by memory. Meanings and shapes as in kernels/device.hpp; tensors
// are on the device, spans on the host. Rows of any width; the fast path is for widths whose rows
// are multiples of 16 bytes. An op without rows does nothing.
#pragma once

#include <span>

#include "kernels/base/routing.hpp"
#include "kernels/cuda/queue.hpp"
#include "kernels/device.hpp"

namespace testbed::cuda {

// rows.cu. table [n_rows, d] in its resident dtype (F32 or BF16).
void embed(
    Queue& queue, std::span<const int32_t> ids, TensorView table, int64_t first_id, TensorView out);
void gather_rows(Queue& queue, TensorView x, std::span<const int64_t> rows, TensorView out);
void gather_blocks(Queue& queue,
                   const KvView& from,
                   std::span<const int32_t> blocks,
                   const KvView& to);
void copy_columns(
    Queue& queue, TensorView x, int64_t x_column, int64_t n, TensorView out, int64_t out_column);
void combine_rows(Queue& queue, TensorView x, const WeightedRows& sums, TensorView out);

// elementwise.cu
void add(Queue& queue, TensorView residual, TensorView x);
// y [m, n] += bias F32 [n], y F32 or BF16.
void add_bias(Queue& queue, TensorView y, TensorView bias);
void scale(Queue& queue, TensorView x, float factor);
void softcap(Queue& queue, TensorView x, float cap);
// out = x, F32 <-> BF16.
void convert(Queue& queue, TensorView x, TensorView out);

// activation.cu
void gated_activation(Queue& queue, Activation activation, TensorView gate_up, TensorView out);
void gated_activation(
    Queue& queue, Activation activation, TensorView gate, TensorView up, TensorView out);

// norm.cu: one block per row, one read and one write of it.
void rms_norm(Queue& queue, TensorView x, TensorView weight, float eps, TensorView out);
void add_rms_norm(
    Queue& queue, TensorView residual, TensorView x, TensorView weight, float eps, TensorView out);
// In place; weight may be empty (ones).
void head_norm(Queue& queue, TensorView x, TensorView weight, float eps);

// rope_kv.cu
void rope(Queue& queue,
          TensorView x,
          std::span<const int64_t> positions,
          const RopeFrequencies& frequencies);
void write_kv(
    Queue& queue, TensorView k, TensorView v, const KvView& kv, std::span<const int64_t> slots);

// reduce.cu: results go to device memory; the caller copies them to the host.
// Warps that a row of n logits is spread over: two pieces for each lane, so that one row of 128256
// keeps most SMs busy.
constexpr int64_t row_max_parts(int64_t n) {
  return n >= int64_t{256} * 512 ? 256 : (n + 511) / 512;
}
// results: room for n_rows (1 + row_max_parts(n)) on the device, the first n_rows of which are the
// result.
void row_max(Queue& queue, TensorView logits, RowMax* results);
// *finite (on the device) = 1 if every element is.
void all_finite(Queue& queue, TensorView x, int32_t* finite);

// routing.cu: ids I32, weights F32 [m, top_k], on the device.
void route(Queue& queue,
           TensorView logits,
           const RoutingParams& params,
           TensorView ids,
           TensorView weights);

// fill.cu: x[i] = 0.01 (i % 17 - 8), for synthetic caches.
void fill_synthetic(Queue& queue, TensorView x);

}  // namespace testbed::cuda
