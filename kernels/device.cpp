#include "kernels/device.hpp"

#include <algorithm>

#include "kernels/base/check.hpp"
#include "kernels/base/clock.hpp"

namespace testbed {
namespace {

OpShape attention_shape(const AttentionParams& params, int64_t n_kv_heads) {
  OpShape shape{.n_sequences = static_cast<int64_t>(params.sequences.size()),
                .n_kv_heads = n_kv_heads};
  for (const AttentionSequence& sequence : params.sequences) {
    shape.n_query_rows += sequence.n_rows;
    shape.longest_context =
        std::max(shape.longest_context, visible_tokens(sequence, params.window));
  }
  return shape;
}

}  // namespace

template <typename Cost, typename Run>
void Device::counted(const Op& op, Cost&& cost, Run&& run) {
  if (sink_ == nullptr && !charges()) {
    run();
    return;
  }
  const int64_t begin_ns = clock_.now_ns();
  run();
  const OpCost of_op = cost();
  if (charges()) do_charge(op.kind, of_op, op.shape, op.operands);
  if (sink_ == nullptr) return;
  sink_->on_op({.kind = op.kind, .cost = of_op, .begin_ns = begin_ns, .end_ns = clock_.now_ns()});
}

void Device::embed(std::span<const int32_t> ids,
                   const WeightMatrix& table,
                   int64_t first_id,
                   TensorView out) {
  CHECK(out.n_rows() == static_cast<int64_t>(ids.size()) && out.row_elements() == table.n_cols());
  counted(
      {OpKind::embed, out.dtype()},
      [&] {
        const int64_t n_gathered = std::count_if(ids.begin(), ids.end(), [&](int32_t id) {
          return id >= first_id && id < first_id + table.n_rows();
        });
        return embed_cost(out.n_rows(), n_gathered, table.n_cols(), table.dtype(), out.dtype());
      },
      [&] { do_embed(ids, table, first_id, out); });
}

void Device::rms_norm(TensorView x, TensorView weight, float eps, TensorView out) {
  CHECK(x.n_elements() == out.n_elements() && x.row_elements() == weight.n_elements());
  counted(
      {OpKind::norm, x.dtype()},
      [&] { return norm_cost(x.n_rows(), x.row_elements(), false, x.dtype()); },
      [&] { do_rms_norm(x, weight, eps, out); });
}

void Device::add_rms_norm(
    TensorView residual, TensorView x, TensorView weight, float eps, TensorView out) {
  CHECK(residual.n_elements() == x.n_elements() && out.n_elements() == x.n_elements());
  CHECK(x.row_elements() == weight.n_elements());
  counted(
      {OpKind::norm, x.dtype()},
      [&] { return norm_cost(x.n_rows(), x.row_elements(), true, x.dtype()); },
      [&] { do_add_rms_norm(residual, x, weight, eps, out); });
}

void Device::add(TensorView residual, TensorView x) {
  CHECK(residual.n_elements() == x.n_elements());
  counted(
      {OpKind::norm, x.dtype()},
      [&] {
        OpCost cost = copy_cost(2 * x.n_elements(), x.n_elements(), x.dtype());
        cost.flops = x.n_elements();
        return cost;
      },
      [&] { do_add(residual, x); });
}

void Device::head_norm(TensorView x, TensorView weight, float eps) {
  CHECK(x.shape().rank() == 3 && x.shape()[2] == weight.n_elements());
  counted(
      {OpKind::norm, x.dtype()},
      [&] { return norm_cost(x.shape()[0] * x.shape()[1], x.shape()[2], false, x.dtype()); },
      [&] { do_head_norm(x, weight, eps); });
}

void Device::linear(TensorView x, const WeightMatrix& weight, TensorView bias, TensorView y) {
  CHECK(x.n_rows() == y.n_rows() && x.row_elements() == weight.n_cols());
  CHECK(y.row_elements() == weight.n_rows());
  CHECK(bias.empty() || bias.n_elements() == weight.n_rows());
  counted(
      {OpKind::linear,
       x.dtype() == DType::F32 ? DType::F32 : weight.dtype(),
       {.m = x.n_rows(), .n = weight.n_rows(), .k = weight.n_cols()}},
      [&] {
        OpCost cost = linear_cost(x.n_rows(),
                                  weight.n_rows(),
                                  weight.n_cols(),
                                  weight.model_rows(),
                                  weight.dtype(),
                                  x.dtype());
        if (!bias.empty()) cost.weight_bytes += bias.n_bytes();
        return cost;
      },
      [&] { do_linear(x, weight, bias, y); });
}

void Device::rope(TensorView x,
                  std::span<const int64_t> positions,
                  const RopeFrequencies& frequencies) {
  CHECK(x.shape().rank() == 3 && x.n_rows() == static_cast<int64_t>(positions.size()));
  CHECK(x.shape()[2] == 2 * static_cast<int64_t>(frequencies.inv_freq.size()));
  counted(
      {OpKind::rope, x.dtype()},
      [&] { return rope_cost(x.n_elements(), x.dtype()); },
      [&] { do_rope(x, positions, frequencies); });
}

void Device::write_kv(TensorView k,
                      TensorView v,
                      const KvView& kv,
                      std::span<const int64_t> slots) {
  CHECK(k.n_elements() == v.n_elements() && k.dtype() == kv.dtype);
  CHECK(k.n_rows() == static_cast<int64_t>(slots.size()));
  counted(
      {OpKind::kv_write, k.dtype()},
      [&] { return kv_write_cost(k.n_rows(), kv.n_kv_heads, kv.head_dim, kv.dtype); },
      [&] { do_write_kv(k, v, kv, slots); });
}

void Device::attention(TensorView q,
                       const KvView& kv,
                       const AttentionParams& params,
                       TensorView out) {
  CHECK(q.shape().rank() == 3 && q.n_elements() == out.n_elements());
  CHECK(q.shape()[1] == static_cast<int64_t>(params.head_to_kv.size()));
  counted(
      {OpKind::attention, kv.dtype, attention_shape(params, kv.n_kv_heads)},
      [&] {
        return attention_cost(
            params.sequences, params.window, q.shape()[1], kv.n_kv_heads, kv.head_dim, kv.dtype);
      },
      [&] { do_attention(q, kv, params, out); });
}

void Device::swiglu(TensorView gate_up, TensorView out) {
  CHECK(gate_up.n_elements() == 2 * out.n_elements());
  counted(
      {OpKind::activation, out.dtype()},
      [&] { return activation_cost(out.n_rows(), out.row_elements(), out.dtype()); },
      [&] { do_swiglu(gate_up, out); });
}

void Device::gather_rows(TensorView x, std::span<const int64_t> rows, TensorView out) {
  CHECK(out.n_rows() == static_cast<int64_t>(rows.size()) &&
        out.row_elements() == x.row_elements());
  counted(
      {OpKind::copy, x.dtype()},
      [&] { return copy_cost(out.n_elements(), out.n_elements(), x.dtype()); },
      [&] { do_gather_rows(x, rows, out); });
}

void Device::row_max(TensorView logits, std::span<RowMax> out) {
  CHECK(logits.n_rows() == static_cast<int64_t>(out.size()));
  counted(
      {OpKind::sample, logits.dtype()},
      [&] { return copy_cost(logits.n_elements(), 0, logits.dtype()); },
      [&] { do_row_max(logits, out); });
}

}  // namespace testbed
