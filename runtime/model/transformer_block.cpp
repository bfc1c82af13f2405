#include "runtime/model/transformer_block.hpp"

#include <cmath>

namespace testbed {

TensorView Attention::forward(StepContext& context,
                              const RopeTable& rope,
                              int64_t layer,
                              TensorView h) const {
  Device& device = context.device;
  const MicrobatchRows& rows = context.rows;
  const int64_t m = rows.n_rows();
  const auto take_heads = [&](int64_t n) {
    return context.workspace.take(device.compute_dtype(), {m, n, head_dim});
  };
  const TensorView q = take_heads(heads.heads.size());
  const TensorView k = take_heads(heads.kv_heads.size());
  const TensorView v = take_heads(heads.kv_heads.size());
  wq.forward(device, h, q);
  wk.forward(device, h, k);
  wv.forward(device, h, v);

  if (!q_norm.empty()) device.head_norm(q, q_norm, norm_eps);
  if (!k_norm.empty()) device.head_norm(k, k_norm, norm_eps);
  const RopeFrequencies frequencies{rope.inv_freq, rope.multiplier};
  device.rope(q, rows.positions, frequencies);
  device.rope(k, rows.positions, frequencies);

  const KvView kv = context.kv.view(layer);
  const auto group = static_cast<size_t>(context.kv.group_of(layer));
  device.write_kv(k, v, kv, rows.slots[group]);
  const TensorView o = take_heads(heads.heads.size());
  device.attention(q,
                   kv,
                   {.sequences = rows.sequences[group],
                    .window = window,
                    .scale = 1.0F / std::sqrt(static_cast<float>(head_dim)),
                    .head_to_kv = heads.head_to_kv},
                   o);

  const TensorView partial = context.workspace.take(device.compute_dtype(), h.shape());
  wo.forward(device, o.reshaped({m, heads.heads.size() * head_dim}), partial);
  return partial;
}

TensorView GatedMlp::forward(StepContext& context, TensorView h) const {
  Device& device = context.device;
  const int64_t m = h.n_rows();
  const TensorView gate_up_out =
      context.workspace.take(device.compute_dtype(), {m, gate_up.n_local()});
  gate_up.forward(device, h, gate_up_out);
  const TensorView act = context.workspace.take(device.compute_dtype(), {m, gate_up.n_local() / 2});
  device.swiglu(gate_up_out, act);
  const TensorView partial = context.workspace.take(device.compute_dtype(), h.shape());
  down.forward(device, act, partial);
  return partial;
}

void TransformerBlock::forward(StepContext& context,
                               const RopeTable& rope,
                               ResidualStream& residual,
                               const NormWeight* next_norm) const {
  enter(context, layer_, Site::attention);
  {
    const Workspace::Frame frame(context.workspace);
    residual.reduce_add_norm(attention_.forward(context, rope, layer_, residual.normed()),
                             &mlp_norm_);
  }
  enter(context, layer_, Site::mlp);
  {
    const Workspace::Frame frame(context.workspace);
    residual.reduce_add_norm(mlp_.forward(context, residual.normed()), next_norm);
  }
}

}  // namespace testbed
