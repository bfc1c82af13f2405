// Loads a rank's shard: the blocks of its pipeline chunks, and what stands at the ends.
#include <cmath>

#include "runtime/config/split.hpp"
#include "runtime/model/block_builder.hpp"
#include "runtime/model/model.hpp"
#include "runtime/weights/tensor_names.hpp"

namespace testbed {
namespace {

class ModelBuilder {
 public:
  ModelBuilder(ShardReader& reader, const ModelConfig& config, const ShardPosition& position)
      : reader_(reader),
        config_(config),
        position_(position),
        layers_(layers_of_chunks(config, position.n_chunks())),
        blocks_(reader, config, position_) {}

  PipelineChunk chunk(int virtual_stage) {
    const int index = position_.chunk(virtual_stage);
    PipelineChunk chunk;
    if (index == 0) {
      chunk.embedding.emplace(table(embedding_name), vocab().begin);
      if (config_.per_layer_input) chunk.per_layer = per_layer_embedding();
    }
    const IndexRange range = layers_[static_cast<size_t>(index)];
    chunk.blocks.reserve(static_cast<size_t>(range.size()));
    for (int64_t layer = range.begin; layer < range.end; ++layer) {
      chunk.blocks.push_back(blocks_.block(layer));
    }
    if (index == position_.n_chunks() - 1) {
      chunk.final_norm = blocks_.norm(std::string(final_norm_name), config_.d_model);
      chunk.head.emplace(table(config_.tied_embeddings ? embedding_name : head_name),
                         vocab().begin);
    }
    return chunk;
  }

 private:
  IndexRange vocab() const {
    return vocabulary_shard(config_.vocab_size, position_.tp, position_.tp_rank);
  }

  // A tied table is read once when one rank holds both ends of the pipeline.
  WeightMatrix table(std::string_view name) {
    if (table_name_ == name) return table_;
    table_ = reader_.matrix({{std::string(name), vocab(), {0, config_.d_model}}});
    table_name_ = name;
    return table_;
  }

  PerLayerEmbedding per_layer_embedding() {
    const PerLayerInputConfig& input = *config_.per_layer_input;
    const std::string name(per_layer_embedding_name);
    const IndexRange rows = vocabulary_shard(input.vocab_size, position_.tp, position_.tp_rank);
    // The stored tables are of all layers, whatever --layers keeps.
    const int64_t width = config_.n_layers * input.dim;
    const auto dim = static_cast<double>(input.dim);
    const auto d_model = static_cast<double>(config_.d_model);
    std::string projection(per_layer_model_projection_name);
    projection.resize(projection.size() - std::string_view(".weight").size());
    return {.table = {reader_.matrix({{name, rows, {0, width}}}), rows.begin},
            .projection = blocks_.replicated(projection, width, config_.d_model, false),
            .norm = blocks_.norm(std::string(per_layer_projection_norm_name), input.dim),
            .n_layers = config_.n_layers,
            .dim = input.dim,
            .table_scale = static_cast<float>(std::sqrt(dim)),
            .projection_scale = static_cast<float>(1.0 / std::sqrt(d_model))};
  }

  ShardReader& reader_;
  const ModelConfig& config_;
  const ShardPosition& position_;
  std::vector<IndexRange> layers_;
  BlockBuilder blocks_;
  WeightMatrix table_;
  std::string table_name_;
};

// One table per kind of layer; a kind that the model does not have keeps an empty one.
RopeTables rope_tables(const ModelConfig& config) {
  RopeTables tables;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    RopeTable& table = config.layer(layer).window_rope ? tables.window : tables.full;
    if (table.inv_freq.empty()) table = rope_table_of_layer(config, layer);
  }
  return tables;
}

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

HeadShard heads_of_rank(const LayerShape& layer, int64_t n_heads, const ShardPosition& position) {
  return shard_heads(n_heads, layer.n_kv_heads, position.tp, position.tp_rank);
}

std::vector<int64_t> layers_of_rank(const ModelConfig& config, const ShardPosition& position) {
  const std::vector<IndexRange> chunks = layers_of_chunks(config, position.n_chunks());
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
  ModelBuilder builder(reader, config, position);
  Model model{.config = config,
              .position = position,
              .rope = rope_tables(config),
              .chunks = {},
              .notes = {}};
  if (config.scaled_embedding) {
    model.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.d_model)));
  }
  for (int v = 0; v < position.n_virtual_stages; ++v) model.chunks.push_back(builder.chunk(v));
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
  ModelBuilder builder(reader, config, position);
  for (int v = 0; v < position.n_virtual_stages; ++v) builder.chunk(v);
  return reader.bytes();
}

}  // namespace testbed
