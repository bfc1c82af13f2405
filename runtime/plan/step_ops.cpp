#include "runtime/plan/step_ops.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cost.hpp"

namespace testbed::plan {
namespace {

class StepOps {
 public:
  StepOps(const ModelConfig& model,
          const ShardPosition& position,
          const StepShape& shape,
          const StepFormats& formats)
      : model_(model),
        shape_(shape),
        formats_(formats),
        heads_(heads_of_rank(model, position)),
        first_of_tp_(position.tp_rank == 0),
        ff_(split_range(model.d_ff, position.tp, position.tp_rank).size()),
        vocab_(vocabulary_shard(model.vocab_size, position.tp, position.tp_rank)),
        n_gathered_(split_range(shape.n_tokens(), position.tp, position.tp_rank).size()) {
    sequences_.resize(static_cast<size_t>(shape.batch),
                      {.n_rows = shape.n_new, .first_position = shape.n_cached});
  }

  void chunk(IndexRange layers, bool first, bool last) {
    const int64_t m = shape_.n_tokens();
    if (first) embed(m);
    norm("input norm", m, false);
    for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
      attention(model_.layer_windows[static_cast<size_t>(layer)]);
      norm("mlp norm", m, true);
      mlp();
      // Fused with the next layer's input norm, or the final norm.
      if (layer + 1 < layers.end || last) {
        norm(layer + 1 < layers.end ? "input norm" : "final norm", m, true);
      } else {
        residual_add();
      }
    }
    if (last) head();
  }

  std::vector<PlannedOp> take() { return std::move(ops_); }

 private:
  DType activation() const { return formats_.activation; }
  // Costs are counted in a plain type and then scaled to the bytes of the format.
  static DType table() { return DType::BF16; }

  void add(std::string_view name, OpKind kind, const OpCost& cost) {
    auto at = std::find_if(
        ops_.begin(), ops_.end(), [&](const PlannedOp& op) { return op.name == name; });
    if (at == ops_.end()) at = ops_.insert(at, {.name = name, .kind = kind, .cost = {}});
    ++at->calls;
    at->cost += cost;
  }

  int64_t stored_bytes(int64_t plain_bytes) const {
    const double n_values =
        static_cast<double>(plain_bytes) / static_cast<double>(dtype_bytes(table(), 1));
    return std::llround(n_values * formats_.weights.bytes_per_value);
  }

  // model_rows: rows that count for MFU; bias_rows: F32 values read with the matrix.
  void linear(std::string_view name,
              int64_t m,
              int64_t n,
              int64_t k,
              int64_t model_rows,
              int64_t bias_rows) {
    OpCost cost = linear_cost(m, n, k, model_rows, table(), activation());
    cost.weight_bytes = stored_bytes(cost.weight_bytes) + dtype_bytes(DType::F32, bias_rows);
    add(name, OpKind::linear, cost);
  }

  // Which rank owns a token's row depends on its id: here as if ids were evenly spread.
  void embed(int64_t m) {
    OpCost cost = embed_cost(m, n_gathered_, model_.d_model, table(), activation());
    cost.weight_bytes = stored_bytes(cost.weight_bytes);
    add("embed", OpKind::embed, cost);
  }

  void norm(std::string_view name, int64_t n_rows, bool with_residual) {
    add(name, OpKind::norm, norm_cost(n_rows, model_.d_model, with_residual, activation()));
  }

  void residual_add() {
    const int64_t n = shape_.n_tokens() * model_.d_model;
    OpCost cost = copy_cost(2 * n, n, activation());
    cost.flops = n;
    add("residual add", OpKind::norm, cost);
  }

  void attention(int64_t window) {
    const int64_t m = shape_.n_tokens();
    const int64_t d = model_.head_dim;
    const int64_t n_heads = heads_.heads.size();
    const int64_t n_kv = heads_.kv_heads.size();
    const auto bias = [&](int64_t rows) { return model_.qkv_bias ? rows : 0; };
    linear("q", m, n_heads * d, model_.d_model, n_heads * d, bias(n_heads * d));
    const int64_t kv_model_rows = heads_.first_replica ? n_kv * d : 0;
    for (int i = 0; i < 2; ++i) {
      linear("k, v", m, n_kv * d, model_.d_model, kv_model_rows, bias(n_kv * d));
    }
    for (const int64_t n : {n_heads, n_kv}) {
      if (model_.qk_norm) add("q, k norm", OpKind::norm, norm_cost(m * n, d, false, activation()));
    }
    for (const int64_t n : {n_heads, n_kv}) {
      add("rope", OpKind::rope, rope_cost(m * n * d, activation()));
    }
    add("KV write", OpKind::kv_write, kv_write_cost(m, n_kv, d, activation()));
    add("attention",
        OpKind::attention,
        attention_cost(sequences_, window, n_heads, n_kv, d, activation()));
    const bool has_bias = model_.output_bias && first_of_tp_;
    linear("o", m, model_.d_model, n_heads * d, model_.d_model, has_bias ? model_.d_model : 0);
  }

  void mlp() {
    const int64_t m = shape_.n_tokens();
    linear("gate, up", m, 2 * ff_, model_.d_model, 2 * ff_, model_.mlp_bias ? 2 * ff_ : 0);
    add("swiglu", OpKind::activation, activation_cost(m, ff_, activation()));
    const bool has_bias = model_.mlp_bias && first_of_tp_;
    linear("down", m, model_.d_model, ff_, model_.d_model, has_bias ? model_.d_model : 0);
  }

  // Each sequence's last row is sampled greedily.
  void head() {
    const int64_t rows = shape_.batch;
    const int64_t n = rows * model_.d_model;
    add("gather rows", OpKind::copy, copy_cost(n, n, activation()));
    linear("head", rows, vocab_.size(), model_.d_model, vocab_.size(), 0);
    add("row max", OpKind::sample, copy_cost(rows * vocab_.size(), 0, DType::F32));
  }

  const ModelConfig& model_;
  const StepShape& shape_;
  const StepFormats& formats_;
  HeadShard heads_;
  bool first_of_tp_;
  int64_t ff_;
  IndexRange vocab_;
  int64_t n_gathered_;
  std::vector<AttentionSequence> sequences_;
  std::vector<PlannedOp> ops_;
};

}  // namespace

std::vector<PlannedOp> step_ops(const ModelConfig& model,
                                const ShardPosition& position,
                                const StepShape& shape,
                                const StepFormats& formats) {
  const std::vector<IndexRange> layers = layers_of_chunks(model, position);
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
