#include "runtime/model/experts.hpp"

#include "kernels/base/hash.hpp"

namespace testbed {
namespace {

std::span<const int32_t> values_i32(const Tensor& x, int64_t first, int64_t n) {
  return {x.as<int32_t>() + first, static_cast<size_t>(n)};
}
std::span<const float> values_f32(const Tensor& x, int64_t first, int64_t n) {
  return {x.as<float>() + first, static_cast<size_t>(n)};
}

// Of the ranks that route the same tokens one reports them.
bool is_first_copy(const StepContext& context) {
  return context.groups.tp.rank() == 0 && !context.rows.are_copies;
}

// What a device without data draws by: another choice in every layer.
std::vector<uint64_t> keys_of_layer(const MicrobatchRows& rows, int64_t layer) {
  std::vector<uint64_t> keys = rows.keys;
  for (uint64_t& key : keys) key = mix64(key ^ static_cast<uint64_t>(layer));
  return keys;
}

}  // namespace

void GatedMlp::forward(StepContext& context, TensorView h, TensorView partial) const {
  Device& device = context.device;
  const Workspace::Frame frame(context.workspace);
  const int64_t m = h.n_rows();
  const TensorView both = context.workspace.take(device.compute_dtype(), {m, gate_up.n_local()});
  const TensorView act = context.workspace.take(device.compute_dtype(), {m, gate_up.n_local() / 2});
  gate_up.forward_gated(device, h, activation, both, act);
  down.forward(device, act, partial);
}

void MoeMlp::report(StepContext& context, const Tensor& ids, const ExchangeBytes& bytes) const {
  if (context.timeline == nullptr) return;
  ExpertEvent event{.n_tokens = ids.shape()[0], .sent_bytes = bytes.sent};
  if (is_first_copy(context)) {
    event.tokens_per_expert.assign(static_cast<size_t>(router.n_experts), 0);
    for (const int32_t id : values_i32(ids, 0, ids.n_elements())) {
      ++event.tokens_per_expert[static_cast<size_t>(id)];
    }
  }
  context.timeline->on_experts(std::move(event));
}

// The rows of x that are this rank's slice, through the expert group.
TensorView MoeMlp::exchange(StepContext& context,
                            ResidualStream& residual,
                            const Tensor& ids,
                            const Tensor& weights,
                            const std::vector<uint8_t>& copies,
                            TensorView x) const {
  const IndexRange slice = residual.slice();
  const int64_t top_k = experts.top_k;
  const TensorView out = residual.take_slice();
  const ExchangeBytes bytes =
      exchange_with_experts(context.device,
                            {context.groups.ep, context.groups.ep_host},
                            context.workspace,
                            experts,
                            router.n_experts,
                            x.rows(slice.begin, slice.size()),
                            {values_i32(ids, slice.begin * top_k, slice.size() * top_k),
                             values_f32(weights, slice.begin * top_k, slice.size() * top_k),
                             std::span(copies).subspan(static_cast<size_t>(slice.begin),
                                                       static_cast<size_t>(slice.size()))},
                            out.rows(0, slice.size()));
  report(context, ids, bytes);
  return out;
}

TensorView MoeMlp::forward(StepContext& context,
                           int64_t layer,
                           ResidualStream& residual,
                           TensorView routed_by,
                           TensorView x) const {
  Device& device = context.device;
  enter(context, layer, Site::experts);
  const int64_t m = x.n_rows();
  const TensorView logits = context.workspace.take(DType::F32, {m, router.n_experts});
  router.gate.forward(device, routed_by, logits);
  const Tensor ids(DType::I32, {m, experts.top_k});  // on the host: they decide what is sent where
  const Tensor weights(DType::F32, {m, experts.top_k});
  const std::vector<uint64_t> keys =
      device.holds_data() ? std::vector<uint64_t>{} : keys_of_layer(context.rows, layer);
  device.route(logits,
               {.rule = router.rule,
                .selection_bias = router.selection_bias,
                .expert_scale = router.expert_scale,
                .row_keys = keys},
               ids,
               weights);
  if (context.on_routed) context.on_routed(layer, ids);
  const std::vector<uint8_t> copies(static_cast<size_t>(m), context.rows.are_copies ? 1 : 0);

  if (!all_to_all) {
    const TensorView partial = residual.take_partial();
    experts.forward(device,
                    context.workspace,
                    x,
                    {values_i32(ids, 0, ids.n_elements()),
                     values_f32(weights, 0, weights.n_elements()),
                     copies},
                    partial);
    report(context, ids, {});
    if (shared) {
      const TensorView of_shared = residual.take_partial();
      shared->forward(context, x, of_shared);
      device.add(partial, of_shared);
    }
    return residual.reduce(partial);
  }
  const TensorView slice = exchange(context, residual, ids, weights, copies, x);
  if (!shared) return residual.complete(slice);
  // The reduction that the shared experts need anyway brings the slices together.
  const TensorView partial = residual.take_partial();
  shared->forward(context, x, partial);
  const IndexRange rows = residual.slice();
  device.add(partial.rows(rows.begin, rows.size()), slice.rows(0, rows.size()));
  return residual.reduce(partial);
}

}  // namespace testbed
