// The paged KV cache on a device: the memory of one rank's layers. Which tokens lie in which blocks
// is the scheduler's side (kv_blocks.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.hpp"
#include "runtime/config/model_config.hpp"
#include "runtime/serving/kv_blocks.hpp"

namespace testbed {

// What one rank stores per token in a layer: elements as in CachedShape, of its own KV heads. MLA's
// latent is whole on every tp rank.
CachedShape cached_on_rank(const ModelConfig& config, int64_t layer, int tp, int tp_rank);
// Bytes that the layer adds to a token's cache there: none if it reads another layer's.
int64_t stored_token_bytes(
    const ModelConfig& config, int64_t layer, int tp, int tp_rank, DType compute);

// Keys and values of the layers that one rank holds.
class KvCache {
 public:
  struct LayerLayout {
    int64_t layer = 0;     // global index
    CachedShape shape;     // on this rank
    int64_t v_dim = 0;     // of the values as attention reads them; MLA: of the latent's first part
    int64_t kv_layer = 0;  // the layer whose storage it uses: its own index, or one listed before
  };
  // blocks_per_group: [group].
  KvCache(Device& device,
          const std::vector<KvGroup>& groups,
          const std::vector<int64_t>& blocks_per_group,
          const std::vector<LayerLayout>& layers,
          int64_t block_size);

  // Of a layer that uses another's storage: that one's. Global layer index.
  KvView view(int64_t layer) const;
  int group_of(int64_t layer) const { return stored(layer).group; }
  int64_t block_size() const { return block_size_; }
  int64_t pool_bytes() const { return pool_bytes_; }
  // Of the layers held here; shared storage counts once.
  int64_t bytes_per_token() const;
  // Of those in one group.
  int64_t bytes_per_token(int group) const;

  // Fills every block with small values, as if tokens had been cached (--context): no page stays
  // unmapped or zero.
  void fill_synthetic(Device& device);

 private:
  struct Layer {
    int group = 0;
    CachedShape shape;
    int64_t v_dim = 0;
    Tensor k;  // [n_blocks, n_heads, block_size, k_dim]
    Tensor v;  // [n_blocks, n_heads, block_size, v_dim], or empty
  };
  const Layer& stored(int64_t layer) const;
  int64_t token_bytes(const Layer& layer) const;

  std::vector<Layer> layers_;           // those with storage of their own
  std::vector<int64_t> slot_of_layer_;  // global index -> layers_, -1 elsewhere
  int64_t block_size_;
  int64_t pool_bytes_ = 0;
  DType dtype_;
};

// The layouts of the layers that a rank holds.
std::vector<KvCache::LayerLayout> kv_layouts(const ModelConfig& config,
                                             const std::vector<int64_t>& layers,
                                             int tp,
                                             int tp_rank);

}  // namespace testbed
