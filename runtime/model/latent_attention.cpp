#include "runtime/model/latent_attention.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/model/attention.hpp"
#include "runtime/model/context_parallel.hpp"

namespace testbed {
namespace {

// The blocks of all sequences, numbered anew in the order in which they are listed.
struct Renumbered {
  std::vector<int32_t> blocks;  // as they were
  std::vector<std::vector<KvBlock>> of_sequence;
  std::vector<AttentionSequence> sequences;
};

Renumbered renumber(std::span<const AttentionSequence> sequences) {
  Renumbered result;
  result.of_sequence.reserve(sequences.size());
  result.sequences.reserve(sequences.size());
  for (const AttentionSequence& sequence : sequences) {
    std::vector<KvBlock>& blocks = result.of_sequence.emplace_back();
    blocks.reserve(sequence.blocks.size());
    for (KvBlock block : sequence.blocks) {
      const auto number = static_cast<int32_t>(result.blocks.size());
      result.blocks.push_back(block.block);
      block.block = number;
      blocks.push_back(block);
    }
    AttentionSequence& mine = result.sequences.emplace_back(sequence);
    mine.blocks = blocks;
  }
  return result;
}

std::vector<int32_t> one_head_each(int64_t n_heads) {
  std::vector<int32_t> heads(static_cast<size_t>(n_heads));
  std::iota(heads.begin(), heads.end(), 0);
  return heads;
}

bool decodes(const MicrobatchRows& rows) {
  return rows.n_rows() == static_cast<int64_t>(rows.sequences.front().size()) &&
         rows.cp_use != CpUse::ring;
}

// Keys and values of all heads, in blocks like those of a cache.
class Expansion {
 public:
  Expansion(StepContext& context, const LatentAttention& layer, const KvView& latents)
      : context_(context), layer_(layer), latents_(latents), n_heads_(layer.heads.size()) {}

  // One linear of kv_lora_rank per token of the blocks, n_new of which are this step's own: those
  // count as the model's.
  KvView expand(std::span<const int32_t> blocks, int64_t n_new) {
    Device& device = context_.device;
    const MlaConfig& mla = layer_.mla;
    const auto n_blocks = static_cast<int64_t>(blocks.size());
    const int64_t n_tokens = n_blocks * latents_.block_size;
    const TensorView packed = take({n_tokens, mla.cached_dim()});
    KvView gathered = latents_;
    gathered.k = packed.data();
    gathered.n_blocks = n_blocks;
    device.gather_blocks(latents_, blocks, gathered);

    const TensorView latent = take({n_tokens, mla.kv_lora_rank});
    device.copy_columns(packed, 0, mla.kv_lora_rank, latent, 0);
    const TensorView both = take({n_tokens, n_heads_, mla.nope_dim + mla.v_dim});
    device.linear(latent, layer_.wkv_b, {}, both, n_new);
    const TensorView k = take({n_tokens, n_heads_, mla.qk_dim()});
    device.copy_columns(both, 0, mla.nope_dim, k, 0);
    device.copy_columns(packed, mla.kv_lora_rank, mla.rope_dim, k, mla.nope_dim);
    const TensorView v = take({n_tokens, n_heads_, mla.v_dim});
    device.copy_columns(both, mla.nope_dim, mla.v_dim, v, 0);
    return in_blocks(k, v, n_blocks);
  }

 private:
  TensorView take(Shape shape) {
    return context_.workspace.take(context_.device.compute_dtype(), shape);
  }
  KvView in_blocks(TensorView k, TensorView v, int64_t n_blocks) {
    const KvView pages{.k = take(k.shape()).data(),
                       .v = take(v.shape()).data(),
                       .dtype = k.dtype(),
                       .n_blocks = n_blocks,
                       .block_size = latents_.block_size,
                       .n_kv_heads = n_heads_,
                       .head_dim = layer_.mla.qk_dim(),
                       .v_dim = layer_.mla.v_dim,
                       .cached_elements = layer_.mla.cached_dim()};
    std::vector<int64_t> slots(static_cast<size_t>(k.n_rows()));
    std::iota(slots.begin(), slots.end(), int64_t{0});
    context_.device.write_kv(k, v, pages, slots);
    return pages;
  }

  StepContext& context_;
  const LatentAttention& layer_;
  KvView latents_;
  int64_t n_heads_;
};

}  // namespace

TensorView LatentAttention::queries(StepContext& context,
                                    const RopeTable& rope,
                                    TensorView h) const {
  Device& device = context.device;
  const int64_t m = h.n_rows();
  const auto take = [&](Shape shape) {
    return context.workspace.take(device.compute_dtype(), shape);
  };
  const TensorView q = take({m, heads.size(), mla.qk_dim()});
  const Workspace::Frame frame(context.workspace);
  if (wq_a) {
    const TensorView low = take({m, mla.q_lora_rank});
    wq_a->forward(device, h, low);
    device.rms_norm(low, q_a_norm.weight, q_a_norm.eps, low);
    wq.forward(device, low, q);
  } else {
    wq.forward(device, h, q);
  }
  const TensorView rotated = take({m, heads.size(), mla.rope_dim});
  device.copy_columns(q, mla.nope_dim, mla.rope_dim, rotated, 0);
  device.rope(rotated, context.rows.positions, frequencies_of(rope));
  device.copy_columns(rotated, 0, mla.rope_dim, q, mla.nope_dim);
  return q;
}

void LatentAttention::write_latents(StepContext& context,
                                    const RopeTable& rope,
                                    int64_t layer,
                                    TensorView h) const {
  Device& device = context.device;
  const Workspace::Frame frame(context.workspace);
  const int64_t m = h.n_rows();
  const auto take = [&](Shape shape) {
    return context.workspace.take(device.compute_dtype(), shape);
  };
  const TensorView both = take({m, mla.cached_dim()});
  wkv_a.forward(device, h, both);
  const TensorView latent = take({m, mla.kv_lora_rank});
  device.copy_columns(both, 0, mla.kv_lora_rank, latent, 0);
  device.rms_norm(latent, kv_a_norm.weight, kv_a_norm.eps, latent);
  const TensorView key = take({m, 1, mla.rope_dim});
  device.copy_columns(both, mla.kv_lora_rank, mla.rope_dim, key, 0);
  device.rope(key, context.rows.positions, frequencies_of(rope));
  device.copy_columns(latent, 0, mla.kv_lora_rank, both, 0);
  device.copy_columns(key, 0, mla.rope_dim, both, mla.kv_lora_rank);
  device.write_kv(both.reshaped({m, 1, mla.cached_dim()}),
                  {},
                  context.kv.view(layer),
                  context.rows.slots[kv_group(context, layer)]);
}

// q.k = (absorb_k q_nope).latent + q_rope.key: attention over the latents as one KV head.
void LatentAttention::attend_absorbed(StepContext& context,
                                      int64_t layer,
                                      TensorView q,
                                      TensorView out) const {
  Device& device = context.device;
  const int64_t m = q.n_rows();
  const auto take = [&](int64_t dim) {
    return context.workspace.take(device.compute_dtype(), {m, heads.size(), dim});
  };
  const TensorView nope = take(mla.nope_dim);
  device.copy_columns(q, 0, mla.nope_dim, nope, 0);
  const TensorView absorbed = take(mla.kv_lora_rank);
  device.head_linear(nope, absorb_k, absorbed);
  const TensorView query = take(mla.cached_dim());
  device.copy_columns(absorbed, 0, mla.kv_lora_rank, query, 0);
  device.copy_columns(q, mla.nope_dim, mla.rope_dim, query, mla.kv_lora_rank);
  const TensorView latent_out = take(mla.kv_lora_rank);
  const std::vector<int32_t> all_to_one(static_cast<size_t>(heads.size()), 0);
  attend(context,
         {.kv_layer = layer, .scale = scale, .model_dim = mla.qk_dim() + mla.v_dim},
         all_to_one,
         query,
         latent_out);
  device.head_linear(latent_out, absorb_v, out);
}

void LatentAttention::attend_expanded(StepContext& context,
                                      int64_t layer,
                                      TensorView q,
                                      TensorView out) const {
  const std::vector<int32_t> head_to_kv = one_head_each(heads.size());
  int64_t n_new = q.n_rows();  // they are in this rank's cache, which comes first
  const PartialAttention partial = [&](const KvView& latents,
                                       std::span<const AttentionSequence> sequences,
                                       TensorView part,
                                       TensorView lse) {
    const Workspace::Frame frame(context.workspace);
    const Renumbered blocks = renumber(sequences);
    const KvView pages =
        Expansion(context, *this, latents).expand(blocks.blocks, std::exchange(n_new, 0));
    context.device.attention(
        q,
        pages,
        {.sequences = blocks.sequences, .scale = scale, .head_to_kv = head_to_kv},
        part,
        lse);
  };
  if (context.rows.cp_use == CpUse::none) {
    partial(context.kv.view(layer), context.rows.sequences[kv_group(context, layer)], out, {});
  } else {
    attend_over_cp(context, layer, partial, {out, {}});
  }
}

void LatentAttention::forward(StepContext& context,
                              const RopeTable& rope,
                              int64_t layer,
                              TensorView h,
                              TensorView partial) const {
  const int64_t m = h.n_rows();
  const TensorView q = queries(context, rope, h);
  write_latents(context, rope, layer, h);
  const TensorView out =
      context.workspace.take(context.device.compute_dtype(), {m, heads.size(), mla.v_dim});
  if (decodes(context.rows)) {
    attend_absorbed(context, layer, q, out);
  } else {
    attend_expanded(context, layer, q, out);
  }
  wo.forward(context.device, out.reshaped({m, heads.size() * mla.v_dim}), partial);
}

}  // namespace testbed
