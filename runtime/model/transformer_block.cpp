#include "runtime/model/transformer_block.hpp"

namespace testbed {
namespace {

void norm_in_place(Device& device, const std::optional<NormWeight>& norm, TensorView x) {
  if (norm) device.rms_norm(x, norm->weight, norm->eps, x);
}

const NormWeight* pointer(const std::optional<NormWeight>& norm) { return norm ? &*norm : nullptr; }

}  // namespace

void TransformerBlock::attend(StepContext& context,
                              const RopeTables& rope,
                              ResidualStream& residual) const {
  const Workspace::Frame frame(context.workspace);
  const TensorView partial = residual.take_partial();
  const RopeTable& table = shape.window_rope ? rope.window : rope.full;
  std::visit([&](const auto& a) { a.forward(context, table, layer, residual.normed(), partial); },
             attention);
  residual.reduce_add_norm(partial, pointer(norms.post_attention), &norms.mlp);
}

// gemma4: the router sees the raw residual, experts and MLP see it through norms of their own.
TensorView TransformerBlock::side_by_side(StepContext& context, ResidualStream& residual) const {
  Device& device = context.device;
  const TensorView partial = residual.take_partial();
  mlp->forward(context, residual.normed(), partial);
  const TensorView dense = residual.reduce(partial);
  norm_in_place(device, norms.post_dense, dense);

  const TensorView raw = residual.gathered();
  const auto normed = [&](const NormWeight& norm) {
    const TensorView out = residual.take_partial();
    device.rms_norm(raw, norm.weight, norm.eps, out);
    return out;
  };
  const TensorView routed_by = normed(*moe->router.input_norm);
  const TensorView chosen =
      moe->forward(context, layer, residual, routed_by, normed(*norms.experts));
  norm_in_place(device, norms.post_experts, chosen);
  device.add(dense, chosen);
  return dense;
}

// Held rows of what the MLP adds.
TensorView TransformerBlock::mlp_sum(StepContext& context, ResidualStream& residual) const {
  if (mlp && moe) return side_by_side(context, residual);
  if (moe) return moe->forward(context, layer, residual, residual.normed(), residual.normed());
  const TensorView partial = residual.take_partial();
  mlp->forward(context, residual.normed(), partial);
  return residual.reduce(partial);
}

void TransformerBlock::add_per_layer_input(StepContext& context, ResidualStream& residual) const {
  Device& device = context.device;
  const PerLayerInput& input = *per_layer_input;
  const TensorView x = residual.held();
  const auto take = [&](int64_t width) {
    return context.workspace.take(device.compute_dtype(), {x.n_rows(), width});
  };
  const TensorView gate = take(input.dim);
  input.gate.forward(device, x, gate, residual.holds_own_rows());
  const TensorView mine = take(input.dim);
  const TensorView all = context.per_layer_inputs;
  device.copy_columns(all.reshaped({x.n_rows(), all.shape()[1] * input.dim}),
                      layer * input.dim,
                      input.dim,
                      mine,
                      0);
  device.gated_activation(input.activation, gate, mine, gate);
  const TensorView out = take(x.shape()[1]);
  input.projection.forward(device, gate, out, residual.holds_own_rows());
  device.rms_norm(out, input.post_norm.weight, input.post_norm.eps, out);
  device.add(x, out);
}

void TransformerBlock::forward(StepContext& context,
                               const RopeTables& rope,
                               ResidualStream& residual,
                               const NormWeight* next_norm) const {
  enter(context, layer, Site::attention);
  attend(context, rope, residual);

  enter(context, layer, Site::mlp);
  const Workspace::Frame frame(context.workspace);
  const TensorView sum = mlp_sum(context, residual);
  norm_in_place(context.device, norms.post_mlp, sum);
  if (!changes_after_mlp()) {
    residual.add_norm(sum, next_norm);
    return;
  }
  residual.add_norm(sum, nullptr);
  if (per_layer_input) add_per_layer_input(context, residual);
  if (output_scale) context.device.scale(residual.held(), *output_scale);
  if (next_norm != nullptr) residual.norm(*next_norm);
}

}  // namespace testbed
