// Loads a rank's shard: which rows and columns of which tensor, piece by piece, into the device's
// layout. The same walk over the tensors, without a device, gives the planned bytes.
#include <algorithm>

#include "kernels/base/errors.hpp"
#include "runtime/model/model.hpp"
#include "runtime/weights/tensor_names.hpp"

namespace testbed {
namespace {

// A slice of one stored tensor. Vectors are cols of one row.
struct Slice {
  std::string name;
  IndexRange rows;
  IndexRange cols;
};

// Reads slices; without a device only counts.
class ShardReader {
 public:
  ShardReader(Device* device,
              const WeightSource& source,
              ResidentWeights wanted,
              DType compute,
              const std::function<void(int64_t, int64_t)>* progress,
              int64_t total_bytes)
      : device_(device),
        source_(source),
        wanted_(wanted),
        compute_(compute),
        progress_(progress),
        total_bytes_(total_bytes) {}

  // The slices' rows stacked into one matrix.
  WeightMatrix matrix(const std::vector<Slice>& slices) {
    int64_t n_rows = 0;
    for (const Slice& slice : slices) n_rows += slice.rows.size();
    const int64_t n_cols = slices.front().cols.size();
    const DType dtype = dtype_of(slices);
    bytes_ += dtype_bytes(dtype, n_rows * n_cols);
    if (device_ == nullptr) return {n_rows, n_cols, dtype, nullptr};
    WeightMatrix weight = device_->allocate_weight(n_rows, n_cols, dtype);
    if (!device_->holds_data()) return weight;
    int64_t row = 0;
    for (const Slice& slice : slices) row = copy(slice, weight, row);
    return weight;
  }

  // The same slice of several vectors, one after the other.
  Tensor vectors(const std::vector<std::string>& names, IndexRange range) {
    const int64_t n = static_cast<int64_t>(names.size()) * range.size();
    bytes_ += dtype_bytes(DType::F32, n);
    if (device_ == nullptr) return {};
    Tensor out = device_->allocate(DType::F32, {n});
    if (!device_->holds_data()) return out;
    const TensorView rows = out.view().reshaped({static_cast<int64_t>(names.size()), range.size()});
    for (size_t i = 0; i < names.size(); ++i) {
      source_.read(names[i], {0, 1}, range, rows.rows(static_cast<int64_t>(i), 1));
    }
    return out;
  }
  Tensor vector(const std::string& name, IndexRange range) { return vectors({name}, range); }

  int64_t block_elements(const std::string& name) const {
    const std::optional<StoredTensor> stored = source_.find(name);
    return stored ? dtype_info(stored->dtype).block_elements : 1;
  }
  int64_t bytes() const { return bytes_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  DType dtype_of(const std::vector<Slice>& slices) {
    std::optional<DType> result;
    for (const Slice& slice : slices) {
      const std::optional<StoredTensor> stored = source_.find(slice.name);
      if (!stored) throw WeightsError(source_.description() + ": no tensor " + slice.name);
      const DType resident = resident_dtype(stored->dtype, wanted_, compute_);
      if (resident != stored->dtype) note(stored->dtype, resident);
      if (result && *result != resident) {  // parts stored unlike each other
        note(resident, DType::F32);
        return DType::F32;
      }
      result = resident;
    }
    return *result;
  }

  void note(DType stored, DType resident) {
    const std::string text = "weights converted: " + std::string(dtype_name(stored)) + " -> " +
                             std::string(dtype_name(resident));
    if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
  }

  int64_t copy(const Slice& slice, const WeightMatrix& weight, int64_t row) {
    constexpr int64_t piece_bytes = int64_t{8} << 20;
    const int64_t row_bytes = std::max<int64_t>(1, dtype_bytes(weight.dtype(), weight.n_cols()));
    const int64_t piece_rows = std::max<int64_t>(16, piece_bytes / row_bytes / 16 * 16);
    for (int64_t r = slice.rows.begin; r < slice.rows.end; r += piece_rows) {
      const int64_t n = std::min(piece_rows, slice.rows.end - r);
      if (staging_.dtype() != weight.dtype() || staging_.n_elements() < n * weight.n_cols()) {
        staging_ = Tensor(weight.dtype(), {piece_rows * weight.n_cols()});
      }
      const TensorView rows(staging_.data(), weight.dtype(), {n, weight.n_cols()});
      source_.read(slice.name, {r, r + n}, slice.cols, rows);
      device_->store_rows(weight, row, rows);
      row += n;
      done_bytes_ += n * row_bytes;
      if (progress_ != nullptr) (*progress_)(done_bytes_, total_bytes_);
    }
    return row;
  }

  Device* device_;
  const WeightSource& source_;
  ResidentWeights wanted_;
  DType compute_;
  const std::function<void(int64_t, int64_t)>* progress_;
  int64_t total_bytes_;
  int64_t bytes_ = 0;
  int64_t done_bytes_ = 0;
  Tensor staging_;
  std::vector<std::string> notes_;
};

// The tensors of a model by their Hugging Face names, sliced for one rank.
class ShardBuilder {
 public:
  ShardBuilder(ShardReader& reader, const ModelConfig& config, const ShardPosition& position)
      : reader_(reader), config_(config), position_(position) {}

  PipelineChunk chunk(int virtual_stage, const std::vector<IndexRange>& layers) {
    const int index = position_.chunk(virtual_stage);
    PipelineChunk chunk;
    if (index == 0) chunk.embedding.emplace(table(embedding_name), vocab().begin);
    const IndexRange range = layers[static_cast<size_t>(index)];
    for (int64_t layer = range.begin; layer < range.end; ++layer) {
      chunk.blocks.push_back(block(layer));
    }
    if (index == position_.n_chunks() - 1) {
      chunk.final_norm = norm(std::string(final_norm_name), config_.d_model);
      chunk.head.emplace(table(config_.tied_embeddings ? embedding_name : head_name),
                         vocab().begin);
    }
    return chunk;
  }

 private:
  IndexRange vocab() const {
    return vocabulary_shard(config_.vocab_size, position_.tp, position_.tp_rank);
  }
  IndexRange all(int64_t n) const { return {0, n}; }

  // A tied table is read once when one rank holds both ends of the pipeline.
  WeightMatrix table(std::string_view name) {
    if (table_name_ == name) return table_;
    table_ = reader_.matrix({{std::string(name), vocab(), all(config_.d_model)}});
    table_name_ = name;
    return table_;
  }

  NormWeight norm(const std::string& name, int64_t n) {
    return {reader_.vector(name, all(n)), static_cast<float>(config_.norm_eps)};
  }

  TransformerBlock block(int64_t layer) {
    const std::string prefix = layer_tensor_name(layer, "");
    NormWeight attention_norm = norm(prefix + "input_layernorm.weight", config_.d_model);
    Attention attention = this->attention(prefix + "self_attn.", layer);
    NormWeight mlp_norm = norm(prefix + "post_attention_layernorm.weight", config_.d_model);
    return {layer,
            std::move(attention_norm),
            std::move(attention),
            std::move(mlp_norm),
            mlp(prefix + "mlp.")};
  }

  ColumnParallelLinear column_parallel(const std::string& name, IndexRange rows, bool bias) {
    return {reader_.matrix({{name + ".weight", rows, all(config_.d_model)}}),
            bias ? reader_.vector(name + ".bias", rows) : Tensor{}};
  }

  RowParallelLinear row_parallel(const std::string& name, IndexRange cols, bool bias) {
    return {reader_.matrix({{name + ".weight", all(config_.d_model), cols}}),
            bias && position_.tp_rank == 0 ? reader_.vector(name + ".bias", all(config_.d_model))
                                           : Tensor{}};
  }

  Attention attention(const std::string& prefix, int64_t layer) {
    Attention a;
    a.heads = heads_of_rank(config_, position_);
    a.head_dim = config_.head_dim;
    a.window = config_.layer_windows[static_cast<size_t>(layer)];
    a.norm_eps = static_cast<float>(config_.norm_eps);
    const IndexRange q{a.heads.heads.begin * a.head_dim, a.heads.heads.end * a.head_dim};
    const IndexRange kv{a.heads.kv_heads.begin * a.head_dim, a.heads.kv_heads.end * a.head_dim};
    a.wq = column_parallel(prefix + "q_proj", q, config_.qkv_bias);
    a.wk = column_parallel(prefix + "k_proj", kv, config_.qkv_bias);
    a.wv = column_parallel(prefix + "v_proj", kv, config_.qkv_bias);
    if (!a.heads.first_replica) {
      a.wk.set_replica();
      a.wv.set_replica();
    }
    a.wo = row_parallel(prefix + "o_proj", q, config_.output_bias);
    if (config_.qk_norm) {
      a.q_norm = reader_.vector(prefix + "q_norm.weight", all(a.head_dim));
      a.k_norm = reader_.vector(prefix + "k_norm.weight", all(a.head_dim));
    }
    return a;
  }

  GatedMlp mlp(const std::string& prefix) {
    // Columns of the down projection are cut on quantisation blocks (D4), so gate and up are too.
    const IndexRange ff = split_range(config_.d_ff,
                                      position_.tp,
                                      position_.tp_rank,
                                      reader_.block_elements(prefix + "down_proj.weight"));
    Tensor bias;
    if (config_.mlp_bias) {
      bias = reader_.vectors({prefix + "gate_proj.bias", prefix + "up_proj.bias"}, ff);
    }
    return {{reader_.matrix({{prefix + "gate_proj.weight", ff, all(config_.d_model)},
                             {prefix + "up_proj.weight", ff, all(config_.d_model)}}),
             std::move(bias)},
            row_parallel(prefix + "down_proj", ff, config_.mlp_bias)};
  }

  ShardReader& reader_;
  const ModelConfig& config_;
  const ShardPosition& position_;
  WeightMatrix table_;
  std::string table_name_;
};

}  // namespace

DType resident_dtype(DType stored, ResidentWeights wanted, DType compute) {
  switch (wanted) {
    case ResidentWeights::bf16:
      return DType::BF16;
    case ResidentWeights::f32:
      return DType::F32;
    case ResidentWeights::as_stored:
      return is_quantised(stored) ? compute : stored;
  }
  check_failed("known ResidentWeights", __FILE__, __LINE__);
}

HeadShard heads_of_rank(const ModelConfig& config, const ShardPosition& position) {
  return shard_heads(config.n_heads, config.n_kv_heads, position.tp, position.tp_rank);
}

std::vector<IndexRange> layers_of_chunks(const ModelConfig& config, const ShardPosition& position) {
  const int64_t attention =
      (2 * config.n_heads + 2 * config.n_kv_heads) * config.head_dim * config.d_model;
  return split_layers(config.n_layers,
                      position.n_chunks(),
                      attention + 3 * config.d_model * config.d_ff,
                      config.vocab_size * config.d_model);
}

std::vector<int64_t> layers_of_rank(const ModelConfig& config, const ShardPosition& position) {
  const std::vector<IndexRange> chunks = layers_of_chunks(config, position);
  std::vector<int64_t> layers;
  for (int v = 0; v < position.n_virtual_stages; ++v) {
    const IndexRange range = chunks[static_cast<size_t>(position.chunk(v))];
    for (int64_t layer = range.begin; layer < range.end; ++layer) layers.push_back(layer);
  }
  return layers;
}

Model load_model(Device& device,
                 const WeightSource& source,
                 const ModelConfig& config,
                 const ShardPosition& position,
                 ResidentWeights wanted,
                 const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t total =
      planned_weights_bytes(source, config, position, wanted, device.compute_dtype());
  ShardReader reader(&device, source, wanted, device.compute_dtype(), &progress, total);
  ShardBuilder builder(reader, config, position);
  const std::vector<IndexRange> layers = layers_of_chunks(config, position);
  Model model{.config = config,
              .position = position,
              .rope = rope_table(config.rope, config.head_dim),
              .chunks = {},
              .notes = {}};
  for (int v = 0; v < position.n_virtual_stages; ++v) {
    model.chunks.push_back(builder.chunk(v, layers));
  }
  model.weights_bytes = reader.bytes();
  model.notes = reader.notes();
  return model;
}

int64_t planned_weights_bytes(const WeightSource& source,
                              const ModelConfig& config,
                              const ShardPosition& position,
                              ResidentWeights wanted,
                              DType compute) {
  ShardReader reader(nullptr, source, wanted, compute, nullptr, 0);
  ShardBuilder builder(reader, config, position);
  const std::vector<IndexRange> layers = layers_of_chunks(config, position);
  for (int v = 0; v < position.n_virtual_stages; ++v) builder.chunk(v, layers);
  return reader.bytes();
}

}  // namespace testbed
