// Attention of single query rows whose query heads share KV heads, on tensor cores, in bf16: a
// block has one query row, up to 16 heads of one KV head (the rows of the products; fewer leave
// some idle) and one split of the keys. Each warp goes over 16 keys at a time on its own, the next
// ones on their way into its part of shared memory meanwhile; the warps' states are merged at the
// end. Keys and values are read once per 16 heads. Bound: memory.
#include <algorithm>

#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_states.cuh"
#include "kernels/cuda/launch.cuh"

namespace testbed::cuda {
namespace {

constexpr int n_stages = 2;
constexpr int n_keys = 16;  // of a step of a warp
constexpr int n_heads = static_cast<int>(group_heads);

template <int dim, int v_dim>
struct Shared {
  // Rows of 8 more floats: the lanes of a warp then meet no bank twice.
  using States = WarpStates<n_heads, v_dim + 8>;
  static constexpr int q_elements = n_heads * dim;
  static constexpr int stage_elements = n_keys * (dim + v_dim);  // of a warp
  // States take the place of keys and queries.
  static constexpr size_t n_bytes =
      std::max(sizeof(bf16) * (q_elements + state_warps * n_stages * stage_elements),
               sizeof(float) * States::n_floats);
  bf16* memory = dynamic_shared<bf16>();
  __device__ SharedTile<dim> q() const { return {memory}; }
  __device__ SharedTile<dim> k(int warp, int stage) const {
    return {memory + q_elements + (warp * n_stages + stage) * stage_elements};
  }
  __device__ SharedTile<v_dim> v(int warp, int stage) const {
    return {k(warp, stage).memory + n_keys * dim};
  }
  __device__ States states() const { return {reinterpret_cast<float*>(memory)}; }
};

// The warp's step of keys; lane i has the slot of key i.
template <int padded>
__device__ inline void load_step(
    const SharedTile<padded>& tile, const void* matrix, int stride, int dim, int64_t slot) {
  for (int i = lane_in_warp(); i < n_keys * tile.pieces; i += warp_size) {
    const int r = i / tile.pieces;
    const int p = i % tile.pieces;
    const int64_t from = __shfl_sync(all_lanes, slot, r);
    const bool valid = from >= 0 && p * piece < dim;
    copy_async_16(tile.at(r, p),
                  static_cast<const bf16*>(matrix) + (valid ? from * stride + p * piece : 0),
                  valid);
  }
}

template <int dim>
__device__ inline void load_queries(const SharedTile<dim>& tile,
                                    const AttentionCall& call,
                                    const HeadGroup& group,
                                    int32_t row) {
  for (int i = static_cast<int>(threadIdx.x); i < n_heads * tile.pieces; i += state_threads) {
    const int h = i / tile.pieces;
    const int p = i % tile.pieces;
    const bool valid = h < group.n && p * piece < call.kv.head_dim;
    const int64_t from = valid ? int64_t{row} * call.n_heads + call.heads[group.first + h] : 0;
    copy_async_16(
        tile.at(h, p),
        static_cast<const bf16*>(call.q) + from * call.kv.head_dim + (valid ? p * piece : 0),
        valid);
  }
}

// Scores of slots without a key become -inf. valid: a bit per key.
__device__ inline void mask(float (&scores)[n_keys / mma_cols][4], unsigned valid) {
#pragma unroll
  for (int j = 0; j < n_keys / mma_cols; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = j * mma_cols + lane_in_warp() % 4 * 2 + i % 2;
      if (((valid >> column) & 1U) == 0) scores[j][i] = -INFINITY;
    }
  }
}

template <typename States, int n_out>
__device__ inline void store_state(const States& states,
                                   int warp,
                                   const RowState& state,
                                   const float (&out)[n_out][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int h = lane_in_warp() / 4 + 8 * i;
    const float sum = quad_sum(state.sum[i]);
    if (lane_in_warp() % 4 == 0) {
      states.stats(warp, h)[0] = state.maximum[i];
      states.stats(warp, h)[1] = sum;
    }
#pragma unroll
    for (int n = 0; n < n_out; ++n) {
      float* to = states.out(warp, h) + n * mma_cols + lane_in_warp() % 4 * 2;
      to[0] = out[n][2 * i];
      to[1] = out[n][2 * i + 1];
    }
  }
}

// grid: x = row * n_splits + split, y = group.
template <int dim, int v_dim>
__global__ void __launch_bounds__(state_threads, v_dim > 128 ? 1 : 2)
    attend_groups_kernel(AttentionCall call) {
  const Shared<dim, v_dim> shared;
  const PagedKv& kv = call.kv;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const Split split = split_of_block(call);
  const AttentionRow row = call.rows[split.row];
  const HeadGroup group = call.groups[blockIdx.y];
  const KeyRange keys = keys_of_split(call, row, split, state_warps * n_keys);

  if (is_empty_split(call, group, split, keys, split.row, 1)) return;

  RowState state;
  float out[v_dim / mma_cols][4];
  reset(state, out);
  load_queries(shared.q(), call, group, row.row);

  const auto find_slot = [&](int64_t step) -> int64_t {
    const int64_t key = step + lane_in_warp();
    if (lane_in_warp() >= n_keys || key >= keys.end) return -1;
    return key_slot(kv, row.table, group.kv_head, static_cast<int32_t>(key));
  };
  const auto load = [&](int stage, int64_t slot) {
    const bool v_in_k = kv.v == nullptr;
    load_step(shared.k(warp, stage), kv.k, kv.head_dim, kv.head_dim, slot);
    load_step(shared.v(warp, stage),
              v_in_k ? kv.k : kv.v,
              v_in_k ? kv.head_dim : kv.v_dim,
              kv.v_dim,
              slot);
  };
  const int64_t first = keys.first + warp * n_keys;
  int64_t slot = find_slot(first);
  int64_t next_slot = find_slot(first + state_warps * n_keys);
  load(0, slot);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();  // the queries are of all warps

  int stage = 0;
  for (int64_t step = first; step < keys.end; step += state_warps * n_keys) {
    load(1 - stage, next_slot);
    copy_async_commit();
    const int64_t slot_after = find_slot(step + 2 * state_warps * n_keys);
    copy_async_wait<1>();
    __syncwarp();
    float scores[n_keys / mma_cols][4] = {};
    multiply_keys(scores, shared.q(), 0, shared.k(warp, stage), 0);
    const float scale = cap_scores(scores, call);
    const unsigned valid = __ballot_sync(all_lanes, slot >= 0 ? 1 : 0);
    if (valid != 0xffffU) mask(scores, valid);
    exponentiate(scores, scale, state, out);
    add_values(out, scores, shared.v(warp, stage));
    __syncwarp();
    slot = next_slot;
    next_slot = slot_after;
    stage = 1 - stage;
  }
  copy_async_wait<0>();
  __syncthreads();

  const auto states = shared.states();
  store_state(states, warp, state, out);
  __syncthreads();
  for (int h = 0; h < group.n; ++h) {
    store_head(call, states, h, call.heads[group.first + h], split);
  }
}

template <int dim, int v_dim>
void launch_groups(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  launch(queue,
         attend_groups_kernel<dim, v_dim>,
         {dim3(static_cast<unsigned>(launch_of.n_rows * call.n_splits),
               static_cast<unsigned>(launch_of.n_groups)),
          dim3(state_threads),
          Shared<dim, v_dim>::n_bytes},
         call);
}

}  // namespace

void attend_groups(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  const int32_t dim = call.kv.head_dim;
  const int32_t v_dim = call.kv.v_dim;
  if (dim <= 64 && v_dim <= 64) return launch_groups<64, 64>(queue, call, launch_of);
  if (dim <= 128 && v_dim <= 128) return launch_groups<128, 128>(queue, call, launch_of);
  if (dim <= 192 && v_dim <= 128) return launch_groups<192, 128>(queue, call, launch_of);
  launch_groups<256, 256>(queue, call, launch_of);
}

}  // namespace testbed::cuda
