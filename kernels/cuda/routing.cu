// The router's choice, a warp for each row, as kernels/cpu/routing.cpp makes it. Reads the logits
// once; bound: latency, of top_k rounds that each find the best of what is left.
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

constexpr int most_experts = 512;
constexpr int64_t block_rows = 4;  // warps

struct Rule {
  int32_t n_experts;
  int32_t top_k;
  int32_t n_groups;
  int32_t top_k_groups;
  float scale;
  RouterScore score;
  GroupScore group_score;
  bool renormalise;
  uint8_t unused = 0;  // no padding: calls are compared by their bytes
};

// Rounded once, as the reference's is in all but few cases: choices are equal.
__device__ inline float exponential(float x) {
  return static_cast<float>(exp(static_cast<double>(x)));
}

struct Found {
  float value;
  int32_t index;
};

// The best of values where a lane allows it, the lowest index of equals; NaN counts as -infinity.
// Lane l has the values l, l + 32, ..., whose bits are in `allowed`; the best one's is cleared.
__device__ inline Found take_best(const float* values, int32_t n, uint32_t& allowed, int32_t lane) {
  Found best{-INFINITY, INT32_MAX};
  for (int32_t i = lane; i < n; i += warp_size) {
    if ((allowed >> (i / warp_size) & 1U) == 0) continue;
    const float value = values[i] > -INFINITY ? values[i] : -INFINITY;
    if (value > best.value || best.index == INT32_MAX) best = {value, i};
  }
  for (int lanes = warp_size / 2; lanes > 0; lanes /= 2) {
    const float value = __shfl_xor_sync(all_lanes, best.value, lanes);
    const int32_t index = __shfl_xor_sync(all_lanes, best.index, lanes);
    if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
  }
  if (best.index % warp_size == lane) allowed &= ~(1U << (best.index / warp_size));
  return best;
}

__device__ inline float group_score_of(const float* group, int32_t size, GroupScore rule) {
  float first = -INFINITY;
  float second = -INFINITY;
  for (int32_t i = 0; i < size; ++i) {
    const float least = group[i] < first ? group[i] : first;
    second = second < least ? least : second;
    first = first < group[i] ? group[i] : first;
  }
  return rule == GroupScore::maximum || size == 1 ? first : first + second;
}

// scores [n_experts] = the logits, or what the rule makes of them. Each lane works on its own.
__device__ inline void score(const Rule& rule, const float* logits, float* scores, int32_t lane) {
  if (rule.score == RouterScore::softmax) {
    float maximum = -INFINITY;
    for (int32_t e = lane; e < rule.n_experts; e += warp_size) maximum = fmaxf(maximum, logits[e]);
    maximum = warp_max(maximum);
    float sum = 0.0F;
    for (int32_t e = lane; e < rule.n_experts; e += warp_size) {
      scores[e] = exponential(logits[e] - maximum);
      sum += scores[e];
    }
    sum = warp_sum(sum);
    for (int32_t e = lane; e < rule.n_experts; e += warp_size) scores[e] /= sum;
    return;
  }
  for (int32_t e = lane; e < rule.n_experts; e += warp_size) {
    const bool sigmoid = rule.score == RouterScore::sigmoid;
    scores[e] = sigmoid ? 1.0F / (1.0F + exponential(-logits[e])) : logits[e];
  }
}

// Bits of this lane's experts that the groups leave. of_groups [n_groups]: room for their scores.
__device__ inline uint32_t allowed_experts(const Rule& rule,
                                           const float* preference,
                                           float* of_groups,
                                           int32_t lane) {
  uint32_t allowed = 0xffffffffU;
  if (rule.top_k_groups == rule.n_groups) return allowed;
  const int32_t size = rule.n_experts / rule.n_groups;
  for (int32_t g = lane; g < rule.n_groups; g += warp_size) {
    of_groups[g] = group_score_of(preference + g * size, size, rule.group_score);
  }
  __syncwarp();
  uint32_t left = 0xffffffffU;  // groups
  for (int32_t i = 0; i < rule.top_k_groups; ++i) take_best(of_groups, rule.n_groups, left, lane);
  for (int32_t g = lane; g < rule.n_groups; g += warp_size) {
    of_groups[g] = static_cast<float>(~left >> (g / warp_size) & 1U);
  }
  __syncwarp();
  for (int32_t e = lane; e < rule.n_experts; e += warp_size) {
    if (of_groups[e / size] == 0.0F) allowed &= ~(1U << (e / warp_size));
  }
  return allowed;
}

// The weight of a lane's chosen expert; `chosen`: whether it has one.
__device__ inline float weigh(const Rule& rule, float weight, bool chosen) {
  if (rule.score == RouterScore::top_k_softmax) {
    const float maximum = warp_max(chosen ? weight : -INFINITY);
    weight = exponential(weight - maximum);
    weight /= warp_sum(chosen ? weight : 0.0F);
  }
  if (!rule.renormalise) return weight * rule.scale;
  // DeepSeek-V3's epsilon: scores may all underflow.
  return weight / (warp_sum(chosen ? weight : 0.0F) + 1e-20F) * rule.scale;
}

// Where a lane's choice belongs: by weight, descending, then by id; NaN last, in order of choice.
__device__ inline int32_t rank_of(float weight, int32_t id, int32_t top_k, int32_t lane) {
  int32_t rank = 0;
  for (int32_t i = 0; i < top_k; ++i) {
    const float other = __shfl_sync(all_lanes, weight, i);
    const int32_t other_id = __shfl_sync(all_lanes, id, i);
    const bool before = weight == weight ? other > weight || (other == weight && other_id < id)
                                         : other == other || i < lane;
    rank += before ? 1 : 0;
  }
  return rank;
}

// ids, weights [n_rows, top_k] of logits [n_rows, n_experts]; bias and expert_scale [n_experts] or
// nullptr.
__global__ void route_rows(const float* logits,
                           const float* bias,
                           const float* expert_scale,
                           int32_t* ids,
                           float* weights,
                           int64_t n_rows,
                           Rule rule) {
  __shared__ float scores_of[block_rows][most_experts];
  __shared__ float preferences_of[block_rows][most_experts];
  __shared__ float groups_of[block_rows][most_experts];
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const int64_t row = int64_t{blockIdx.x} * block_rows + threadIdx.y;
  if (row >= n_rows) return;  // whole warps
  float* const scores = scores_of[threadIdx.y];
  float* const preference = preferences_of[threadIdx.y];
  score(rule, logits + row * rule.n_experts, scores, lane);
  for (int32_t e = lane; e < rule.n_experts; e += warp_size) {
    preference[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
  }
  __syncwarp();
  uint32_t allowed = allowed_experts(rule, preference, groups_of[threadIdx.y], lane);
  int32_t id = 0;  // lane i keeps choice i
  for (int32_t i = 0; i < rule.top_k; ++i) {
    const Found best = take_best(preference, rule.n_experts, allowed, lane);
    if (lane == i) id = best.index;
  }
  const bool chosen = lane < rule.top_k;
  float weight = weigh(rule, scores[id], chosen);
  if (expert_scale != nullptr) weight *= expert_scale[id];
  const int32_t rank = rank_of(weight, id, rule.top_k, lane);
  if (!chosen) return;
  ids[row * rule.top_k + rank] = id;
  weights[row * rule.top_k + rank] = weight;
}

const float* values_of(TensorView x) { return x.empty() ? nullptr : x.as<float>(); }

}  // namespace

void route(Queue& queue,
           TensorView logits,
           const RoutingParams& params,
           TensorView ids,
           TensorView weights) {
  const int64_t n_rows = logits.n_rows();
  const int64_t n_experts = logits.shape()[-1];
  const RoutingRule& rule = params.rule;
  CHECK(logits.dtype() == DType::F32 && n_experts <= most_experts);
  CHECK(rule.top_k >= 1 && rule.top_k <= warp_size && rule.top_k <= n_experts);
  CHECK(n_experts / rule.n_groups * rule.top_k_groups >= rule.top_k);
  if (n_rows == 0) return;
  launch(queue,
         route_rows,
         {dim3(static_cast<unsigned>(divide_up(n_rows, block_rows))),
          dim3(warp_size, static_cast<unsigned>(block_rows))},
         logits.as<float>(),
         values_of(params.selection_bias),
         values_of(params.expert_scale),
         ids.as<int32_t>(),
         weights.as<float>(),
         n_rows,
         Rule{.n_experts = static_cast<int32_t>(n_experts),
              .top_k = static_cast<int32_t>(rule.top_k),
              .n_groups = static_cast<int32_t>(rule.n_groups),
              .top_k_groups = static_cast<int32_t>(rule.top_k_groups),
              .scale = static_cast<float>(rule.scale),
              .score = rule.score,
              .group_score = rule.group_score,
              .renormalise = rule.renormalise});
}

}  // namespace testbed::cuda
