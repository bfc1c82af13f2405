#include "runtime/plan/step_ops.hpp"

#include "kernels/cost.hpp"
#include "runtime/config/split.hpp"
#include "runtime/plan/step_parts.hpp"

namespace testbed::plan {
namespace {

// After runtime/model/transformer_block.cpp and runtime/serving/executor.cpp.
class StepOps {
 public:
  StepOps(const ModelConfig& model,
          const ShardPosition& position,
          const StepShape& shape,
          const StepFormats& formats)
      : model_(model),
        rows_(model, position, shape),
        ops_(formats, rows_.cp_use() == CpUse::merge && position.cp_rank > 0),
        step_{model, position, shape, rows_, ops_},
        m_(step_.m()) {}

  void chunk(IndexRange layers, bool first, bool last) {
    if (first) embed();
    norm("input norm");
    for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
      const bool ends_chunk = layer + 1 == layers.end;
      block(layer, !ends_chunk ? "input norm" : last ? "final norm" : "");
    }
    if (last) {
      head();
    } else if (model_.per_layer_input) {
      ops_.copy("pass on", m_, model_.n_layers * model_.per_layer_input->dim);
    }
  }

  std::vector<PlannedOp> take() { return ops_.take(); }

 private:
  void norm(std::string_view name) { ops_.norm(name, m_, model_.d_model, false); }

  // Of m tokens those whose id is in this rank's part of a vocabulary; which they are depends on
  // the ids: here as if these were evenly spread.
  int64_t n_gathered() const {
    return split_range(m_, step_.position.tp, step_.position.tp_rank).size();
  }

  void embed() {
    ops_.embed("embed", m_, n_gathered(), model_.d_model);
    if (model_.scaled_embedding) ops_.scale("scale", m_, model_.d_model);
    if (model_.per_layer_input) embed_per_layer();
  }

  void embed_per_layer() {
    const int64_t dim = model_.per_layer_input->dim;
    const int64_t width = model_.n_layers * dim;
    ops_.embed("embed", m_, n_gathered(), width);
    ops_.scale("scale", m_, width);
    ops_.linear("per-layer in", m_, step_.replicated(width, model_.d_model));
    ops_.scale("scale", m_, width);
    ops_.norm("per-layer norm", m_ * model_.n_layers, dim, false);
    ops_.residual_add("add", m_, width);
    ops_.scale("scale", m_, width);
  }

  // next_norm: fused with the sum that ends the layer; "": none follows in this chunk.
  void block(int64_t layer, std::string_view next_norm) {
    const bool sandwich = model_.norms == NormPlacement::sandwich;
    if (model_.mla) {
      add_latent_attention(step_);
    } else {
      add_attention(step_, layer);
    }
    if (sandwich) norm("post norm");
    ops_.norm("mlp norm", m_, model_.d_model, true);
    mlp(model_.layer(layer));
    if (sandwich) norm("post norm");
    const bool changes_after = model_.per_layer_input || model_.layer_scalars;
    if (!changes_after && !next_norm.empty()) {
      ops_.norm(next_norm, m_, model_.d_model, true);
      return;
    }
    ops_.residual_add("add", m_, model_.d_model);
    if (model_.per_layer_input) add_per_layer_input();
    if (model_.layer_scalars) ops_.scale("scale", m_, model_.d_model);
    if (changes_after && !next_norm.empty()) norm(next_norm);
  }

  void mlp(const LayerShape& layer) {
    if (layer.d_ff > 0) add_mlp(step_, layer.d_ff, model_.mlp_bias);
    if (!layer.has_experts) return;
    if (layer.d_ff > 0) {
      // Side by side: norms of the MLP's sum, of what the router and the experts see, of theirs.
      norm("post norm");
      norm("router norm");
      norm("experts norm");
    }
    add_experts(step_);
    if (layer.d_ff == 0) return;
    norm("post norm");
    ops_.residual_add("add", m_, model_.d_model);
  }

  void add_per_layer_input() {
    const int64_t dim = model_.per_layer_input->dim;
    ops_.linear("per-layer in", m_, step_.replicated(dim, model_.d_model));
    ops_.copy("per-layer copy", m_, dim);
    ops_.add("activation", OpKind::activation, m_, activation_cost(m_, dim, ops_.activation()));
    ops_.linear("per-layer out", m_, step_.replicated(model_.d_model, dim));
    norm("post norm");
    ops_.residual_add("add", m_, model_.d_model);
  }

  // Each sequence's last row is sampled greedily. Around the cp ring every rank has the rows by
  // then, one of them its own.
  void head() {
    const int64_t rows = step_.shape.batch;
    const int64_t n_own = rows_.n_logits();
    const int64_t n_vocab =
        vocabulary_shard(model_.vocab_size, step_.position.tp, step_.position.tp_rank).size();
    ops_.add("gather rows",
             OpKind::copy,
             rows,
             copy_cost(n_own * model_.d_model, rows * model_.d_model, ops_.activation()));
    if (n_vocab == 0) return;
    ops_.linear(
        "head", rows, {.n = n_vocab, .k = model_.d_model, .role = MatrixRole::table}, n_own);
    if (model_.final_softcap) {
      ops_.add("softcap", OpKind::activation, rows, softcap_cost(rows * n_vocab, DType::F32));
    }
    ops_.add("row max", OpKind::sample, rows, copy_cost(rows * n_vocab, 0, DType::F32));
  }

  const ModelConfig& model_;
  StepRows rows_;
  OpList ops_;
  StepParts step_;
  int64_t m_;
};

}  // namespace

std::vector<PlannedOp> step_ops(const ModelConfig& model,
                                const ShardPosition& position,
                                const StepShape& shape,
                                const StepFormats& formats) {
  const std::vector<IndexRange> layers = layers_of_chunks(model, position.n_chunks());
  StepOps ops(model, position, shape, formats);
  for (int v = 0; v < position.n_virtual_stages; ++v) {
    const int chunk = position.chunk(v);
    ops.chunk(layers[static_cast<size_t>(chunk)], chunk == 0, chunk == position.n_chunks() - 1);
  }
  return ops.take();
}

OpCost total_cost(const std::vector<PlannedOp>& ops) {
  OpCost total;
  for (const PlannedOp& op : ops) total += op.cost;
  return total;
}

}  // namespace testbed::plan
