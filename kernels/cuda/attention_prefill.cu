// Attention of prompts on tensor cores (FlashAttention-2, Dao 2023, arXiv:2307.08691), in bf16. A
// block has 64 rows, (query, head) pairs of one KV head, and goes over the keys that they see in
// tiles of 64, gathered through the block table while the tile before is used. Scores and outputs
// stay in registers: a warp has 16 rows. Weights are rounded to bf16 for their product with the
// values; their sums are of the unrounded ones. Bound: bf16 tensor FLOPs; per block it reads its
// queries once, and keys and values once, 64 rows * 2 FLOPs per byte of them.
#include "kernels/cuda/attention_pairs.cuh"
#include "kernels/cuda/launch.cuh"

namespace testbed::cuda {
namespace {

constexpr int n_threads = 128;
constexpr int n_stages = 2;
constexpr int n_slot_stages = 3;  // a tile's slots are found two tiles ahead
constexpr int n_rows = static_cast<int>(tile_rows);

template <int dim, int v_dim>
struct Shared {
  // Where outputs fill the registers, scores get fewer.
  static constexpr int n_keys = v_dim > 128 ? 32 : static_cast<int>(tile_keys);
  static constexpr size_t n_bytes =
      sizeof(bf16) * (n_rows * dim + n_stages * n_keys * (dim + v_dim)) +
      sizeof(int64_t) * n_slot_stages * n_keys;
  bf16* memory = dynamic_shared<bf16>();
  __device__ SharedTile<dim> q() const { return {memory}; }
  __device__ SharedTile<dim> k(int stage) const {
    return {memory + (n_rows + stage * n_keys) * dim};
  }
  __device__ SharedTile<v_dim> v(int stage) const {
    return {memory + (n_rows + n_stages * n_keys) * dim + stage * n_keys * v_dim};
  }
  // Where the tile's keys lie (key_slot); -1: no key.
  __device__ int64_t* slots(int tile) const {
    return reinterpret_cast<int64_t*>(memory + n_rows * dim + n_stages * n_keys * (dim + v_dim)) +
           tile % n_slot_stages * n_keys;
  }
};

template <int dim, int v_dim>
__device__ inline void load_keys(const Shared<dim, v_dim>& shared, const PagedKv& kv, int tile) {
  const int64_t* slots = shared.slots(tile);
  const auto slot = [&](int r) { return slots[r]; };
  const int stage = tile % n_stages;
  constexpr int n_keys = Shared<dim, v_dim>::n_keys;
  load_rows<n_threads>(shared.k(stage), n_keys, kv.k, kv.head_dim, kv.head_dim, slot);
  if (kv.v == nullptr) {
    load_rows<n_threads>(shared.v(stage), n_keys, kv.k, kv.head_dim, kv.v_dim, slot);
  } else {
    load_rows<n_threads>(shared.v(stage), n_keys, kv.v, kv.v_dim, kv.v_dim, slot);
  }
}

template <int v_dim>
__device__ inline void store_rows(const Pairs& pairs,
                                  int first_pair,
                                  const RowState& state,
                                  const float (&out)[v_dim / mma_cols][4]) {
  const AttentionCall& call = pairs.call;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = quad_sum(state.sum[i]);
    const int r = first_pair + lane_in_warp() / 4 + 8 * i;
    if (!pairs.has(r)) continue;
    const int64_t at = pairs.at(r);
    const float factor = row_factor(call, pairs.head(r), state.maximum[i], sum);
    if (lane_in_warp() % 4 == 0) store_lse(call, at, state.maximum[i], sum);
#pragma unroll
    for (int n = 0; n < v_dim / mma_cols; ++n) {
      const int d = n * mma_cols + lane_in_warp() % 4 * 2;
      if (d >= call.kv.v_dim) continue;
      store_pair(call, at * call.kv.v_dim + d, out[n][2 * i] * factor, out[n][2 * i + 1] * factor);
    }
  }
}

// grid: x = tile, y = group. A warp's rows may see nothing of a tile; then it only waits.
template <int dim, int v_dim>
__global__ void __launch_bounds__(n_threads, v_dim > 128 ? 1 : 2)
    attend_tiles_kernel(AttentionCall call) {
  const Pairs pairs{call, call.tiles[blockIdx.x], call.groups[blockIdx.y]};
  const AttentionTile& tile = pairs.tile;
  const Shared<dim, v_dim> shared;
  constexpr int n_keys = Shared<dim, v_dim>::n_keys;
  const int first_pair = static_cast<int>(threadIdx.x) / warp_size * mma_rows;
  const int32_t table = call.rows[tile.first].table;

  const SeenKeys seen(pairs, first_pair);
  RowState state;
  float out[v_dim / mma_cols][4];
  reset(state, out);

  const int n_tiles = (tile.end_key - tile.first_key + n_keys - 1) / n_keys;
  // This thread's key of a tile.
  const auto find_slot = [&](int t) -> int64_t {
    const int32_t key = tile.first_key + t * n_keys + static_cast<int32_t>(threadIdx.x);
    if (threadIdx.x >= n_keys || key >= tile.end_key) return -1;
    return key_slot(call.kv, table, pairs.group.kv_head, key);
  };
  const auto put_slot = [&](int t, int64_t slot) {
    if (threadIdx.x < n_keys) shared.slots(t)[threadIdx.x] = slot;
  };
  put_slot(0, find_slot(0));
  put_slot(1, find_slot(1));
  load_rows<n_threads>(shared.q(), n_rows, call.q, call.kv.head_dim, call.kv.head_dim, [&](int r) {
    return pairs.has(r) ? pairs.at(r) : int64_t{-1};
  });
  __syncthreads();
  if (n_tiles > 0) load_keys(shared, call.kv, 0);
  copy_async_commit();

  for (int t = 0; t < n_tiles; ++t) {
    copy_async_wait<0>();
    __syncthreads();  // tile t is there, and nobody uses tile t - 1 any more
    if (t + 1 < n_tiles) load_keys(shared, call.kv, t + 1);
    copy_async_commit();
    const int64_t slot = find_slot(t + 2);
    const int32_t key = tile.first_key + t * n_keys;
    if (__any_sync(all_lanes, seen.any_of(key, n_keys) ? 1 : 0) != 0) {
      float scores[n_keys / mma_cols][4] = {};
      multiply_keys(scores, shared.q(), first_pair, shared.k(t % n_stages), 0);
      const float scale = cap_scores(scores, call);
      if (call.kv.block_tokens != nullptr || key < tile.all_first || key + n_keys > tile.all_end) {
        mask(scores, seen, key, shared.slots(t));
      }
      exponentiate(scores, scale, state, out);
      add_values(out, scores, shared.v(t % n_stages));
    }
    put_slot(t + 2, slot);
  }
  copy_async_wait<0>();
  store_rows<v_dim>(pairs, first_pair, state, out);
}

template <int dim, int v_dim>
void launch_tiles(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  launch(queue,
         attend_tiles_kernel<dim, v_dim>,
         {dim3(static_cast<unsigned>(launch_of.n_rows), static_cast<unsigned>(launch_of.n_groups)),
          dim3(n_threads),
          Shared<dim, v_dim>::n_bytes},
         call);
}

}  // namespace

bool can_attend_tiles(DType dtype, int64_t head_dim, int64_t v_dim) {
  return dtype == DType::BF16 && head_dim % piece == 0 && v_dim % piece == 0 && head_dim <= 256 &&
         v_dim <= 256;
}

void attend_tiles(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  const int32_t dim = call.kv.head_dim;
  const int32_t v_dim = call.kv.v_dim;
  if (dim <= 64 && v_dim <= 64) return launch_tiles<64, 64>(queue, call, launch_of);
  if (dim <= 128 && v_dim <= 128) return launch_tiles<128, 128>(queue, call, launch_of);
  if (dim <= 192 && v_dim <= 128) return launch_tiles<192, 128>(queue, call, launch_of);
  launch_tiles<256, 256>(queue, call, launch_of);
}

}  // namespace testbed::cuda
