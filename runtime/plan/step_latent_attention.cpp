// The ops of runtime/model/latent_attention.cpp.
#include <utility>

#include "kernels/attention_cost.hpp"
#include "kernels/cost.hpp"
#include "parallel/shard.hpp"
#include "runtime/plan/attended.hpp"

namespace testbed::plan {
namespace {

class LatentOps {
 public:
  explicit LatentOps(const StepParts& step)
      : step_(step),
        ops_(step.ops),
        mla_(*step.model.mla),
        n_heads_(split_range(step.model.n_heads, step.position.tp, step.position.tp_rank).size()),
        m_(step.m()),
        latents_{.n_kv_heads = 1,
                 .head_dim = mla_.cached_dim(),
                 .v_dim = mla_.kv_lora_rank,
                 .dtype = step.ops.activation(),
                 .v_in_k = true} {}

  void forward() {
    queries();
    write_latents();
    // A whole prompt of one token is like decoding.
    const bool one_row_each = step_.shape.n_new == 1 && step_.rows.cp_use() != CpUse::ring;
    if (step_.shape.decode || one_row_each) {
      attend_absorbed();
    } else {
      attend_expanded();
    }
    ops_.linear(
        "o",
        m_,
        {.n = step_.model.d_model,
         .k = n_heads_ * mla_.v_dim,
         .bias_rows = step_.model.output_bias ? step_.first_of_tp(step_.model.d_model) : 0});
  }

 private:
  void rope(int64_t n_heads) {
    ops_.add("rope", OpKind::rope, m_, rope_cost(m_ * n_heads * mla_.rope_dim, ops_.activation()));
  }
  void heads_copied(int64_t dim) { ops_.copy("MLA copies", m_, n_heads_ * dim); }

  void queries() {
    const int64_t n = n_heads_ * mla_.qk_dim();
    const int64_t d_model = step_.model.d_model;
    if (mla_.q_lora_rank > 0) {
      ops_.linear("q down", m_, step_.replicated(mla_.q_lora_rank, d_model));
      ops_.norm("latent norm", m_, mla_.q_lora_rank, false);
      ops_.linear("q", m_, {.n = n, .k = mla_.q_lora_rank});
    } else {
      ops_.linear("q", m_, {.n = n, .k = d_model});
    }
    heads_copied(mla_.rope_dim);
    rope(n_heads_);
    heads_copied(mla_.rope_dim);
  }

  void write_latents() {
    ops_.linear("KV down", m_, step_.replicated(mla_.cached_dim(), step_.model.d_model));
    ops_.norm("latent norm", m_, mla_.kv_lora_rank, false);
    rope(1);
    for (int there_and_back = 0; there_and_back < 2; ++there_and_back) {
      ops_.copy("MLA copies", m_, mla_.kv_lora_rank);
      ops_.copy("MLA copies", m_, mla_.rope_dim);
    }
    const int64_t n_stored = step_.rows.n_stored();
    ops_.add("KV write", OpKind::kv_write, n_stored, kv_write_cost(n_stored, latents_));
  }

  void add_attention_over(const AttendedPart& part, const KvShape& kv, bool is_partial) {
    OpCost cost = part_cost(part, 0, n_heads_, kv, is_partial);
    // Of the absorbed form only what the heads' own dimensions need counts for MFU.
    cost.model_flops = cost.flops / (kv.head_dim + kv.v_dim) * (mla_.qk_dim() + mla_.v_dim);
    ops_.add("attention", OpKind::attention, m_, cost);
  }

  void absorbed(std::string_view name, int64_t n, int64_t k) {
    ops_.grouped(
        name, OpKind::linear, m_ * n_heads_, n_heads_, {.n = n, .k = k, .role = MatrixRole::plain});
  }

  void attend_absorbed() {
    heads_copied(mla_.nope_dim);
    absorbed("absorbed k", mla_.kv_lora_rank, mla_.nope_dim);
    heads_copied(mla_.kv_lora_rank);
    heads_copied(mla_.rope_dim);
    add_attended(step_,
                 {.kv = latents_, .n_heads = n_heads_, .v_dim = mla_.kv_lora_rank},
                 [&](const AttendedPart& part, bool is_partial) {
                   add_attention_over(part, latents_, is_partial);
                 });
    absorbed("absorbed v", mla_.v_dim, mla_.kv_lora_rank);
  }

  // Keys and values of all heads, of whole blocks; the n_new tokens of this step count for MFU.
  void expand(int64_t n_tokens, int64_t n_new, const KvShape& expanded) {
    ops_.add("gather blocks", OpKind::copy, n_tokens, gather_blocks_cost(n_tokens, latents_));
    ops_.copy("MLA copies", n_tokens, mla_.kv_lora_rank);
    ops_.linear("KV up",
                n_tokens,
                {.n = n_heads_ * (mla_.nope_dim + mla_.v_dim),
                 .k = mla_.kv_lora_rank,
                 .role = MatrixRole::plain},
                n_new);
    ops_.copy("MLA copies", n_tokens, n_heads_ * mla_.nope_dim);
    ops_.copy("MLA copies", n_tokens, mla_.rope_dim, n_heads_ * mla_.rope_dim);
    ops_.copy("MLA copies", n_tokens, n_heads_ * mla_.v_dim);
    ops_.add("KV write", OpKind::kv_write, n_tokens, kv_write_cost(n_tokens, expanded));
  }

  void attend_expanded() {
    const KvShape expanded{.n_kv_heads = n_heads_,
                           .head_dim = mla_.qk_dim(),
                           .v_dim = mla_.v_dim,
                           .dtype = ops_.activation(),
                           .cached_elements = mla_.cached_dim()};
    int64_t n_new = m_;  // of the first part: a rank's own tokens
    add_attended(step_,
                 {.kv = latents_, .n_heads = n_heads_, .v_dim = mla_.v_dim},
                 [&](const AttendedPart& part, bool is_partial) {
                   const int64_t n_tokens = part.n_blocks * kv_block_size;
                   expand(n_tokens, std::exchange(n_new, 0), expanded);
                   add_attention_over(part, expanded, is_partial);
                 });
  }

  const StepParts& step_;
  OpList& ops_;
  const MlaConfig& mla_;
  int64_t n_heads_;
  int64_t m_;
  KvShape latents_;
};

}  // namespace

void add_latent_attention(const StepParts& step) { LatentOps(step).forward(); }

}  // namespace testbed::plan
