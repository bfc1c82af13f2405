// Merges of attention's results by log-sum-exp: the splits of a row, the parts of a ring, and the
// sinks' share. A warp per (query row, head); each reads its inputs once and writes its result
// once: memory.
#include "kernels/cuda/attention_code.cuh"
#include "kernels/cuda/launch.cuh"

namespace testbed::cuda {
namespace {

constexpr int n_warps = 4;

__device__ inline int64_t warp_index() {
  return int64_t{blockIdx.x} * n_warps + threadIdx.x / warp_size;
}
__device__ inline int lane_index() { return static_cast<int>(threadIdx.x % warp_size); }

LaunchShape warps(int64_t n) {
  return {dim3(static_cast<unsigned>(divide_up(n, n_warps))), dim3(n_warps * warp_size)};
}

__global__ void merge_splits_kernel(AttentionCall call) {
  const int64_t i = warp_index();
  if (i >= int64_t{call.n_rows} * call.n_heads) return;
  const auto head = static_cast<int32_t>(i % call.n_heads);
  const int64_t first = i * call.n_splits;
  float maximum = -INFINITY;
  for (int s = lane_index(); s < call.n_splits; s += warp_size) {
    maximum = fmaxf(maximum, split_stats(call, first + s)[0]);
  }
  maximum = warp_max(maximum);
  float sum = 0.0F;
  for (int s = lane_index(); s < call.n_splits; s += warp_size) {
    const float* stats = split_stats(call, first + s);
    sum += stats[1] * exp2f(stats[0] - finite_maximum(maximum));
  }
  sum = warp_sum(sum);
  const int64_t at = int64_t{call.rows[i / call.n_heads].row} * call.n_heads + head;
  const float factor = row_factor(call, head, maximum, sum);
  for (int d = lane_index(); d < call.kv.v_dim; d += warp_size) {
    float x = 0.0F;
    for (int s = 0; s < call.n_splits; ++s) {
      const float split_maximum = split_stats(call, first + s)[0];
      if (split_maximum == -INFINITY) continue;
      const float weight = exp2f(split_maximum - finite_maximum(maximum));
      x += weight * call.partial[(first + s) * call.kv.v_dim + d];
    }
    store_out(call, at * call.kv.v_dim + d, x * factor);
  }
  if (lane_index() == 0) store_lse(call, at, maximum, sum);
}

__global__ void merge_kernel(float* total,
                             float* total_lse,
                             const float* part,
                             const float* part_lse,
                             int64_t n_rows,
                             int64_t dim) {
  const int64_t row = warp_index();
  if (row >= n_rows) return;
  const float other = part_lse[row];
  if (other == -INFINITY) return;
  const float own = total_lse[row];
  const float maximum = fmaxf(own, other);
  const float keep = expf(own - maximum);
  const float add = expf(other - maximum);
  const float sum = keep + add;
  for (int64_t d = lane_index(); d < dim; d += warp_size) {
    float* x = total + row * dim + d;
    *x = *x * (keep / sum) + part[row * dim + d] * (add / sum);
  }
  __syncwarp();
  if (lane_index() == 0) total_lse[row] = maximum + logf(sum);
}

// What of the weight stays beside a sink: exp(lse) / (exp(lse) + exp(sink)).
template <typename T>
__global__ void finish_kernel(const float* total,
                              const float* lse,
                              const float* sinks,
                              T* out,
                              int64_t n_rows,
                              int64_t n_heads,
                              int64_t dim) {
  const int64_t row = warp_index();
  if (row >= n_rows) return;
  float factor = 1.0F;
  if (sinks != nullptr) {
    factor = lse[row] == -INFINITY ? 0.0F : 1.0F / (1.0F + expf(sinks[row % n_heads] - lse[row]));
  }
  for (int64_t d = lane_index(); d < dim; d += warp_size) {
    store_one(out + row * dim + d, total[row * dim + d] * factor);
  }
}

template <typename T>
void launch_finish(
    Queue& queue, TensorView total, TensorView total_lse, TensorView sinks, TensorView out) {
  launch(queue,
         finish_kernel<T>,
         warps(total_lse.n_elements()),
         total.as<float>(),
         total_lse.as<float>(),
         sinks.empty() ? nullptr : sinks.as<float>(),
         out.as<T>(),
         total_lse.n_elements(),
         total.shape()[1],
         total.shape()[2]);
}

}  // namespace

void merge_splits(Queue& queue, const AttentionCall& call) {
  launch(queue, merge_splits_kernel, warps(int64_t{call.n_rows} * call.n_heads), call);
}

void merge_attention(
    Queue& queue, TensorView total, TensorView total_lse, TensorView part, TensorView part_lse) {
  CHECK(total.shape().rank() == 3 && total.shape() == part.shape());
  CHECK(total_lse.n_elements() == part_lse.n_elements());
  if (total.empty()) return;
  launch(queue,
         merge_kernel,
         warps(total_lse.n_elements()),
         total.as<float>(),
         total_lse.as<float>(),
         part.as<float>(),
         part_lse.as<float>(),
         total_lse.n_elements(),
         total.shape()[2]);
}

void finish_attention(
    Queue& queue, TensorView total, TensorView total_lse, TensorView sinks, TensorView out) {
  CHECK(total.shape().rank() == 3 && out.n_elements() == total.n_elements());
  if (total.empty()) return;
  if (out.dtype() == DType::F32) {
    launch_finish<float>(queue, total, total_lse, sinks, out);
  } else {
    launch_finish<bf16>(queue, total, total_lse, sinks, out);
  }
}

}  // namespace testbed::cuda
