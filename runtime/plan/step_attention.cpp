// The ops of runtime/model/attention.cpp and parallel/ring_attention.cpp.
#include "kernels/attention_cost.hpp"
#include "kernels/cost.hpp"
#include "runtime/plan/attended.hpp"

namespace testbed::plan {
namespace {

void add_ring(const StepParts& step,
              const AttendedShape& shape,
              const std::vector<AttendedPart>& parts,
              const std::function<void(const AttendedPart&, bool)>& attend) {
  const int64_t m = step.m();
  for (size_t s = 0; s < parts.size(); ++s) {
    const AttendedPart& part = parts[s];
    // All that came goes on as it is.
    if (part.n_leaving > 0 && (s == 0 || part.n_leaving < part.n_arrived)) {
      const int64_t n_tokens = part.n_leaving * kv_block_size;
      step.ops.add("gather blocks", OpKind::copy, n_tokens, gather_blocks_cost(n_tokens, shape.kv));
    }
    if (s > 0 && part.n_blocks == 0) continue;
    attend(part, true);
    if (s > 0) {
      step.ops.add("merge", OpKind::merge, m, merge_attention_cost(m, shape.n_heads, shape.v_dim));
    }
  }
}

}  // namespace

OpCost part_cost(
    const AttendedPart& part, int64_t window, int64_t n_heads, const KvShape& kv, bool is_partial) {
  OpCost cost = attention_cost(part.sequences, window, n_heads, kv, is_partial);
  const int64_t n = part.n_alike;
  cost.flops *= n;
  cost.model_flops *= n;
  cost.weight_bytes *= n;
  cost.kv_bytes *= n;
  cost.kv_write_bytes *= n;
  cost.activation_bytes *= n;
  return cost;
}

void add_attended(const StepParts& step,
                  const AttendedShape& shape,
                  const std::function<void(const AttendedPart&, bool)>& attend) {
  const std::vector<AttendedPart> parts = step.rows.parts(shape.window);
  if (step.rows.cp_use() == CpUse::none) {
    attend(parts.front(), false);
    return;
  }
  const int64_t m = step.m();
  if (step.rows.cp_use() == CpUse::ring) {
    add_ring(step, shape, parts, attend);
  } else {
    attend(parts.front(), true);
    for (int rank = 1; rank < step.position.cp; ++rank) {
      step.ops.add("merge", OpKind::merge, m, merge_attention_cost(m, shape.n_heads, shape.v_dim));
    }
  }
  step.ops.add(
      "finish",
      OpKind::merge,
      m,
      finish_attention_cost(m, shape.n_heads, shape.v_dim, shape.sinks, step.ops.activation()));
}

namespace {

// Norm without weights.
void add_value_norm(const StepParts& step, int64_t n_heads, int64_t dim) {
  OpCost cost = norm_cost(step.m() * n_heads, dim, false, step.ops.activation());
  cost.weight_bytes = 0;
  step.ops.add("v norm", OpKind::norm, step.m(), cost);
}

void add_query_or_key(const StepParts& step, int64_t n_heads, int64_t dim) {
  const int64_t m = step.m();
  if (step.model.qk_norm) step.ops.norm("q, k norm", m * n_heads, dim, false);
  step.ops.add("rope", OpKind::rope, m, rope_cost(m * n_heads * dim, step.ops.activation()));
}

void add_keys(const StepParts& step, const LayerShape& layer, const HeadShard& heads) {
  const int64_t m = step.m();
  const int64_t n_kv = heads.kv_heads.size();
  const auto projected = [&](int64_t dim) {
    step.ops.linear("k, v",
                    m,
                    {.n = n_kv * dim,
                     .k = step.model.d_model,
                     .bias_rows = step.model.qkv_bias ? n_kv * dim : 0,
                     .replica = !heads.first_replica});
  };
  projected(layer.head_dim);
  if (layer.key_is_value) {
    step.ops.copy("k as v", m, n_kv * layer.head_dim);
  } else {
    projected(layer.v_dim);
  }
  add_query_or_key(step, n_kv, layer.head_dim);
  if (step.model.v_norm) add_value_norm(step, n_kv, layer.v_dim);
}

}  // namespace

void add_attention(const StepParts& step, int64_t index) {
  const ModelConfig& model = step.model;
  const LayerShape layer = model.layer(index);
  const HeadShard heads = heads_of_rank(layer, model.n_heads, step.position);
  const int64_t n_heads = heads.heads.size();
  const int64_t n_q = n_heads * layer.head_dim;
  step.ops.linear(
      "q", step.m(), {.n = n_q, .k = model.d_model, .bias_rows = model.qkv_bias ? n_q : 0});
  add_query_or_key(step, n_heads, layer.head_dim);
  const KvShape kv{.n_kv_heads = heads.kv_heads.size(),
                   .head_dim = layer.head_dim,
                   .v_dim = layer.v_dim,
                   .dtype = step.ops.activation()};
  if (layer.kv_layer == index) {
    add_keys(step, layer, heads);
    const int64_t n_stored = step.rows.n_stored();
    step.ops.add("KV write", OpKind::kv_write, n_stored, kv_write_cost(n_stored, kv));
  }
  const AttendedShape shape{.window = layer.window,
                            .kv = kv,
                            .n_heads = n_heads,
                            .v_dim = layer.v_dim,
                            .sinks = model.attention_sinks};
  add_attended(step, shape, [&](const AttendedPart& part, bool is_partial) {
    OpCost cost = part_cost(part, layer.window, n_heads, kv, is_partial);
    // Of partial results the sinks count when these are finished.
    if (shape.sinks && !is_partial) cost.weight_bytes += dtype_bytes(DType::F32, n_heads);
    step.ops.add("attention", OpKind::attention, step.m(), cost);
  });
  step.ops.linear("o",
                  step.m(),
                  {.n = model.d_model,
                   .k = n_heads * layer.v_dim,
                   .bias_rows = model.output_bias ? step.first_of_tp(model.d_model) : 0});
}

}  // namespace testbed::plan
