// What each layer of a ModelConfig is, resolved from the whole.
#include "runtime/config/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/check.hpp"
#include "kernels/base/errors.hpp"
#include "runtime/config/rope.hpp"

namespace testbed {
namespace {

bool is_shared(const ModelConfig& c, int64_t index) {
  return index >= c.n_layers - c.n_shared_kv_layers;
}

bool has_window(const ModelConfig& c, int64_t index) {
  return c.layer_windows[static_cast<size_t>(index)] != 0;
}

// The last layer of the same kind before those that share; validate() makes sure of it.
int64_t owner_of_kv(const ModelConfig& c, int64_t index) {
  if (!is_shared(c, index)) return index;
  for (int64_t i = c.n_layers - c.n_shared_kv_layers - 1; i >= 0; --i)
    if (has_window(c, i) == has_window(c, index)) return i;
  check_failed("a layer owns the shared keys and values", __FILE__, __LINE__);
}

void set_heads(const ModelConfig& c, LayerShape& layer) {
  layer.n_kv_heads = c.n_kv_heads;
  layer.head_dim = c.head_dim;
  if (c.full_attention && layer.window == 0) {
    layer.n_kv_heads = c.full_attention->n_kv_heads;
    layer.head_dim = c.full_attention->head_dim;
    layer.key_is_value = c.full_attention->key_is_value;
  }
  layer.v_dim = c.mla ? c.mla->v_dim : layer.head_dim;
}

}  // namespace

LayerShape ModelConfig::layer(int64_t index) const {
  CHECK(index >= 0 && index < n_layers);
  LayerShape layer;
  layer.window = layer_windows[static_cast<size_t>(index)];
  layer.window_rope = layer.window != 0 && window_rope.has_value();
  set_heads(*this, layer);
  layer.kv_layer = owner_of_kv(*this, index);
  layer.has_experts =
      moe && !std::binary_search(moe->dense_layers.begin(), moe->dense_layers.end(), index);
  if (!layer.has_experts || moe->beside_mlp)
    layer.d_ff = is_shared(*this, index) && double_wide_shared_mlp ? 2 * d_ff : d_ff;
  return layer;
}

CachedShape ModelConfig::cached(int64_t index) const {
  if (mla) return {.n_heads = 1, .k_dim = mla->cached_dim(), .v_dim = 0};
  const LayerShape owner = layer(layer(index).kv_layer);
  return {.n_heads = owner.n_kv_heads, .k_dim = owner.head_dim, .v_dim = owner.v_dim};
}

double ModelConfig::scale_of_scores(int64_t index) const {
  const double scale =
      attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(layer(index).head_dim)));
  const double all_dim = rope.mscale_all_dim.value_or(0);
  if (!mla || rope.kind != RopeKind::yarn || all_dim == 0) return scale;
  const double mscale = yarn_mscale(rope.factor, all_dim);
  return scale * mscale * mscale;
}

ModelConfig truncated_to(ModelConfig config, int64_t n_layers) {
  if (n_layers < 1 || n_layers > config.n_layers)
    throw ConfigError(
        fmt::format("--layers {}: {} has {} layers", n_layers, config.name, config.n_layers));
  const int64_t n_removed = config.n_layers - n_layers;
  config.n_layers = n_layers;
  config.layer_windows.resize(static_cast<size_t>(n_layers));
  config.n_shared_kv_layers = std::max<int64_t>(0, config.n_shared_kv_layers - n_removed);
  if (config.moe)
    std::erase_if(config.moe->dense_layers, [&](int64_t layer) { return layer >= n_layers; });
  return config;
}

}  // namespace testbed
