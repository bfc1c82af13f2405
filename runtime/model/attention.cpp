#include "runtime/model/attention.hpp"

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
    AttentionParams whole = params(context.rows.sequences[kv_group(context, view.kv_layer)]);
    whole.sinks = view.sinks;
    device.attention(q, context.kv.view(view.kv_layer), whole, out);
    return;
  }
  attend_over_cp(context, view.kv_layer, partial, {out, view.sinks});
}

void Attention::write_keys(StepContext& context,
                           const RopeTable& rope,
                           int64_t layer,
                           TensorView h) const {
  Device& device = context.device;
  const Workspace::Frame frame(context.workspace);
  const KeyValueProjection& project = *key_value;
  const auto take = [&](int64_t dim) {
    return context.workspace.take(device.compute_dtype(), {h.n_rows(), heads.kv_heads.size(), dim});
  };
  const TensorView k = take(shape.head_dim);
  const TensorView v = take(shape.v_dim);
  project.wk.forward(device, h, k);
  if (project.wv) {
    project.wv->forward(device, h, v);
  } else {
    device.copy_columns(k, 0, shape.head_dim, v, 0);
  }
  if (!project.k_norm.empty()) device.head_norm(k, project.k_norm, norm_eps);
  if (project.norms_v) device.head_norm(v, {}, norm_eps);
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
  const TensorView q = context.workspace.take(device.compute_dtype(), {m, n_heads, shape.head_dim});
  wq.forward(device, h, q);
  if (!q_norm.empty()) device.head_norm(q, q_norm, norm_eps);
  device.rope(q, context.rows.positions, frequencies_of(rope));
  if (key_value) write_keys(context, rope, layer, h);

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
