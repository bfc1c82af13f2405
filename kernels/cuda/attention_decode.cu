// Attention of single query rows on CUDA cores, for any dtype and head size: what decodes, and what
// the tensor-core kernels do not take. A block has one query row, the heads of a group (up to 8, in
// bf16 up to 2) and one split of the keys; it reads each key and value once for all of them. Bound:
// memory, while a group's 4 * heads FLOPs per element (of 2 bytes in bf16) stay below the device's
// FLOPs per byte.
//
// A key is held by `lanes` neighbouring lanes, 16-byte piece p of it by lane p % lanes; each such
// set of lanes has an online softmax of its own over the keys it meets. They are merged at the end.
#include <algorithm>

#include "kernels/base/errors.hpp"
#include "kernels/cuda/attention_states.cuh"
#include "kernels/cuda/launch.cuh"

namespace testbed::cuda {
namespace {

// 16 bytes of a row as they lie in memory; zeros beyond its end.
template <bool aligned, typename T>
__device__ inline Words load_piece(const T* row, int piece, int dim) {
  constexpr int n = per_access<T>;
  Words words{};
  if constexpr (aligned) {
    if (piece * n < dim) words = *reinterpret_cast<const Words*>(row + piece * n);
  } else {
    float x[n];
    for (int i = 0; i < n; ++i) x[i] = piece * n + i < dim ? load_one(row + piece * n + i) : 0.0F;
    store_row_part(reinterpret_cast<T*>(words.w), x);
  }
  return words;
}
template <typename T>
__device__ inline void unpack(const Words& words, float (&x)[per_access<T>]) {
  load_row_part(reinterpret_cast<const T*>(words.w), x);
}

// The state of one head in one lane: its pieces of the query and of the unnormalised output.
template <typename T, int pieces>
struct HeadState {
  float q[pieces][per_access<T>];
  float out[pieces][per_access<T>];
  float maximum;
  float sum;
};

// Keys that one lane holds at a time, to have enough loads on their way.
template <int pieces, int heads>
constexpr int keys_held = pieces > 2                 ? 1
                          : pieces == 2 || heads > 4 ? 2
                                                     : 4;

template <typename T, int pieces, int n_keys>
struct HeldKeys {
  Words k[n_keys][pieces];
  Words v[n_keys][pieces];
  bool seen[n_keys];
};

template <bool aligned, typename T, int pieces, int n_keys>
__device__ inline void load_key(const PagedKv& kv,
                                int64_t slot,
                                int lane,
                                int lanes,
                                int i,
                                HeldKeys<T, pieces, n_keys>& held) {
  for (int p = 0; p < pieces; ++p) {
    held.k[i][p] = Words{};
    held.v[i][p] = Words{};
    if (held.seen[i]) {
      const T* k = static_cast<const T*>(kv.k) + slot * kv.head_dim;
      held.k[i][p] = load_piece<aligned>(k, lane + p * lanes, kv.head_dim);
      held.v[i][p] = held.k[i][p];
      if (kv.v != nullptr) {
        const T* v = static_cast<const T*>(kv.v) + slot * kv.v_dim;
        held.v[i][p] = load_piece<aligned>(v, lane + p * lanes, kv.v_dim);
      }
    }
  }
}

template <int lanes, typename T, int pieces, int n_keys>
__device__ inline void attend_head(const HeldKeys<T, pieces, n_keys>& held,
                                   const AttentionCall& call,
                                   HeadState<T, pieces>& head) {
  constexpr int n = per_access<T>;
  float score[n_keys];
  float maximum = head.maximum;
  for (int i = 0; i < n_keys; ++i) {
    float product = 0.0F;
    for (int p = 0; p < pieces; ++p) {
      float k[n];
      unpack<T>(held.k[i][p], k);
      for (int e = 0; e < n; ++e) product += head.q[p][e] * k[e];
    }
    product = sum_of_lanes<lanes>(product);
    score[i] = held.seen[i] ? score_of(product, call.scale, call.softcap) : -INFINITY;
    maximum = fmaxf(maximum, score[i]);
  }
  const float top = finite_maximum(maximum);
  const float keep = exp2_approximate(head.maximum - top);
  head.maximum = maximum;
  head.sum *= keep;
  for (int p = 0; p < pieces; ++p) {
    for (int e = 0; e < n; ++e) head.out[p][e] *= keep;
  }
  for (int i = 0; i < n_keys; ++i) {
    const float weight = exp2_approximate(score[i] - top);
    head.sum += weight;
    for (int p = 0; p < pieces; ++p) {
      float v[n];
      unpack<T>(held.v[i][p], v);
      for (int e = 0; e < n; ++e) head.out[p][e] += weight * v[e];
    }
  }
}

// The states of the sets of lanes in a warp to one, in all of them.
template <int lanes, typename T, int pieces>
__device__ inline void merge_in_warp(HeadState<T, pieces>& head) {
  for (int mask = lanes; mask < warp_size; mask *= 2) {
    const float other = __shfl_xor_sync(all_lanes, head.maximum, mask);
    const float maximum = fmaxf(head.maximum, other);
    const float keep = exp2_approximate(head.maximum - finite_maximum(maximum));
    head.maximum = maximum;
    head.sum *= keep;
    head.sum += __shfl_xor_sync(all_lanes, head.sum, mask);
    for (int p = 0; p < pieces; ++p) {
      for (int e = 0; e < per_access<T>; ++e) {
        head.out[p][e] *= keep;
        head.out[p][e] += __shfl_xor_sync(all_lanes, head.out[p][e], mask);
      }
    }
  }
}

// grid: x = row * n_splits + split, y = group.
template <typename T, int lanes, int pieces, int heads, bool aligned>
__global__ void __launch_bounds__(state_threads, 2) attend_rows_kernel(AttentionCall call) {
  constexpr int n_keys = keys_held<pieces, heads>;
  constexpr int keys_per_warp = warp_size / lanes;
  constexpr int keys_per_step = n_keys * state_warps * keys_per_warp;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int set = static_cast<int>(threadIdx.x) / lanes;  // of lanes, in the block
  const Split split = split_of_block(call);
  const AttentionRow row = call.rows[split.row];
  const HeadGroup group = call.groups[blockIdx.y];

  const KeyRange keys = keys_of_split(call, row, split, keys_per_step);
  if (is_empty_split(call, group, split, keys, split.row, 1)) return;

  HeadState<T, pieces> state[heads];
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    const int32_t head = call.heads[group.first + (h < group.n ? h : 0)];
    const T* q =
        static_cast<const T*>(call.q) + (int64_t{row.row} * call.n_heads + head) * call.kv.head_dim;
    for (int p = 0; p < pieces; ++p) {
      unpack<T>(load_piece<aligned>(q, lane + p * lanes, call.kv.head_dim), state[h].q[p]);
      for (float& x : state[h].out[p]) x = 0.0F;
    }
    state[h].maximum = -INFINITY;
    state[h].sum = 0.0F;
  }

  for (int64_t step = keys.first; step < keys.end; step += keys_per_step) {
    HeldKeys<T, pieces, n_keys> held;
    for (int i = 0; i < n_keys; ++i) {
      const int64_t key = step + i * state_warps * keys_per_warp + set;
      const int64_t slot =
          key < keys.end ? key_slot(call.kv, row.table, group.kv_head, static_cast<int32_t>(key))
                         : -1;
      held.seen[i] = slot >= 0;
      load_key<aligned>(call.kv, slot, lane, lanes, i, held);
    }
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      if (h < group.n) attend_head<lanes>(held, call, state[h]);
    }
  }

  const WarpStates<heads, pieces * lanes * per_access<T>> states{dynamic_shared<float>()};
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    merge_in_warp<lanes>(state[h]);
    if (static_cast<int>(threadIdx.x) % warp_size >= lanes) continue;
    for (int p = 0; p < pieces; ++p) {
      for (int e = 0; e < per_access<T>; ++e) {
        states.out(warp, h)[(lane + p * lanes) * per_access<T> + e] = state[h].out[p][e];
      }
    }
    if (lane == 0) {
      states.stats(warp, h)[0] = state[h].maximum;
      states.stats(warp, h)[1] = state[h].sum;
    }
  }
  __syncthreads();
  for (int h = 0; h < heads; ++h) {
    if (h < group.n) store_head(call, states, h, call.heads[group.first + h], split);
  }
}

template <typename T, int lanes, int pieces, int heads, bool aligned>
void launch_rows(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  using States = WarpStates<heads, pieces * lanes * per_access<T>>;
  launch(queue,
         attend_rows_kernel<T, lanes, pieces, heads, aligned>,
         {dim3(static_cast<unsigned>(launch_of.n_rows * call.n_splits),
               static_cast<unsigned>(launch_of.n_groups)),
          dim3(state_threads),
          States::n_floats * sizeof(float)},
         call);
}

// Heads of a group, by what a lane then holds. Larger groups in bf16 are for tensor cores.
constexpr int64_t heads_for(bool is_bf16, int64_t n_pieces) {
  return is_bf16 || n_pieces > 4 ? 2 : n_pieces > 2 ? 4 : 8;
}

template <typename T, int lanes, int pieces>
void launch_heads(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  constexpr int most = heads_for(sizeof(T) == sizeof(bf16), pieces);
  if (launch_of.max_group == 1) {
    launch_rows<T, lanes, pieces, 1, true>(queue, call, launch_of);
    return;
  }
  if constexpr (most == 8) {
    if (launch_of.max_group <= 4) {
      return launch_rows<T, lanes, pieces, 4, true>(queue, call, launch_of);
    }
  }
  launch_rows<T, lanes, pieces, most, true>(queue, call, launch_of);
}

// Pieces of 16 bytes in a row of either kind.
int64_t row_pieces(DType dtype, int64_t head_dim, int64_t v_dim) {
  return divide_up(dtype_bytes(dtype, std::max(head_dim, v_dim)), 16);
}
bool has_aligned_rows(DType dtype, int64_t head_dim, int64_t v_dim) {
  return dtype_bytes(dtype, head_dim) % 16 == 0 && dtype_bytes(dtype, v_dim) % 16 == 0;
}

}  // namespace

int64_t max_row_head_dim(DType dtype) { return dtype == DType::F32 ? 640 : 768; }

int64_t row_heads(DType dtype, int64_t head_dim, int64_t v_dim) {
  if (!has_aligned_rows(dtype, head_dim, v_dim)) return 1;
  return heads_for(dtype == DType::BF16, divide_up(row_pieces(dtype, head_dim, v_dim), warp_size));
}

void attend_rows(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  const int64_t head_dim = call.kv.head_dim;
  const int64_t v_dim = call.kv.v_dim;
  const int64_t n = row_pieces(launch_of.dtype, head_dim, v_dim);
  if (std::max(head_dim, v_dim) > max_row_head_dim(launch_of.dtype)) {
    throw ConfigError("the CUDA device's attention takes heads of up to " +
                      std::to_string(max_row_head_dim(launch_of.dtype)) + " elements, not " +
                      std::to_string(std::max(head_dim, v_dim)));
  }
  const bool aligned = has_aligned_rows(launch_of.dtype, head_dim, v_dim);
  if (launch_of.dtype == DType::F32) {
    if (!aligned) return launch_rows<float, 32, 5, 1, false>(queue, call, launch_of);
    if (n <= 16) return launch_heads<float, 16, 1>(queue, call, launch_of);
    if (n <= 32) return launch_heads<float, 32, 1>(queue, call, launch_of);
    if (n <= 64) return launch_heads<float, 32, 2>(queue, call, launch_of);
    if (n <= 128) return launch_heads<float, 32, 4>(queue, call, launch_of);
    return launch_heads<float, 32, 5>(queue, call, launch_of);
  }
  if (!aligned) return launch_rows<bf16, 32, 3, 1, false>(queue, call, launch_of);
  if (n <= 8) return launch_heads<bf16, 8, 1>(queue, call, launch_of);
  if (n <= 16) return launch_heads<bf16, 16, 1>(queue, call, launch_of);
  if (n <= 32) return launch_heads<bf16, 32, 1>(queue, call, launch_of);
  if (n <= 64) return launch_heads<bf16, 32, 2>(queue, call, launch_of);
  return launch_heads<bf16, 32, 3>(queue, call, launch_of);
}

}  // namespace testbed::cuda
