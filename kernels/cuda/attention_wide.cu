// Attention with heads too large for one warp's registers (up to 576 elements of a key and 512 of a
// value: MLA's latent, where values lie in the keys and all heads share them), on tensor cores, in
// bf16. A block has up to 64 rows, (query, head) pairs of one KV head, and one split of the keys
// that they see, in small tiles. Warps share out the scores (16 rows, 16 keys each), exchange the
// rows' maxima and the weights through shared memory, then each adds the values of its own columns
// to all rows. Keys and values are read once per 64 rows. Bound: bf16 tensor FLOPs with many heads
// (MLA), memory with few.
#include "kernels/cuda/attention_pairs.cuh"
#include "kernels/cuda/attention_states.cuh"
#include "kernels/cuda/launch.cuh"

namespace testbed::cuda {
namespace {

constexpr int n_warps = 8;
constexpr int n_threads = n_warps * warp_size;
constexpr int n_stages = 2;

// v_in_k: values are read from the tiles of keys.
template <int dim, int v_dim, int n_row_tiles, bool v_in_k>
struct Shared {
  static constexpr int n_rows = n_row_tiles * mma_rows;
  static constexpr int n_keys = v_in_k ? 32 : 16;  // of a tile: 160 KiB hold both stages
  static constexpr int n_key_parts = n_keys / mma_k;
  static constexpr int n_units = n_row_tiles * n_key_parts;  // warps with scores
  static constexpr int weight_stride = n_keys + piece;       // ldmatrix then meets no bank twice
  static constexpr int stage_elements = n_keys * (dim + (v_in_k ? 0 : v_dim));
  static constexpr int q_elements = n_rows * dim;
  static constexpr int weight_elements = n_rows * weight_stride;
  static constexpr size_t n_bytes =
      sizeof(bf16) * (q_elements + n_stages * stage_elements + weight_elements) +
      sizeof(float) * n_key_parts * n_rows + sizeof(int64_t) * 3 * n_keys;
  static_assert(n_units <= n_warps);

  bf16* memory = dynamic_shared<bf16>();
  __device__ SharedTile<dim> q() const { return {memory}; }
  __device__ SharedTile<dim> k(int tile) const {
    return {memory + q_elements + tile % n_stages * stage_elements};
  }
  __device__ SharedTile<v_dim> v(int tile) const { return {k(tile).memory + n_keys * dim}; }
  __device__ bf16* weights(int row) const {
    return memory + q_elements + n_stages * stage_elements + row * weight_stride;
  }
  // A part's maxima of the rows, then its sums. [n_key_parts, n_rows]
  __device__ float* of_rows(int part) const {
    return reinterpret_cast<float*>(weights(n_rows)) + part * n_rows;
  }
  __device__ int64_t* slots(int tile) const {
    return reinterpret_cast<int64_t*>(of_rows(n_key_parts)) + tile % 3 * n_keys;
  }
};

// The maxima of all rows, as a lane has rows: g and g + 8 of each 16.
template <int n_row_tiles>
struct Maxima {
  float of[n_row_tiles][2];
};

// Rows' maxima with those of a tile; outputs shrink along.
template <typename S, int n_row_tiles, int n_cols>
__device__ inline void raise_maxima(const S& shared,
                                    Maxima<n_row_tiles>& maxima,
                                    float (&out)[n_row_tiles][n_cols][4]) {
#pragma unroll
  for (int m = 0; m < n_row_tiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float maximum = maxima.of[m][i];
      for (int part = 0; part < S::n_key_parts; ++part) {
        maximum = fmaxf(maximum, shared.of_rows(part)[m * mma_rows + lane_in_warp() / 4 + 8 * i]);
      }
      const float keep = exp2_approximate(maxima.of[m][i] - finite_maximum(maximum));
      maxima.of[m][i] = maximum;
#pragma unroll
      for (int n = 0; n < n_cols; ++n) {
        out[m][n][2 * i] *= keep;
        out[m][n][2 * i + 1] *= keep;
      }
    }
  }
}

// out[rows, this warp's columns] += weights v.
template <typename S, int stored, int n_row_tiles, int n_cols>
__device__ inline void add_columns(const S& shared,
                                   const SharedTile<stored>& v,
                                   int first_column,
                                   float (&out)[n_row_tiles][n_cols][4]) {
  const int lane = lane_in_warp();
#pragma unroll
  for (int k = 0; k < S::n_key_parts; ++k) {
    uint32_t a[n_row_tiles][4];
#pragma unroll
    for (int m = 0; m < n_row_tiles; ++m) {
      ldmatrix_x4(a[m], shared.weights(m * mma_rows + lane % 16) + k * mma_k + lane / 16 * piece);
    }
#pragma unroll
    for (int n = 0; n < n_cols / 2; ++n) {
      uint32_t b[4];
      load_b_trans(b, v, k * mma_k, first_column / 16 + n);
#pragma unroll
      for (int m = 0; m < n_row_tiles; ++m) {
        mma_m16n8k16_bf16(out[m][2 * n], a[m], {b[0], b[1]});
        mma_m16n8k16_bf16(out[m][2 * n + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

// One warp's scores: rows [16 unit % n_row_tiles ...), keys [16 part ...) of each tile.
template <typename S>
struct Unit {
  int first_row;
  int part;
  SeenKeys seen;
  float scores[2][4];
  float scale;
  float sum[2] = {0.0F, 0.0F};  // of this lane's columns

  __device__ Unit(const Pairs& pairs, int unit, int n_row_tiles)
      : first_row(unit % n_row_tiles * mma_rows),
        part(unit / n_row_tiles),
        seen(pairs, first_row) {}

  __device__ void score(const S& shared, const Pairs& pairs, int tile, int32_t key) {
#pragma unroll
    for (auto& column : scores) {
      for (float& x : column) x = 0.0F;
    }
    multiply_keys(scores, shared.q(), first_row, shared.k(tile), part * mma_k);
    scale = cap_scores(scores, pairs.call);
    mask(scores, seen, key + part * mma_k, shared.slots(tile) + part * mma_k);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float top = quad_max(fmaxf(fmaxf(scores[0][2 * i], scores[0][2 * i + 1]),
                                       fmaxf(scores[1][2 * i], scores[1][2 * i + 1])));
      if (lane_in_warp() % 4 == 0) {
        shared.of_rows(part)[first_row + lane_in_warp() / 4 + 8 * i] = top * scale;
      }
    }
  }
  // before, now: the rows' maxima.
  __device__ void put_weights(const S& shared, const float (&before)[2], const float (&now)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float subtracted = finite_maximum(now[i]);
      sum[i] *= exp2_approximate(before[i] - subtracted);
      bf16* row = shared.weights(first_row + lane_in_warp() / 4 + 8 * i) + part * mma_k +
                  lane_in_warp() % 4 * 2;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float x = exp2_approximate(scores[j][2 * i] * scale - subtracted);
        const float y = exp2_approximate(scores[j][2 * i + 1] * scale - subtracted);
        sum[i] += x + y;
        *reinterpret_cast<uint32_t*>(row + j * mma_cols) = pack_bf16x2(x, y);
      }
    }
  }
  __device__ void put_sums(const S& shared) const {
    for (int i = 0; i < 2; ++i) {
      const float total = quad_sum(sum[i]);
      if (lane_in_warp() % 4 == 0) {
        shared.of_rows(part)[first_row + lane_in_warp() / 4 + 8 * i] = total;
      }
    }
  }
};

// One row's columns of this warp; `all`: this warp stores what the row has besides.
template <int n_cols>
__device__ inline void store_row(const Pairs& pairs,
                                 int r,
                                 int i,
                                 int32_t split,
                                 float maximum,
                                 float sum,
                                 int first_column,
                                 bool all,
                                 const float (&out)[n_cols][4]) {
  const AttentionCall& call = pairs.call;
  const bool whole = call.n_splits == 1;
  const int64_t i_row = pairs.tile.first + r / pairs.group.n;
  const int64_t at = whole ? pairs.at(r) : i_row * call.n_heads + pairs.head(r);
  const int64_t at_split = at * call.n_splits + split;
  const float factor = whole ? row_factor(call, pairs.head(r), maximum, sum) : 1.0F;
  if (all && whole) store_lse(call, at, maximum, sum);
  if (all && !whole) {
    split_stats(call, at_split)[0] = maximum;
    split_stats(call, at_split)[1] = sum;
  }
#pragma unroll
  for (int n = 0; n < n_cols; ++n) {
    const int d = first_column + n * mma_cols + lane_in_warp() % 4 * 2;
    if (d >= call.kv.v_dim) continue;
    const float x = out[n][2 * i] * factor;
    const float y = out[n][2 * i + 1] * factor;
    if (whole) {
      store_pair(call, at * call.kv.v_dim + d, x, y);
    } else {
      float* to = call.partial + at_split * call.kv.v_dim + d;
      to[0] = x;
      to[1] = y;
    }
  }
}

// grid: x = tile * n_splits + split, y = group.
template <int dim, int v_dim, int n_row_tiles, bool v_in_k>
__global__ void __launch_bounds__(n_threads, 1) attend_wide_kernel(AttentionCall call) {
  using S = Shared<dim, v_dim, n_row_tiles, v_in_k>;
  constexpr int n_keys = S::n_keys;
  constexpr int n_cols = v_dim / n_warps / mma_cols;
  const Split split = split_of_block(call);
  const Pairs pairs{call, call.tiles[split.row], call.groups[blockIdx.y]};
  const AttentionTile& tile = pairs.tile;
  const PagedKv& kv = call.kv;
  const S shared;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int first_column = warp * (v_dim / n_warps);
  const int32_t table = call.rows[tile.first].table;
  const KeyRange keys =
      keys_of_split(call, {0, table, tile.first_key, tile.end_key}, split, n_keys);
  if (is_empty_split(call, pairs.group, split, keys, tile.first, tile.n_rows)) return;
  const int n_tiles =
      keys.first < keys.end ? static_cast<int>((keys.end - keys.first + n_keys - 1) / n_keys) : 0;

  const auto put_slot = [&](int t) {
    if (threadIdx.x >= n_keys) return;
    const int64_t key = keys.first + int64_t{t} * n_keys + threadIdx.x;
    shared.slots(t)[threadIdx.x] =
        key < keys.end ? key_slot(kv, table, pairs.group.kv_head, static_cast<int32_t>(key)) : -1;
  };
  const auto load_keys = [&](int t) {
    const auto slot = [&](int r) { return shared.slots(t)[r]; };
    load_rows<n_threads>(shared.k(t), n_keys, kv.k, kv.head_dim, kv.head_dim, slot);
    if constexpr (!v_in_k) {
      load_rows<n_threads>(shared.v(t), n_keys, kv.v, kv.v_dim, kv.v_dim, slot);
    }
  };
  put_slot(0);
  put_slot(1);
  load_rows<n_threads>(shared.q(), S::n_rows, call.q, kv.head_dim, kv.head_dim, [&](int r) {
    return pairs.has(r) ? pairs.at(r) : int64_t{-1};
  });
  __syncthreads();
  if (n_tiles > 0) load_keys(0);
  copy_async_commit();

  Unit<S> unit(pairs, warp % S::n_units, n_row_tiles);
  const bool has_unit = warp < S::n_units;
  Maxima<n_row_tiles> maxima;
  float out[n_row_tiles][n_cols][4];
#pragma unroll
  for (int m = 0; m < n_row_tiles; ++m) {
    for (float& x : maxima.of[m]) x = -INFINITY;
#pragma unroll
    for (auto& column : out[m]) {
      for (float& x : column) x = 0.0F;
    }
  }
  for (int t = 0; t < n_tiles; ++t) {
    copy_async_wait<0>();
    __syncthreads();  // tile t is there, and nobody uses tile t - 1 any more
    if (t + 1 < n_tiles) load_keys(t + 1);
    copy_async_commit();
    put_slot(t + 2);
    if (has_unit) {
      unit.score(shared, pairs, t, static_cast<int32_t>(keys.first) + t * n_keys);
    }
    __syncthreads();
    float before[2] = {};
    float now[2] = {};
#pragma unroll
    for (int m = 0; m < n_row_tiles; ++m) {
      if (m * mma_rows == unit.first_row) {
        before[0] = maxima.of[m][0];
        before[1] = maxima.of[m][1];
      }
    }
    raise_maxima(shared, maxima, out);
#pragma unroll
    for (int m = 0; m < n_row_tiles; ++m) {
      if (m * mma_rows == unit.first_row) {
        now[0] = maxima.of[m][0];
        now[1] = maxima.of[m][1];
      }
    }
    if (has_unit) unit.put_weights(shared, before, now);
    __syncthreads();
    if constexpr (v_in_k) {
      add_columns(shared, shared.k(t), first_column, out);
    } else {
      add_columns(shared, shared.v(t), first_column, out);
    }
  }
  copy_async_wait<0>();
  __syncthreads();
  if (has_unit) unit.put_sums(shared);
  __syncthreads();
#pragma unroll
  for (int m = 0; m < n_row_tiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = m * mma_rows + lane_in_warp() / 4 + 8 * i;
      float sum = 0.0F;
      for (int part = 0; part < S::n_key_parts; ++part) sum += shared.of_rows(part)[r];
      if (!pairs.has(r)) continue;
      store_row(pairs,
                r,
                i,
                split.index,
                maxima.of[m][i],
                sum,
                first_column,
                warp == 0 && lane_in_warp() % 4 == 0,
                out[m]);
    }
  }
}

template <int dim, int v_dim, int n_row_tiles, bool v_in_k>
void launch_wide(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  launch(queue,
         attend_wide_kernel<dim, v_dim, n_row_tiles, v_in_k>,
         {dim3(static_cast<unsigned>(launch_of.n_rows * call.n_splits),
               static_cast<unsigned>(launch_of.n_groups)),
          dim3(n_threads),
          Shared<dim, v_dim, n_row_tiles, v_in_k>::n_bytes},
         call);
}

template <int dim, int v_dim, bool v_in_k>
void launch_for_pairs(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  if (launch_of.max_pairs <= mma_rows) {
    launch_wide<dim, v_dim, 1, v_in_k>(queue, call, launch_of);
  } else {
    launch_wide<dim, v_dim, 4, v_in_k>(queue, call, launch_of);
  }
}

}  // namespace

bool can_attend_wide(const KvView& kv) {
  return kv.dtype == DType::BF16 && kv.head_dim % piece == 0 && kv.v_dim % piece == 0 &&
         kv.head_dim <= (kv.v == nullptr ? 576 : 512) && kv.v_dim <= 512;
}

void attend_wide(Queue& queue, const AttentionCall& call, const AttentionLaunch& launch_of) {
  if (call.kv.v == nullptr) return launch_for_pairs<576, 512, true>(queue, call, launch_of);
  launch_for_pairs<512, 512, false>(queue, call, launch_of);
}

}  // namespace testbed::cuda
