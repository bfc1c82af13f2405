// Model: the part of a transformer that one rank holds: its slice over tp of the layers of its
// pipeline chunks.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "parallel/mesh.hpp"
#include "runtime/config/run_config.hpp"
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

// The place of a rank of the mesh.
ShardPosition shard_position(const ParallelConfig& parallel, const Mesh& mesh, int rank);

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
  std::vector<WeightFormat> quantised_formats;  // that some matrix is held in
};

// How weights are held where they are not quantised: as stored, or cast. for_gpu: f32 as stored,
// all else in the compute dtype, whose tensor cores multiply operands of one type.
enum class PlainWeights : uint8_t { as_stored, bf16, f32, for_gpu };

// What a matrix is, which decides how it is held: of a linear layer; a table, the embeddings and
// the head; or one that is never quantised, the router's gate and MLA's kv_b_proj.
enum class MatrixRole : uint8_t { layer, table, plain };

// Of tables, where matrices of layers are held in this quantised format: they are more sensitive.
// int8 as it is, int4 int8 in groups of 32, fp8 not quantised (nullopt), as its checkpoints do.
std::optional<WeightFormat> table_format(const WeightFormat& of_layers);

// How weights are held (--weight-dtype). Matrices are quantised if that is asked for, but what is
// stored in 4 bits and groups of 32 keeps its form if that is what is asked for. Else those that
// are stored in blocks with a native_format() keep it, unless they are cast. Other blocks are
// expanded to the compute dtype.
struct ResidentWeights {
  PlainWeights plain = PlainWeights::as_stored;
  std::optional<WeightFormat> quantised = std::nullopt;
};
WeightFormat resident_format(DType stored,
                             const ResidentWeights& wanted,
                             DType compute,
                             MatrixRole role = MatrixRole::layer);
DType resident_plain_dtype(DType stored, PlainWeights wanted, DType compute);

// Columns of this matrix are cut at multiples of it: the stored blocks' and the resident groups'; 1
// if there is no such tensor.
int64_t column_granularity(const WeightSource& source,
                           const std::string& name,
                           const ResidentWeights& wanted,
                           DType compute);
// The largest of those that a tp rank cuts.
int64_t column_granularity(const WeightSource& source,
                           const ModelConfig& config,
                           const ResidentWeights& wanted,
                           DType compute);

// Reads this rank's shard. progress(done_bytes, total_bytes) is called now and then.
Model load_model(Device& device,
                 const WeightSource& source,
                 const ModelConfig& config,
                 const ShardPosition& position,
                 const ResidentWeights& wanted,
                 const std::function<void(int64_t, int64_t)>& progress);

// What load_model would hold, from shapes: the memory plan, and the test that the loader agrees.
int64_t planned_weights_bytes(const WeightSource& source,
                              const ModelConfig& config,
                              const ShardPosition& position,
                              const ResidentWeights& wanted,
                              DType compute);
// The quantised formats that some matrix of it would be held in.
std::vector<WeightFormat> planned_quantised_formats(const WeightSource& source,
                                                    const ModelConfig& config,
                                                    const ShardPosition& position,
                                                    const ResidentWeights& wanted,
                                                    DType compute);

// Whether products of bf16 activations with some of these are done in integers by CPU ranks.
bool multiplies_in_integers(const std::vector<WeightFormat>& formats);

}  // namespace testbed
