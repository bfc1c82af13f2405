#include "kernels/cpu/routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace testbed::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
// A thread is worth waking for this many rows.
constexpr int64_t granule_rows = 16;

void softmax(std::span<float> x) {
  float maximum = -infinity;
  for (const float v : x) maximum = std::max(maximum, v);
  float sum = 0.0F;
  for (float& v : x) {
    v = std::exp(v - maximum);
    sum += v;
  }
  for (float& v : x) v /= sum;
}

// The best k of values where allowed, best first: the first of equals. NaN is never better; the
// first allowed is taken where nothing is. Quadratic, for small k.
void best_of(std::span<const float> values,
             std::vector<uint8_t>& allowed,
             std::span<int32_t> chosen) {
  for (int32_t& slot : chosen) {
    size_t best = values.size();
    float value = -infinity;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] > value && allowed[i] != 0) {
        best = i;
        value = values[i];
      }
    }
    if (best == values.size()) {
      best = static_cast<size_t>(std::find(allowed.begin(), allowed.end(), uint8_t{1}) -
                                 allowed.begin());
    }
    CHECK(best < values.size());
    allowed[best] = 0;
    slot = static_cast<int32_t>(best);
  }
}

float group_score(std::span<const float> group, GroupScore rule) {
  float first = -infinity;
  float second = -infinity;
  for (const float v : group) {
    second = std::max(second, std::min(first, v));
    first = std::max(first, v);
  }
  return rule == GroupScore::maximum || group.size() == 1 ? first : first + second;
}

// Routes one row after another; the vectors are reused.
class RowRouter {
 public:
  RowRouter(const RoutingParams& params, int64_t n_experts)
      : rule_(params.rule),
        bias_(values_of(params.selection_bias)),
        expert_scale_(values_of(params.expert_scale)),
        scores_(static_cast<size_t>(n_experts)),
        preference_(static_cast<size_t>(n_experts)),
        allowed_(static_cast<size_t>(n_experts)),
        group_scores_(static_cast<size_t>(rule_.n_groups)),
        group_allowed_(static_cast<size_t>(rule_.n_groups)),
        groups_(static_cast<size_t>(rule_.top_k_groups)) {}

  void route(const float* logits, std::span<int32_t> ids, std::span<float> weights) {
    std::copy_n(logits, scores_.size(), scores_.begin());
    score(scores_);
    preference_ = scores_;
    for (size_t e = 0; e < bias_.size(); ++e) preference_[e] += bias_[e];
    allow_best_groups();
    best_of(preference_, allowed_, ids);
    weigh(ids, weights);
    sort(ids, weights);
  }

 private:
  static std::span<const float> values_of(TensorView t) {
    if (t.empty()) return {};
    return {t.as<float>(), static_cast<size_t>(t.n_elements())};
  }

  void score(std::span<float> scores) const {
    if (rule_.score == RouterScore::softmax) softmax(scores);
    if (rule_.score == RouterScore::sigmoid) {
      for (float& s : scores) s = 1.0F / (1.0F + std::exp(-s));
    }
  }

  void allow_best_groups() {
    if (rule_.top_k_groups == rule_.n_groups) {
      std::fill(allowed_.begin(), allowed_.end(), uint8_t{1});
      return;
    }
    const size_t size = preference_.size() / group_scores_.size();
    for (size_t g = 0; g < group_scores_.size(); ++g) {
      group_scores_[g] =
          group_score(std::span(preference_).subspan(g * size, size), rule_.group_score);
    }
    std::fill(group_allowed_.begin(), group_allowed_.end(), uint8_t{1});
    best_of(group_scores_, group_allowed_, groups_);
    std::fill(allowed_.begin(), allowed_.end(), uint8_t{0});
    for (const int32_t g : groups_) {
      std::fill_n(allowed_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(g) * size),
                  size,
                  uint8_t{1});
    }
  }

  void weigh(std::span<const int32_t> ids, std::span<float> weights) const {
    for (size_t i = 0; i < ids.size(); ++i) weights[i] = scores_[static_cast<size_t>(ids[i])];
    if (rule_.score == RouterScore::top_k_softmax) softmax(weights);
    float divisor = 1.0F;
    if (rule_.renormalise) {
      float sum = 0.0F;
      for (const float w : weights) sum += w;
      divisor = sum + 1e-20F;  // DeepSeek-V3's: scores may all underflow
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      weights[i] = weights[i] / divisor * static_cast<float>(rule_.scale);
      if (!expert_scale_.empty()) weights[i] *= expert_scale_[static_cast<size_t>(ids[i])];
    }
  }

  // By insertion: for few, and with comparisons only.
  static void sort(std::span<int32_t> ids, std::span<float> weights) {
    for (size_t i = 1; i < ids.size(); ++i) {
      for (size_t j = i; j > 0; --j) {
        const bool before =
            weights[j] > weights[j - 1] || (weights[j] == weights[j - 1] && ids[j] < ids[j - 1]);
        if (!before) break;
        std::swap(weights[j], weights[j - 1]);
        std::swap(ids[j], ids[j - 1]);
      }
    }
  }

  const RoutingRule& rule_;
  std::span<const float> bias_;
  std::span<const float> expert_scale_;
  std::vector<float> scores_;      // what the weights are made of
  std::vector<float> preference_;  // what the choice is made by
  std::vector<uint8_t> allowed_;
  std::vector<float> group_scores_;
  std::vector<uint8_t> group_allowed_;
  std::vector<int32_t> groups_;
};

}  // namespace

void route(TensorView logits,
           const RoutingParams& params,
           TensorView ids,
           TensorView weights,
           ThreadPool& pool) {
  const int64_t n_experts = logits.shape()[-1];
  const int64_t top_k = params.rule.top_k;
  CHECK(logits.dtype() == DType::F32);
  pool.parallel_for(logits.n_rows(), granule_rows, [&](int64_t begin, int64_t end) {
    RowRouter router(params, n_experts);
    for (int64_t row = begin; row < end; ++row) {
      router.route(logits.as<float>() + row * n_experts,
                   {ids.as<int32_t>() + row * top_k, static_cast<size_t>(top_k)},
                   {weights.as<float>() + row * top_k, static_cast<size_t>(top_k)});
    }
  });
}

}  // namespace testbed::cpu
