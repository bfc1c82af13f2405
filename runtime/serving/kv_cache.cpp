#include "runtime/serving/kv_cache.hpp"

#include <algorithm>

#include "parallel/shard.hpp"

namespace testbed {
namespace {

size_t group_with(const std::vector<KvGroup>& groups, int64_t layer) {
  const auto group = std::find_if(groups.begin(), groups.end(), [&](const KvGroup& g) {
    return std::find(g.layers.begin(), g.layers.end(), layer) != g.layers.end();
  });
  CHECK(group != groups.end());
  return static_cast<size_t>(group - groups.begin());
}

}  // namespace

CachedShape cached_on_rank(const ModelConfig& config, int64_t layer, int tp, int tp_rank) {
  CachedShape shape = config.cached(layer);
  if (!config.mla) {
    shape.n_heads = shard_heads(config.n_heads, shape.n_heads, tp, tp_rank).kv_heads.size();
  }
  return shape;
}

int64_t stored_token_bytes(
    const ModelConfig& config, int64_t layer, int tp, int tp_rank, DType compute) {
  if (config.layer(layer).kv_layer != layer) return 0;
  return dtype_bytes(compute, cached_on_rank(config, layer, tp, tp_rank).elements());
}

std::vector<KvCache::LayerLayout> kv_layouts(const ModelConfig& config,
                                             const std::vector<int64_t>& layers,
                                             int tp,
                                             int tp_rank) {
  std::vector<KvCache::LayerLayout> layouts;
  layouts.reserve(layers.size());
  for (const int64_t layer : layers) {
    const CachedShape shape = cached_on_rank(config, layer, tp, tp_rank);
    layouts.push_back({.layer = layer,
                       .shape = shape,
                       .v_dim = config.mla ? config.mla->kv_lora_rank : shape.v_dim,
                       .kv_layer = config.layer(layer).kv_layer});
  }
  return layouts;
}

KvCache::KvCache(Device& device,
                 const std::vector<KvGroup>& groups,
                 const std::vector<int64_t>& blocks_per_group,
                 const std::vector<LayerLayout>& layers,
                 int64_t block_size)
    : block_size_(block_size), dtype_(device.compute_dtype()) {
  layers_.reserve(layers.size());
  for (const LayerLayout& layout : layers) {
    const auto index = static_cast<size_t>(layout.layer);
    slot_of_layer_.resize(std::max(slot_of_layer_.size(), index + 1), -1);
    if (layout.kv_layer != layout.layer) {
      const Layer& shared = stored(layout.kv_layer);
      CHECK(shared.shape.elements() == layout.shape.elements());
      slot_of_layer_[index] = slot_of_layer_[static_cast<size_t>(layout.kv_layer)];
      continue;
    }
    const size_t group = group_with(groups, layout.layer);
    const CachedShape& s = layout.shape;
    const auto pool = [&](int64_t dim) {
      return device.allocate(dtype_, {blocks_per_group[group], s.n_heads, block_size_, dim});
    };
    slot_of_layer_[index] = static_cast<int64_t>(layers_.size());
    layers_.push_back({.group = static_cast<int>(group),
                       .shape = s,
                       .v_dim = layout.v_dim,
                       .k = pool(s.k_dim),
                       .v = s.v_dim > 0 ? pool(s.v_dim) : Tensor()});
    pool_bytes_ += layers_.back().k.n_bytes() + layers_.back().v.n_bytes();
  }
}

const KvCache::Layer& KvCache::stored(int64_t layer) const {
  CHECK(layer >= 0 && static_cast<size_t>(layer) < slot_of_layer_.size());
  const int64_t slot = slot_of_layer_[static_cast<size_t>(layer)];
  CHECK(slot >= 0);
  return layers_[static_cast<size_t>(slot)];
}

KvView KvCache::view(int64_t layer) const {
  const Layer& held = stored(layer);
  return {.k = held.k.data(),
          .v = held.v.data(),
          .dtype = dtype_,
          .n_blocks = held.k.shape()[0],
          .block_size = block_size_,
          .n_kv_heads = held.shape.n_heads,
          .head_dim = held.shape.k_dim,
          .v_dim = held.v_dim};
}

int64_t KvCache::token_bytes(const Layer& layer) const {
  return dtype_bytes(dtype_, layer.shape.elements());
}

int64_t KvCache::bytes_per_token() const {
  int64_t n_bytes = 0;
  for (const Layer& held : layers_) n_bytes += token_bytes(held);
  return n_bytes;
}

int64_t KvCache::bytes_per_token(int group) const {
  int64_t n_bytes = 0;
  for (const Layer& held : layers_) n_bytes += held.group == group ? token_bytes(held) : 0;
  return n_bytes;
}

void KvCache::fill_synthetic(Device& device) {
  for (const Layer& held : layers_) {
    device.fill_synthetic(held.k);
    device.fill_synthetic(held.v);
  }
}

}  // namespace testbed
