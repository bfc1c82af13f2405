// The ops of CudaDevice: each is one or a few calls of the kernels in this folder.
#include <cstring>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/quantised.hpp"

namespace testbed {
namespace {

cuda::QuantisedLayout layout_of(const WeightMatrix& weight) {
  return {weight.format(), weight.n_rows(), weight.n_cols()};
}

}  // namespace

TensorView CudaDevice::widened(TensorView x, DType weight) {
  if (x.dtype() == weight) return x;
  const TensorView wide = scratch(wide_, weight, x.shape());
  cuda::convert(queue_, x, wide);
  return wide;
}

const void* const* CudaDevice::addresses(std::span<const WeightMatrix> weights) {
  std::vector<const void*> of_weights;
  of_weights.reserve(weights.size());
  for (const WeightMatrix& weight : weights) of_weights.push_back(values(weight).data());
  return queue_.arguments().put(of_weights);
}

void CudaDevice::do_embed(std::span<const int32_t> ids,
                          const WeightMatrix& table,
                          int64_t first_id,
                          TensorView out) {
  if (table.format().is_quantised()) {
    const cuda::QuantisedLayout layout = layout_of(table);
    cuda::embed_quantised(queue_, ids, layout, values(table).data(), first_id, out);
  } else {
    cuda::embed(queue_, ids, values(table), first_id, out);
  }
}

void CudaDevice::do_rms_norm(TensorView x, TensorView weight, float eps, TensorView out) {
  cuda::rms_norm(queue_, x, weight, eps, out);
}

void CudaDevice::do_add_rms_norm(
    TensorView residual, TensorView x, TensorView weight, float eps, TensorView out) {
  cuda::add_rms_norm(queue_, residual, x, weight, eps, out);
}

void CudaDevice::do_add(TensorView residual, TensorView x) { cuda::add(queue_, residual, x); }

void CudaDevice::do_head_norm(TensorView x, TensorView weight, float eps) {
  cuda::head_norm(queue_, x, weight, eps);
}

void CudaDevice::do_linear(TensorView x,
                           const WeightMatrix& weight,
                           TensorView bias,
                           TensorView y) {
  if (weight.format().is_quantised()) return quantised_linear(x, weight, bias, y);
  const TensorView rows = widened(x.reshaped({x.n_rows(), weight.n_cols()}), weight.dtype());
  const TensorView out = y.reshaped({y.n_rows(), weight.n_rows()});
  if (weight.dtype() == out.dtype() || out.dtype() == DType::F32) {
    gemm_.linear(rows, values(weight), bias, out);
    return;
  }
  // f32 weights on a bf16 device: no library product rounds its f32 result.
  const TensorView wide = scratch(wide_out_, DType::F32, out.shape());
  gemm_.linear(rows, values(weight), bias, wide);
  cuda::convert(queue_, wide, out);
}

void CudaDevice::quantised_linear(TensorView x,
                                  const WeightMatrix& weight,
                                  TensorView bias,
                                  TensorView y) {
  const int64_t m = x.n_rows();
  const cuda::QuantisedLinear call{.x = x.reshaped({m, weight.n_cols()}),
                                   .y = y.reshaped({m, weight.n_rows()}),
                                   .layout = layout_of(weight),
                                   .matrix = values(weight).data(),
                                   .biases = bias.empty() ? nullptr : bias.as<float>()};
  if (x.dtype() == DType::F32 || m <= most_fused_rows) {
    cuda::quantised_linear(queue_, call);
  } else {
    cuda::quantised_linear_expanded(queue_, gemm_, call, expanded_);
  }
}

void CudaDevice::do_rope(TensorView x,
                         std::span<const int64_t> positions,
                         const RopeFrequencies& frequencies) {
  cuda::rope(queue_, x, positions, frequencies);
}

void CudaDevice::do_write_kv(TensorView k,
                             TensorView v,
                             const KvView& kv,
                             std::span<const int64_t> slots) {
  cuda::write_kv(queue_, k, v, kv, slots);
}

void CudaDevice::do_gather_blocks(const KvView& from,
                                  std::span<const int32_t> blocks,
                                  const KvView& to) {
  cuda::gather_blocks(queue_, from, blocks, to);
}

void CudaDevice::do_attention(
    TensorView q, const KvView& kv, const AttentionParams& params, TensorView out, TensorView lse) {
  attention_.attend(q, kv, params, out, lse);
}

void CudaDevice::do_merge_attention(TensorView total,
                                    TensorView total_lse,
                                    TensorView part,
                                    TensorView part_lse) {
  cuda::merge_attention(queue_, total, total_lse, part, part_lse);
}

void CudaDevice::do_finish_attention(TensorView total,
                                     TensorView total_lse,
                                     TensorView sinks,
                                     TensorView out) {
  cuda::finish_attention(queue_, total, total_lse, sinks, out);
}

void CudaDevice::do_gated_activation(Activation activation, TensorView gate_up, TensorView out) {
  cuda::gated_activation(queue_, activation, gate_up, out);
}

void CudaDevice::do_gated_activation(Activation activation,
                                     TensorView gate,
                                     TensorView up,
                                     TensorView out) {
  cuda::gated_activation(queue_, activation, gate, up, out);
}

void CudaDevice::do_scale(TensorView x, float factor) { cuda::scale(queue_, x, factor); }

void CudaDevice::do_softcap(TensorView x, float cap) { cuda::softcap(queue_, x, cap); }

void CudaDevice::do_gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out) {
  cuda::gather_rows(queue_, x, rows, out);
}

void CudaDevice::do_copy_columns(
    TensorView x, int64_t x_column, int64_t n, TensorView out, int64_t out_column) {
  cuda::copy_columns(queue_, x, x_column, n, out, out_column);
}

void CudaDevice::do_head_linear(TensorView x, std::span<const WeightMatrix> weights, TensorView y) {
  const DType dtype = weights[0].dtype();
  cuda::head_linear(queue_, widened(x, dtype), addresses(weights), dtype, y);
}

// The host plans the exchange of tokens by what was chosen: it waits for it.
void CudaDevice::do_route(TensorView logits,
                          const RoutingParams& params,
                          TensorView ids,
                          TensorView weights) {
  const TensorView both = scratch(results_, DType::I32, {2, ids.n_elements()});
  const TensorView of_ids = both.rows(0, 1).reshaped(ids.shape());
  const TensorView of_weights(both.rows(1, 1).data(), DType::F32, weights.shape());
  cuda::route(queue_, logits, params, of_ids, of_weights);
  const Tensor found(DType::I32, both.shape());  // one wait for the device
  download(both, found);
  const auto n_bytes = static_cast<size_t>(ids.n_bytes());
  std::memcpy(ids.data(), found.data(), n_bytes);
  std::memcpy(weights.data(), found.view().rows(1, 1).data(), n_bytes);
}

void CudaDevice::do_expert_linear(TensorView x,
                                  const ExpertRows& experts,
                                  std::span<const WeightMatrix> weights,
                                  TensorView biases,
                                  TensorView y) {
  const WeightMatrix& w = weights[0];
  const float* const of_biases = biases.empty() ? nullptr : biases.as<float>();
  if (w.format().is_quantised()) {
    cuda::quantised_linear(queue_,
                           {.x = x,
                            .y = y,
                            .layout = layout_of(w),
                            .first_row = queue_.arguments().put(experts.first_row),
                            .matrices = addresses(weights),
                            .n_groups = experts.n_experts(),
                            .biases = of_biases});
    return;
  }
  cuda::grouped_linear(queue_,
                       {.x = widened(x, w.dtype()),
                        .y = y,
                        .first_row = queue_.arguments().put(experts.first_row),
                        .weights = addresses(weights),
                        .weight_dtype = w.dtype(),
                        .biases = of_biases,
                        .n_groups = experts.n_experts(),
                        .n = w.n_rows(),
                        .k = w.n_cols()});
}

void CudaDevice::do_combine_rows(TensorView x, const WeightedRows& sums, TensorView out) {
  cuda::combine_rows(queue_, x, sums, out);
}

bool CudaDevice::do_all_finite(TensorView x) {
  const TensorView result = scratch(results_, DType::I32, {1});
  cuda::all_finite(queue_, x, result.as<int32_t>());
  int32_t finite = 0;
  download(result, {&finite, DType::I32, {1}});
  return finite != 0;
}

void CudaDevice::do_row_max(TensorView logits, std::span<RowMax> out) {
  constexpr auto words = static_cast<int64_t>(sizeof(RowMax) / sizeof(int32_t));
  const auto n = static_cast<int64_t>(out.size());
  const TensorView results =
      scratch(results_, DType::I32, {n * (1 + cuda::row_max_parts(logits.row_elements())), words});
  cuda::row_max(queue_, logits, static_cast<RowMax*>(results.data()));
  download(results.rows(0, n), {out.data(), DType::I32, {n, words}});
}

}  // namespace testbed
