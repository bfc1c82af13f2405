// What one rank's KV cache stores, against the closed forms of each kind of layer.
#include "runtime/serving/kv_cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/cpu/cpu_device.hpp"

namespace testbed {
namespace {

using ::testing::ElementsAre;

constexpr int64_t block_size = 4;

CpuDevice device_of(DType compute) {
  return {std::make_shared<cpu::ThreadPool>(1, false), cpu::Isa::portable, compute};
}

ModelConfig model_of(int64_t n_layers) {
  ModelConfig config;
  config.n_layers = n_layers;
  config.n_heads = 8;
  config.n_kv_heads = 4;
  config.head_dim = 16;
  config.layer_windows.assign(static_cast<size_t>(n_layers), 0);
  return config;
}

// As gemma4: window layers with 4 KV heads of 16, full layers with 2 of 32; the last three layers
// read the cache of layers 3 (full) and 2 (window).
ModelConfig sharing_model() {
  ModelConfig config = model_of(7);
  config.layer_windows = {8, 0, 8, 0, 8, 0, 8};
  config.full_attention = {.n_kv_heads = 2, .head_dim = 32, .key_is_value = true};
  config.n_shared_kv_layers = 3;
  return config;
}

std::vector<int64_t> all_layers(const ModelConfig& config) {
  std::vector<int64_t> layers(static_cast<size_t>(config.n_layers));
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

KvCache cache_of(Device& device,
                 const ModelConfig& config,
                 const std::vector<int64_t>& layers,
                 const std::vector<int64_t>& blocks,
                 int tp = 1,
                 int tp_rank = 0) {
  return {device, kv_groups(config), blocks, kv_layouts(config, layers, tp, tp_rank), block_size};
}

TEST(KvCache, llama3_70b_keeps_320_KiB_per_token_and_its_tp_share) {
  ModelConfig config = model_of(80);
  config.n_heads = 64;
  config.n_kv_heads = 8;
  config.head_dim = 128;
  CpuDevice device = device_of(DType::BF16);
  EXPECT_EQ(cache_of(device, config, all_layers(config), {1}).bytes_per_token(), 320 * 1024);
  EXPECT_EQ(cache_of(device, config, all_layers(config), {1}, 4, 3).bytes_per_token(), 80 * 1024);
  EXPECT_EQ(cache_of(device, config, all_layers(config), {1}, 16, 5).bytes_per_token(),
            40 * 1024);  // two ranks a KV head
  EXPECT_EQ(cache_of(device, config, {0, 1}, {1}).bytes_per_token(), 8 * 1024);
}

TEST(KvCache, latent_is_whole_on_every_tp_rank_and_has_no_values) {
  ModelConfig config = model_of(3);
  config.mla = {.kv_lora_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128};
  CpuDevice device = device_of(DType::BF16);
  for (const int tp : {1, 8}) {
    const KvCache cache = cache_of(device, config, all_layers(config), {5}, tp, tp - 1);
    EXPECT_EQ(cache.bytes_per_token(), 3 * 576 * 2);
    EXPECT_EQ(cache.pool_bytes(), 5 * block_size * 3 * 576 * 2);
    const KvView view = cache.view(1);
    EXPECT_EQ(view.v, nullptr);
    EXPECT_EQ(view.n_kv_heads, 1);
    EXPECT_EQ(view.head_dim, 576);
    EXPECT_EQ(view.v_dim, 512);  // attention reads the latent without its rope part
    EXPECT_EQ(view.block_bytes(), block_size * 576 * 2);
  }
}

TEST(KvCache, layers_of_one_model_have_shapes_of_their_own) {
  const ModelConfig config = sharing_model();
  CpuDevice device = device_of(DType::F32);
  const KvCache cache = cache_of(device, config, all_layers(config), {3, 10}, 2, 1);
  const KvView window = cache.view(0);
  EXPECT_EQ(window.n_blocks, 3);
  EXPECT_EQ(window.n_kv_heads, 2);
  EXPECT_EQ(window.head_dim, 16);
  const KvView full = cache.view(1);
  EXPECT_EQ(full.n_blocks, 10);
  EXPECT_EQ(full.n_kv_heads, 1);
  EXPECT_EQ(full.head_dim, 32);
  EXPECT_EQ(full.v_dim, 32);
  EXPECT_NE(full.v, nullptr);
}

TEST(KvCache, shared_layers_use_anothers_storage_and_count_once) {
  const ModelConfig config = sharing_model();
  CpuDevice device = device_of(DType::F32);
  const KvCache cache = cache_of(device, config, all_layers(config), {3, 10});
  EXPECT_EQ(cache.view(4).k, cache.view(2).k);
  EXPECT_EQ(cache.view(5).v, cache.view(3).v);
  EXPECT_EQ(cache.view(6).k, cache.view(2).k);
  EXPECT_NE(cache.view(0).k, cache.view(2).k);
  EXPECT_EQ(cache.group_of(6), cache.group_of(2));
  EXPECT_EQ(cache.group_of(5), cache.group_of(3));
  // f32: two window layers of 4 heads, two full layers of 2, keys and values.
  const int64_t window_bytes = 2 * 2 * 4 * 16 * 4;
  const int64_t full_bytes = 2 * 2 * 2 * 32 * 4;
  EXPECT_EQ(cache.bytes_per_token(cache.group_of(0)), window_bytes);
  EXPECT_EQ(cache.bytes_per_token(cache.group_of(1)), full_bytes);
  EXPECT_EQ(cache.bytes_per_token(), window_bytes + full_bytes);
  EXPECT_EQ(cache.pool_bytes(), block_size * (3 * window_bytes + 10 * full_bytes));
}

TEST(KvCache, sharing_needs_the_owner_on_the_same_rank) {
  const ModelConfig config = sharing_model();
  CpuDevice device = device_of(DType::F32);
  EXPECT_THROW(cache_of(device, config, {4, 5}, {1, 1}), InternalError);
}

TEST(KvCache, synthetic_tokens_leave_no_block_empty) {
  const ModelConfig config = sharing_model();
  CpuDevice device = device_of(DType::BF16);
  KvCache cache = cache_of(device, config, all_layers(config), {2, 2});
  cache.fill_synthetic(device);
  for (const int64_t layer : {0, 1, 6}) {
    const KvView view = cache.view(layer);
    const int64_t n = view.n_blocks * view.n_kv_heads * block_size * view.head_dim;
    for (const void* pool : {view.k, view.v}) {
      const auto* values = static_cast<const bf16*>(pool);
      EXPECT_NE(std::accumulate(values + n - 17,
                                values + n,
                                0.0F,
                                [](float sum, bf16 x) { return sum + std::abs(to_f32(x)); }),
                0.0F);
    }
  }
}

TEST(KvCache, one_group_per_window) {
  const std::vector<KvGroup> groups = kv_groups(sharing_model());
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].window, 8);
  EXPECT_THAT(groups[0].layers, ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(groups[1].window, 0);
  EXPECT_THAT(groups[1].layers, ElementsAre(1, 3, 5));
}

}  // namespace
}  // namespace testbed
