// Model: the part of a transformer that one rank holds: its slice over tp of the layers of its
// pipeline chunks.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/model/transformer_block.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed {

// Where a rank stands in the split of one model replica, and how its parts work together.
struct ShardPosition {
  int tp = 1;
  int tp_rank = 0;
  int cp = 1;
  int cp_rank = 0;
  int ep = 1;
  int ep_rank = 0;
  TpComm tp_comm = TpComm::all_reduce;
  bool experts_all_to_all = false;
  int n_stages = 1;
  int stage = 0;
  int n_virtual_stages = 1;
  int n_chunks() const { return n_stages * n_virtual_stages; }
  // Virtual stage v of stage s is chunk v * n_stages + s.
  int chunk(int virtual_stage) const { return virtual_stage * n_stages + stage; }
};

// The attention heads of a layer that a rank holds; MLA: of the query.
HeadShard heads_of_rank(const LayerShape& layer, int64_t n_heads, const ShardPosition& position);

// Global indices of the layers that a rank holds.
std::vector<int64_t> layers_of_rank(const ModelConfig& config, const ShardPosition& position);

// The per-layer embeddings of the whole model (gemma4): the first chunk makes them, and they travel
// with the residual.
struct PerLayerEmbedding {
  VocabularyParallelEmbedding table;  // [vocab_local, n_layers * dim]
  ReplicatedLinear projection;        // [n_layers * dim, d_model], of the embedded tokens
  NormWeight norm;                    // [dim]
  int64_t n_layers = 0;  // of the stored tables: more than config.n_layers with --layers
  int64_t dim = 0;
  float table_scale = 1.0F;
  float projection_scale = 1.0F;
};

struct PipelineChunk {
  std::optional<VocabularyParallelEmbedding> embedding;  // the first chunk of the pipeline
  std::optional<PerLayerEmbedding> per_layer;            // the first chunk
  std::vector<TransformerBlock> blocks;
  std::optional<NormWeight> final_norm;        // the last chunk
  std::optional<VocabularyParallelHead> head;  // the last chunk
};

struct Model {
  ModelConfig config;
  ShardPosition position;
  RopeTables rope;
  float embedding_scale = 1.0F;
  std::vector<PipelineChunk> chunks;  // [n_virtual_stages]
  int64_t weights_bytes = 0;          // resident on this rank; a shared tied table once
  std::vector<std::string> notes;     // what was converted on loading, for the record's labels
};

// How weights are held (--weight-dtype): as stored, or cast. Block-quantised types are expanded to
// the compute dtype.
enum class ResidentWeights : uint8_t { as_stored, bf16, f32 };
DType resident_dtype(DType stored, ResidentWeights wanted, DType compute);

// Reads this rank's shard. progress(done_bytes, total_bytes) is called now and then.
Model load_model(Device& device,
                 const WeightSource& source,
                 const ModelConfig& config,
                 const ShardPosition& position,
                 ResidentWeights wanted,
                 const std::function<void(int64_t, int64_t)>& progress);

// What load_model would hold, from shapes: the memory plan, and the test that the loader agrees.
int64_t planned_weights_bytes(const WeightSource& source,
                              const ModelConfig& config,
                              const ShardPosition& position,
                              ResidentWeights wanted,
                              DType compute);

}  // namespace testbed
