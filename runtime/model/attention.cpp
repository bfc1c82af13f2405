#include "runtime/model/attention.hpp"

#include <array>

#include "parallel/ring_attention.hpp"
#include "runtime/model/context_parallel.hpp"

namespace testbed {

RopeFrequencies frequencies_of(const RopeTable& rope) {
  return {
      .inv_freq = rope.inv_freq, .multiplier = rope.multiplier, .interleaved = rope.interleaved};
}

void attend(StepContext& context,
            const AttentionView& view,
            std::span<const int32_t> head_to_kv,
            TensorView q,
            TensorView out) {
  Device& device = context.device;
  const auto params = [&](std::span<const AttentionSequence> sequences) {
    return AttentionParams{.sequences = sequences,
                           .window = view.window,
                           .scale = view.scale,
                           .softcap = view.softcap,
                           .head_to_kv = head_to_kv,
                           .model_dim = view.model_dim};
  };
  const PartialAttention partial = [&](const KvView& kv,
                                       std::span<const AttentionSequence> sequences,
                                       TensorView part,
                                       TensorView lse) {
    device.attention(q, kv, params(sequences), part, lse);
  };
  if (context.rows.cp_use == CpUse::none) {
    const size_t group = kv_group(context, view.kv_layer);
    AttentionParams whole = params(context.rows.sequences[group]);
    whole.id = static_cast<int64_t>(group) + 1;
    whole.sinks = view.sinks;
    device.attention(q, context.kv.view(view.kv_layer), whole, out);
    return;
  }
  attend_over_cp(context, view.kv_layer, partial, {out, view.sinks});
}

// q, k and v [m, heads, dim] of h, in one go; k and v are empty where another layer's are read.
Attention::Projected Attention::project(StepContext& context, TensorView h) const {
  Device& device = context.device;
  const int64_t m = h.n_rows();
  const auto take = [&](int64_t n_heads, int64_t dim) {
    return context.workspace.take(device.compute_dtype(), {m, n_heads, dim});
  };
  Projected all{.q = take(heads.heads.size(), shape.head_dim)};
  std::array<LinearOperands, 3> products{wq.operands(all.q)};
  size_t n_products = 1;
  if (key_value) {
    const int64_t n_kv_heads = heads.kv_heads.size();
    all.k = take(n_kv_heads, shape.head_dim);
    all.v = take(n_kv_heads, shape.v_dim);
    products[n_products++] = key_value->wk.operands(all.k);
    if (key_value->wv) products[n_products++] = key_value->wv->operands(all.v);
  }
  device.linear_group(h, std::span(products).first(n_products));
  return all;
}

void Attention::write_keys(
    StepContext& context, const RopeTable& rope, int64_t layer, TensorView k, TensorView v) const {
  Device& device = context.device;
  if (!key_value->wv) device.copy_columns(k, 0, shape.head_dim, v, 0);
  if (!key_value->k_norm.empty()) device.head_norm(k, key_value->k_norm, norm_eps);
  if (key_value->norms_v) device.head_norm(v, {}, norm_eps);
  device.rope(k, context.rows.positions, frequencies_of(rope));
  device.write_kv(k, v, context.kv.view(layer), context.rows.slots[kv_group(context, layer)]);
}

void Attention::forward(StepContext& context,
                        const RopeTable& rope,
                        int64_t layer,
                        TensorView h,
                        TensorView partial) const {
  Device& device = context.device;
  const int64_t m = h.n_rows();
  const int64_t n_heads = heads.heads.size();
  const auto [q, k, v] = project(context, h);
  if (!q_norm.empty()) device.head_norm(q, q_norm, norm_eps);
  device.rope(q, context.rows.positions, frequencies_of(rope));
  if (key_value) write_keys(context, rope, layer, k, v);

  const TensorView o = context.workspace.take(device.compute_dtype(), {m, n_heads, shape.v_dim});
  attend(context,
         {.kv_layer = shape.kv_layer,
          .window = shape.window,
          .scale = scale,
          .softcap = softcap,
          .sinks = sinks},
         heads.head_to_kv,
         q,
         o);
  wo.forward(device, o.reshaped({m, n_heads * shape.v_dim}), partial);
}

}  // namespace testbed
