// The paged KV cache. Layers that see the same window form a KV group and share block tables.
// BlockPool is the scheduler's side (which blocks are free), KvCache the device's side (the memory
// of this rank's layers).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.hpp"
#include "runtime/config/model_config.hpp"

namespace testbed {

// Layers with one window size; window 0 sees everything.
struct KvGroup {
  int64_t window = 0;
  std::vector<int64_t> layers;  // global indices
};
// One group per distinct window, in order of first appearance.
std::vector<KvGroup> kv_groups(const ModelConfig& config);

// Blocks that `n_tokens` of one request hold at most in a group, when steps of at most
// n_step_tokens rows are taken: a window group keeps the window and the rows of the step at hand.
int64_t blocks_needed(const KvGroup& group,
                      int64_t n_tokens,
                      int64_t n_step_tokens,
                      int64_t block_size);

// Free list of one group's blocks. Deterministic: the lowest free block is taken.
class BlockPool {
 public:
  explicit BlockPool(int64_t n_blocks);
  int32_t take();  // CHECKs that one is free: the pool is sized by blocks_needed
  void give_back(int32_t block);
  int64_t n_used() const { return n_used_; }

 private:
  std::vector<int32_t> free_;  // a heap, smallest first
  int64_t n_used_ = 0;
};

// The blocks of one request, per KV group. Table entries are [position / block_size]; -1 once
// released.
class RequestBlocks {
 public:
  RequestBlocks(size_t n_groups, int64_t block_size) : tables_(n_groups), block_size_(block_size) {}
  // Makes room for positions [0, n_positions).
  void grow(std::vector<BlockPool>& pools, int64_t n_positions);
  // The same for positions that are taken as cached, without the blocks that no later query can
  // see.
  void grow_behind(std::vector<BlockPool>& pools,
                   const std::vector<KvGroup>& groups,
                   int64_t n_positions);
  // Gives back the blocks that no query at or after next_position can see.
  void release_unseen(std::vector<BlockPool>& pools,
                      const std::vector<KvGroup>& groups,
                      int64_t next_position);
  const std::vector<std::vector<int32_t>>& tables() const { return tables_; }
  // Of the positions [0, n_positions), those whose blocks are still held in a group.
  int64_t held_tokens(size_t group, int64_t n_positions) const;

 private:
  std::vector<std::vector<int32_t>> tables_;
  int64_t block_size_;
};

// Keys and values of the layers that one rank holds.
class KvCache {
 public:
  // blocks_per_group: [group]. layers: global indices held by this rank.
  KvCache(Device& device,
          const std::vector<KvGroup>& groups,
          const std::vector<int64_t>& blocks_per_group,
          const std::vector<int64_t>& layers,
          int64_t n_kv_heads_local,
          int64_t head_dim,
          int64_t block_size);

  KvView view(int64_t layer) const;  // global layer index
  int group_of(int64_t layer) const;
  int64_t block_size() const { return block_size_; }
  int64_t pool_bytes() const { return pool_bytes_; }
  // One token in one layer.
  int64_t layer_token_bytes() const { return layer_token_bytes_; }
  // Of the layers held here.
  int64_t bytes_per_token() const {
    return layer_token_bytes_ * static_cast<int64_t>(layers_.size());
  }
  int64_t n_layers_in(int group) const;

  // Fills every block with small values, as if tokens had been cached (--context): no page stays
  // unmapped or zero.
  void fill_synthetic();

 private:
  struct Layer {
    int group = 0;
    Tensor k;  // [n_blocks, n_kv_heads, block_size, head_dim]
    Tensor v;
  };
  const Layer& layer(int64_t index) const;
  std::vector<Layer> layers_;
  std::vector<int64_t> slot_of_layer_;  // global index -> layers_, -1 elsewhere
  int64_t n_kv_heads_;
  int64_t head_dim_;
  int64_t block_size_;
  int64_t pool_bytes_ = 0;
  int64_t layer_token_bytes_ = 0;
};

}  // namespace testbed
