#include "runtime/plan/batch_limit.hpp"

#include <fmt/format.h>

#include <limits>

#include "runtime/plan/kv.hpp"

namespace testbed::plan {
namespace {

using PassAt = std::function<DecodePass(int64_t context)>;

// DeepSeek-V2's latent and rotated key (arXiv:2405.04434), in every layer.
constexpr int64_t mla_latent = 512;
constexpr int64_t mla_rope_dim = 64;

// The attention of a decode pass replaced by MLA's with the up-projections absorbed: each head
// takes scores over latent and rotated key, and sums latents.
DecodePass with_mla(const ModelConfig& model, int64_t context, const StepFormats& formats) {
  DecodePass pass = decode_pass(model, context, formats);
  const auto per_token = [&](int64_t per_layer_and_head) {
    return static_cast<double>(context * model.n_layers * model.n_heads * per_layer_and_head);
  };
  pass.flops_per_sequence -= per_token(4 * model.head_dim);
  pass.flops_per_sequence += per_token(2 * (2 * mla_latent + mla_rope_dim));
  pass.kv_bytes_per_sequence = static_cast<double>(
      context * mla_bytes_per_token(model.n_layers, mla_latent, mla_rope_dim, formats.activation));
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

DecodePass decode_pass(const ModelConfig& model, int64_t context, const StepFormats& formats) {
  DecodePass pass;
  for (const PlannedOp& op : step_ops(model, {}, decode_shape(1, context), formats)) {
    if (op.kind != OpKind::embed) pass.weight_bytes += static_cast<double>(op.cost.weight_bytes);
    pass.flops_per_sequence += static_cast<double>(op.cost.model_flops);
    pass.kv_bytes_per_sequence += static_cast<double>(op.cost.kv_bytes);
  }
  return pass;
}

std::optional<double> compute_bound_batch(const DecodePass& pass, double ridge) {
  // B f / (W + B kv) = ridge.
  const double gain = pass.flops_per_sequence / ridge - pass.kv_bytes_per_sequence;
  if (gain <= 0.0) return std::nullopt;
  return pass.weight_bytes / gain;
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
  const ModelConfig mqa = with_kv_heads(model, 1);
  const auto one_head = [&](int64_t tokens) { return decode_pass(mqa, tokens, formats); };
  const auto latent = [&](int64_t tokens) { return with_mla(model, tokens, formats); };
  return {
      limit_of("as it is", plain, context, ridge),
      limit_of("KV cache of half the bytes (fp8)", half, context, ridge),
      limit_of("one KV head (MQA)", one_head, context, ridge),
      limit_of(
          fmt::format("MLA, latent {} + {}", mla_latent, mla_rope_dim), latent, context, ridge)};
}

}  // namespace testbed::plan
