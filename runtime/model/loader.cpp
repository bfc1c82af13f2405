// Loads a rank's shard: the blocks of its pipeline chunks, and what stands at the ends.
#include <algorithm>
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
    table_ = reader_.table({std::string(name), vocab(), {0, config_.d_model}});
    table_name_ = name;
    return table_;
  }

  PerLayerEmbedding per_layer_embedding() {
    const PerLayerInputConfig& input = *config_.per_layer_input;
    const std::string name(per_layer_embedding_name);
    const IndexRange rows = vocabulary_shard(input.vocab_size, position_.tp, position_.tp_rank);
    const int64_t width = config_.n_layers * input.dim;
    const auto dim = static_cast<double>(input.dim);
    const auto d_model = static_cast<double>(config_.d_model);
    std::string projection(per_layer_model_projection_name);
    projection.resize(projection.size() - std::string_view(".weight").size());
    return {.table = {reader_.table({name, rows, {0, width}}), rows.begin},
            .projection = blocks_.replicated(projection, width, config_.d_model, false),
            .norm = blocks_.norm(std::string(per_layer_projection_norm_name), input.dim),
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

DType resident_plain_dtype(DType stored, PlainWeights wanted, DType compute) {
  switch (wanted) {
    case PlainWeights::bf16:
      return DType::BF16;
    case PlainWeights::f32:
      return DType::F32;
    case PlainWeights::as_stored:
      return is_quantised(stored) ? compute : stored;
    case PlainWeights::for_gpu:
      return stored == DType::F32 ? DType::F32 : compute;
  }
  check_failed("known PlainWeights", __FILE__, __LINE__);
}

std::optional<WeightFormat> table_format(const WeightFormat& of_layers) {
  if (of_layers.coding == WeightCoding::fp8) return std::nullopt;
  // Others of 4 bits are files' own.
  const bool is_int4 = of_layers.offset == WeightOffset::zero_point;
  return is_int4 ? weight_formats::int8_g32 : of_layers;
}

WeightFormat resident_format(DType stored,
                             const ResidentWeights& wanted,
                             DType compute,
                             MatrixRole role) {
  const WeightFormat plain = resident_plain_dtype(stored, wanted.plain, compute);
  if (role == MatrixRole::plain) return plain;
  const WeightFormat native = native_format(stored);
  if (wanted.quantised) {
    const bool is_there =
        *wanted.quantised == weight_formats::int4_g32 && native.coding == WeightCoding::int4;
    if (is_there) return native;
    if (role == MatrixRole::layer) return *wanted.quantised;
    return table_format(*wanted.quantised).value_or(plain);
  }
  const bool cast = wanted.plain == PlainWeights::bf16 || wanted.plain == PlainWeights::f32;
  return !cast && native.is_quantised() ? native : plain;
}

int64_t column_granularity(const WeightSource& source,
                           const std::string& name,
                           const ResidentWeights& wanted,
                           DType compute) {
  const std::optional<StoredTensor> stored = source.find(name);
  if (!stored) return 1;
  return std::max(dtype_info(stored->dtype).block_elements,
                  resident_format(stored->dtype, wanted, compute).col_granularity());
}

int64_t column_granularity(const WeightSource& source,
                           const ModelConfig& config,
                           const ResidentWeights& wanted,
                           DType compute) {
  int64_t largest = 1;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    // A layer's experts are stored alike.
    for (const char* name : {"self_attn.o_proj.weight",
                             "mlp.down_proj.weight",
                             "mlp.shared_experts.down_proj.weight",
                             "mlp.experts.0.down_proj.weight"}) {
      largest = std::max(
          largest, column_granularity(source, layer_tensor_name(layer, name), wanted, compute));
    }
  }
  return largest;
}

ShardPosition shard_position(const ParallelConfig& parallel, const Mesh& mesh, int rank) {
  const Coordinates c = mesh.coordinates(rank);
  return {.tp = mesh.tp,
          .tp_rank = c.tp,
          .cp = mesh.cp,
          .cp_rank = c.cp,
          .ep = mesh.ep,
          .ep_rank = mesh.ep_rank(rank),
          .tp_comm = parallel.tp_comm,
          .experts_all_to_all = exchanges_tokens(parallel, mesh),
          .n_stages = mesh.pp,
          .stage = c.pp,
          .n_virtual_stages = parallel.virtual_stages};
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
                 const ResidentWeights& wanted,
                 const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t total =
      planned_weights_bytes(source, config, position, wanted, device.compute_dtype());
  ShardReader reader(&device, source, wanted, device.compute_dtype(), &progress, total);
  ModelBuilder builder(reader, config, position);
  Model model{.config = config,
              .position = position,
              .rope = rope_tables(config),
              .chunks = {},
              .notes = {},
              .quantised_formats = {}};
  if (config.scaled_embedding) {
    model.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.d_model)));
  }
  for (int v = 0; v < position.n_virtual_stages; ++v) model.chunks.push_back(builder.chunk(v));
  model.weights_bytes = reader.bytes();
  model.notes = reader.notes();
  model.quantised_formats = reader.quantised_formats();
  return model;
}

namespace {

// Reads nothing, and has counted all.
ShardReader counted(const WeightSource& source,
                    const ModelConfig& config,
                    const ShardPosition& position,
                    const ResidentWeights& wanted,
                    DType compute) {
  ShardReader reader(nullptr, source, wanted, compute, nullptr, 0);
  ModelBuilder builder(reader, config, position);
  for (int v = 0; v < position.n_virtual_stages; ++v) builder.chunk(v);
  return reader;
}

}  // namespace

int64_t planned_weights_bytes(const WeightSource& source,
                              const ModelConfig& config,
                              const ShardPosition& position,
                              const ResidentWeights& wanted,
                              DType compute) {
  return counted(source, config, position, wanted, compute).bytes();
}

std::vector<WeightFormat> planned_quantised_formats(const WeightSource& source,
                                                    const ModelConfig& config,
                                                    const ShardPosition& position,
                                                    const ResidentWeights& wanted,
                                                    DType compute) {
  return counted(source, config, position, wanted, compute).quantised_formats();
}

bool multiplies_in_integers(const std::vector<WeightFormat>& formats) {
  return std::any_of(formats.begin(), formats.end(), [](const WeightFormat& format) {
    return format.coding != WeightCoding::fp8;
  });
}

}  // namespace testbed
