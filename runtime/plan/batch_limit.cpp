#include "runtime/plan/batch_limit.hpp"

#include <fmt/format.h>

#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "runtime/plan/kv.hpp"
#include "runtime/plan/moe.hpp"

namespace testbed::plan {
namespace {

using PassAt = std::function<DecodePass(int64_t context)>;

// DeepSeek-V2's latent and rotated key (arXiv:2405.04434), in every layer.
constexpr int64_t mla_latent = 512;
constexpr int64_t mla_rope_dim = 64;

// The attention of a decode pass replaced by MLA's with the up-projections absorbed: each head
// takes scores over latent and rotated key, and sums latents. Windows stay.
DecodePass with_mla(const ModelConfig& model, int64_t context, const StepFormats& formats) {
  DecodePass pass = decode_pass(model, context, formats);
  const ContiguousSequence last(1, context);
  int64_t seen = 0;   // tokens, in all layers
  int64_t flops = 0;  // of attention as it is
  for (int64_t i = 0; i < model.n_layers; ++i) {
    const LayerShape layer = model.layer(i);
    const int64_t n = visible_tokens(last.view(), layer.window);
    seen += n;
    flops += 2 * n * model.n_heads * (layer.head_dim + layer.v_dim);
  }
  const int64_t absorbed = 2 * seen * model.n_heads * (2 * mla_latent + mla_rope_dim);
  pass.flops_per_sequence += static_cast<double>(absorbed - flops);
  pass.kv_bytes_per_sequence =
      static_cast<double>(mla_bytes_per_token(seen, mla_latent, mla_rope_dim, formats.activation));
  return pass;
}

BatchLimit limit_of(std::string change, const PassAt& pass_at, int64_t context, double ridge) {
  const DecodePass pass = pass_at(context);
  return {.change = std::move(change),
          .kv_bytes_per_sequence = pass.kv_bytes_per_sequence,
          .intensity_limit = pass.intensity_limit(),
          .batch = compute_bound_batch(pass, ridge),
          .context_limit = context_limit(pass_at, ridge)};
}

}  // namespace

double DecodePass::weights_read(double batch) const {
  if (expert_bytes == 0.0) return weight_bytes;
  const double per_expert = expert_bytes / static_cast<double>(n_experts);
  return moe_weight_bytes(weight_bytes, per_expert, n_experts, top_k, batch);
}

DecodePass decode_pass(const ModelConfig& model, int64_t context, const StepFormats& formats) {
  DecodePass pass;
  if (model.moe) {
    pass.n_experts = model.moe->n_experts;
    pass.top_k = model.moe->routing.top_k;
  }
  // One token touches exactly k experts.
  const double all_for_one = static_cast<double>(pass.n_experts) / static_cast<double>(pass.top_k);
  for (const PlannedOp& op : step_ops(model, {}, decode_shape(1, context), formats)) {
    const auto weights = static_cast<double>(op.cost.weight_bytes);
    if (op.kind == OpKind::expert_linear) {
      pass.expert_bytes += all_for_one * weights;
    } else if (op.kind != OpKind::embed) {
      pass.weight_bytes += weights;
    }
    const bool multiplies = op.kind == OpKind::linear || op.kind == OpKind::expert_linear ||
                            op.kind == OpKind::attention;
    if (multiplies) pass.flops_per_sequence += static_cast<double>(op.cost.flops);
    pass.kv_bytes_per_sequence += static_cast<double>(op.cost.kv_bytes);
  }
  return pass;
}

std::optional<double> compute_bound_batch(const DecodePass& pass, double ridge) {
  // B f / (W(B) + B kv) = ridge. W grows towards all weights and no faster than B: from above, the
  // iteration falls to the solution; without experts its first step is that.
  const double gain = pass.flops_per_sequence / ridge - pass.kv_bytes_per_sequence;
  if (gain <= 0.0) return std::nullopt;
  double batch = (pass.weight_bytes + pass.expert_bytes) / gain;
  for (double next = pass.weights_read(batch) / gain; batch - next > 1e-9 * batch;
       next = pass.weights_read(batch) / gain) {
    batch = next;
  }
  return batch;
}

std::optional<int64_t> context_limit(const PassAt& pass_at, double ridge) {
  constexpr int64_t longest = int64_t{1} << 30;
  const auto reaches = [&](int64_t context) { return pass_at(context).intensity_limit() > ridge; };
  if (reaches(longest)) return std::nullopt;
  int64_t below = 0;  // reaches, or no context
  int64_t above = longest;
  while (above - below > 1) {
    const int64_t middle = below + (above - below) / 2;
    (reaches(middle) ? below : above) = middle;
  }
  return below;
}

std::vector<BatchLimit> batch_limits(const ModelConfig& model,
                                     int64_t context,
                                     const StepFormats& formats,
                                     double ridge) {
  const auto plain = [&](int64_t tokens) { return decode_pass(model, tokens, formats); };
  const auto half = [&](int64_t tokens) {
    DecodePass pass = plain(tokens);
    pass.kv_bytes_per_sequence /= 2.0;
    return pass;
  };
  std::vector<BatchLimit> limits{
      limit_of("as it is", plain, context, ridge),
      limit_of("KV cache of half the bytes (fp8)", half, context, ridge)};
  if (model.mla) return limits;
  const ModelConfig mqa = with_kv_heads(model, 1);
  const auto one_head = [&](int64_t tokens) { return decode_pass(mqa, tokens, formats); };
  const auto latent = [&](int64_t tokens) { return with_mla(model, tokens, formats); };
  limits.push_back(limit_of("one KV head (MQA)", one_head, context, ridge));
  limits.push_back(limit_of(
      fmt::format("MLA, latent {} + {}", mla_latent, mla_rope_dim), latent, context, ridge));
  return limits;
}

}  // namespace testbed::plan
