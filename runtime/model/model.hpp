// Model: the part of a transformer that one rank holds: its slice over tp of the layers of its
// pipeline chunks.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/model/transformer_block.hpp"
#include "runtime/weights/weight_source.hpp"

namespace testbed {

// Where a rank stands in the split of one model replica.
struct ShardPosition {
  int tp = 1;
  int tp_rank = 0;
  int n_stages = 1;
  int stage = 0;
  int n_virtual_stages = 1;
  int n_chunks() const { return n_stages * n_virtual_stages; }
  // Virtual stage v of stage s is chunk v * n_stages + s.
  int chunk(int virtual_stage) const { return virtual_stage * n_stages + stage; }
};

// The attention heads that a rank holds.
HeadShard heads_of_rank(const ModelConfig& config, const ShardPosition& position);

// The layers of every chunk of the pipeline, by weight bytes, the head included.
std::vector<IndexRange> layers_of_chunks(const ModelConfig& config, const ShardPosition& position);
// Global indices of the layers that a rank holds.
std::vector<int64_t> layers_of_rank(const ModelConfig& config, const ShardPosition& position);

struct PipelineChunk {
  std::optional<VocabularyParallelEmbedding> embedding;  // the first chunk of the pipeline
  std::vector<TransformerBlock> blocks;
  std::optional<NormWeight> final_norm;        // the last chunk
  std::optional<VocabularyParallelHead> head;  // the last chunk
};

struct Model {
  ModelConfig config;
  ShardPosition position;
  RopeTable rope;
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
