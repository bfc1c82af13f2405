#include "runtime/serving/kv_cache.hpp"

#include <algorithm>
#include <functional>

namespace testbed {

std::vector<KvGroup> kv_groups(const ModelConfig& config) {
  std::vector<KvGroup> groups;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const int64_t window = config.layer_windows[static_cast<size_t>(layer)];
    auto group = std::find_if(
        groups.begin(), groups.end(), [&](const KvGroup& g) { return g.window == window; });
    if (group == groups.end()) group = groups.insert(groups.end(), KvGroup{window, {}});
    group->layers.push_back(layer);
  }
  return groups;
}

int64_t blocks_needed(const KvGroup& group,
                      int64_t n_tokens,
                      int64_t n_step_tokens,
                      int64_t block_size) {
  const int64_t all = (n_tokens + block_size - 1) / block_size;
  if (group.window == 0) return all;
  // The oldest visible token may be the last of its block, the newest the first of its own.
  const int64_t held = group.window - 1 + n_step_tokens;
  return std::min(all, (held + block_size - 2) / block_size + 1);
}

BlockPool::BlockPool(int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b) free_.push_back(static_cast<int32_t>(b));
  std::make_heap(free_.begin(), free_.end(), std::greater<>{});
}

int32_t BlockPool::take() {
  CHECK(!free_.empty());
  std::pop_heap(free_.begin(), free_.end(), std::greater<>{});
  const int32_t block = free_.back();
  free_.pop_back();
  ++n_used_;
  return block;
}

void BlockPool::give_back(int32_t block) {
  free_.push_back(block);
  std::push_heap(free_.begin(), free_.end(), std::greater<>{});
  --n_used_;
}

void RequestBlocks::grow(std::vector<BlockPool>& pools, int64_t n_positions) {
  const auto n_blocks = static_cast<size_t>((n_positions + block_size_ - 1) / block_size_);
  for (size_t g = 0; g < tables_.size(); ++g) {
    while (tables_[g].size() < n_blocks) tables_[g].push_back(pools[g].take());
  }
}

void RequestBlocks::grow_behind(std::vector<BlockPool>& pools,
                                const std::vector<KvGroup>& groups,
                                int64_t n_positions) {
  const int64_t n_blocks = (n_positions + block_size_ - 1) / block_size_;
  for (size_t g = 0; g < tables_.size(); ++g) {
    const int64_t window = groups[g].window;
    const int64_t first_seen = window == 0 ? 0 : std::max<int64_t>(0, n_positions - window + 1);
    for (int64_t b = 0; b < n_blocks; ++b) {
      tables_[g].push_back(b < first_seen / block_size_ ? -1 : pools[g].take());
    }
  }
}

void RequestBlocks::release_unseen(std::vector<BlockPool>& pools,
                                   const std::vector<KvGroup>& groups,
                                   int64_t next_position) {
  for (size_t g = 0; g < tables_.size(); ++g) {
    if (groups[g].window == 0) continue;
    const int64_t first_seen = std::max<int64_t>(0, next_position - groups[g].window + 1);
    const auto n_unseen =
        std::min(tables_[g].size(), static_cast<size_t>(first_seen / block_size_));
    for (size_t b = 0; b < n_unseen; ++b) {
      if (tables_[g][b] < 0) continue;
      pools[g].give_back(tables_[g][b]);
      tables_[g][b] = -1;
    }
  }
}

int64_t RequestBlocks::held_tokens(size_t group, int64_t n_positions) const {
  const std::vector<int32_t>& table = tables_[group];
  const auto n_released =
      std::find_if(table.begin(), table.end(), [](int32_t b) { return b >= 0; }) - table.begin();
  return std::max<int64_t>(0, n_positions - n_released * block_size_);
}

KvCache::KvCache(Device& device,
                 const std::vector<KvGroup>& groups,
                 const std::vector<int64_t>& blocks_per_group,
                 const std::vector<int64_t>& layers,
                 int64_t n_kv_heads_local,
                 int64_t head_dim,
                 int64_t block_size)
    : n_kv_heads_(n_kv_heads_local),
      head_dim_(head_dim),
      block_size_(block_size),
      layer_token_bytes_(2 * dtype_bytes(device.compute_dtype(), n_kv_heads_local * head_dim)) {
  for (const int64_t index : layers) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const KvGroup& g) {
      return std::find(g.layers.begin(), g.layers.end(), index) != g.layers.end();
    });
    CHECK(group != groups.end());
    const auto g = static_cast<size_t>(group - groups.begin());
    const Shape shape{blocks_per_group[g], n_kv_heads_, block_size_, head_dim_};
    if (slot_of_layer_.size() <= static_cast<size_t>(index)) {
      slot_of_layer_.resize(static_cast<size_t>(index) + 1, -1);
    }
    slot_of_layer_[static_cast<size_t>(index)] = static_cast<int64_t>(layers_.size());
    layers_.push_back({static_cast<int>(g),
                       device.allocate(device.compute_dtype(), shape),
                       device.allocate(device.compute_dtype(), shape)});
    pool_bytes_ += layers_.back().k.n_bytes() + layers_.back().v.n_bytes();
  }
}

const KvCache::Layer& KvCache::layer(int64_t index) const {
  CHECK(index >= 0 && static_cast<size_t>(index) < slot_of_layer_.size());
  const int64_t slot = slot_of_layer_[static_cast<size_t>(index)];
  CHECK(slot >= 0);
  return layers_[static_cast<size_t>(slot)];
}

KvView KvCache::view(int64_t index) const {
  const Layer& held = layer(index);
  return {.k = held.k.data(),
          .v = held.v.data(),
          .dtype = held.k.dtype(),
          .n_blocks = held.k.shape()[0],
          .block_size = block_size_,
          .n_kv_heads = n_kv_heads_,
          .head_dim = head_dim_};
}

int64_t KvCache::n_layers_in(int group) const {
  return std::count_if(
      layers_.begin(), layers_.end(), [&](const Layer& held) { return held.group == group; });
}

int KvCache::group_of(int64_t index) const { return layer(index).group; }

void KvCache::fill_synthetic() {
  for (const Layer& held : layers_) {
    for (const TensorView view : {held.k.view(), held.v.view()}) {
      for (int64_t i = 0; i < view.n_elements(); ++i) {
        const float value = 0.01F * static_cast<float>(i % 17 - 8);
        if (view.dtype() == DType::F32) {
          view.as<float>()[i] = value;
        } else {
          view.as<bf16>()[i] = to_bf16(value);
        }
      }
    }
  }
}

}  // namespace testbed
