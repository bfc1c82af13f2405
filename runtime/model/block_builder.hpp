// BlockBuilder: which slices of a layer's tensors make a rank's TransformerBlock.
#pragma once

#include <string>

#include "runtime/model/shard_reader.hpp"
#include "runtime/model/transformer_block.hpp"

namespace testbed {

class BlockBuilder {
 public:
  BlockBuilder(ShardReader& reader, const ModelConfig& config, const ShardPosition& position)
      : reader_(reader), config_(config), position_(position) {}

  TransformerBlock block(int64_t layer);
  // Norm weights as they multiply: gemma2's and gemma3's are stored less one.
  NormWeight norm(const std::string& name, int64_t n);
  // The same on every tp rank.
  ReplicatedLinear replicated(const std::string& name, int64_t rows, int64_t cols, bool bias);

 private:
  IndexRange all(int64_t n) const { return {0, n}; }
  NormWeight model_norm(const std::string& name) { return norm(name, config_.d_model); }
  ColumnParallelLinear column_parallel(const std::string& name,
                                       IndexRange rows,
                                       int64_t n_cols,
                                       bool bias);
  ReplicatedLinear replicated(WeightMatrix weight, const std::string& name, bool bias);
  // A tp rank's share of a width n, by which this matrix's columns are cut.
  IndexRange columns_of_rank(const std::string& name, int64_t n) const;
  RowParallelLinear row_parallel(const std::string& name, IndexRange cols, bool bias);
  BlockNorms norms(const std::string& prefix, const LayerShape& shape);
  Attention attention(const std::string& prefix, int64_t layer, const LayerShape& shape);
  KeyValueProjection key_value(const std::string& prefix,
                               const LayerShape& shape,
                               const HeadShard& heads);
  LatentAttention latent_attention(const std::string& prefix, int64_t layer);
  void absorb(const std::string& name, LatentAttention& a);
  GatedMlp mlp(const std::string& prefix, int64_t d_ff, bool bias);
  MoeMlp experts(const std::string& prefix);
  Router router(const std::string& prefix);
  LocalExperts local_experts(const std::string& prefix);
  PerLayerInput per_layer_input(const std::string& prefix);

  ShardReader& reader_;
  const ModelConfig& config_;
  const ShardPosition& position_;
};

}  // namespace testbed
