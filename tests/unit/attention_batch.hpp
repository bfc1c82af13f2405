// Batches of attention over a paged cache with scattered blocks, and what they should give by plain
// sums in double. Cache memory that holds no key is NaN.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "kernels/cpu/attention.hpp"
#include "tests/unit/isas.hpp"
#include "tests/unit/tolerance.hpp"

namespace testbed::cpu {

// A reproducible value in [-1, 1), exact in bf16.
inline float noise(uint64_t index) {
  uint64_t z = index * 0x9e3779b97f4a7c15U + 0x7654321U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return to_f32(to_bf16(static_cast<float>(static_cast<int32_t>(z >> 32)) * 0x1p-31F));
}

inline void put(TensorView t, int64_t i, float value) {
  if (t.dtype() == DType::F32) {
    t.as<float>()[i] = value;
  } else {
    t.as<bf16>()[i] = to_bf16(value);
  }
}
inline double get(TensorView t, int64_t i) {
  return static_cast<double>(t.dtype() == DType::F32 ? t.as<float>()[i] : to_f32(t.as<bf16>()[i]));
}

struct AttentionDims {
  DType dtype = DType::F32;
  int64_t n_heads = 1;
  int64_t n_kv_heads = 1;
  int64_t head_dim = 16;
  int64_t v_dim = 0;    // 0: head_dim
  bool v_in_k = false;  // values are the first v_dim elements of keys
  int64_t block_size = 16;
  int64_t window = 0;
  float scale = 0.25F;
  float softcap = 0.0F;
  bool with_sinks = false;
  bool partial = false;  // F32 out and log-sum-exp; sinks wait
};

// One sequence: positions of its query rows and of the keys at hand.
struct AttentionRequest {
  std::vector<PositionRun> rows;
  std::vector<PositionRun> keys;
};
// The last n_rows positions of a sequence whose keys are all cached.
inline AttentionRequest plain(int64_t first_position, int64_t n_rows) {
  return {{{first_position, n_rows}}, {{0, first_position + n_rows}}};
}

class AttentionBatch {
 public:
  AttentionBatch(const AttentionDims& dims, std::vector<AttentionRequest> requests);

  int64_t n_rows() const { return q_.shape()[0]; }
  const AttentionDims& dims() const { return dims_; }
  TensorView q() const { return q_; }
  TensorView out() const { return out_; }
  TensorView lse() const { return lse_; }  // empty unless partial
  TensorView sinks() const { return sinks_; }
  KvView kv() const {
    return {k_.data(),
            dims_.v_in_k ? nullptr : v_.data(),
            dims_.dtype,
            n_blocks_,
            dims_.block_size,
            dims_.n_kv_heads,
            dims_.head_dim,
            dims_.v_dim};
  }

  // What to compute, on whatever device; borrows from this. out is NaN until then.
  AttentionArgs args();
  void run(Isa isa, int n_threads) {
    ThreadPool pool(n_threads, false);
    paged_attention(args(), pool, isa);
  }

  // Compares every row, by default of this batch's own results.
  void expect_correct(Isa isa) { expect_equal(isa, out_, lse_, 1.0); }
  // Where pairs of bf16 are multiplied, the weights are such numbers.
  void expect_equal(Isa isa, TensorView out, TensorView lse, double roundings) {
    const bool pairs = isa == Isa::avx512_bf16 && dims_.dtype == DType::BF16;
    expect_equal(isa_name(isa), out, lse, roundings, pairs ? tolerance::bf16_rounding : 0.0);
  }
  // roundings: how many times the bound of one pass over the keys is allowed. weight_rounding: the
  // relative error of each weight that multiplies a value, beyond that.
  void expect_equal(std::string_view who,
                    TensorView out,
                    TensorView lse,
                    double roundings,
                    double weight_rounding);

  std::vector<int32_t> head_to_kv;

 private:
  struct Expected {
    std::vector<double> out;
    std::vector<double> magnitude;  // the same sums of |values|
    double lse = 0;
    double bound = 0;  // of an element of out, and of lse
  };

  float key(int64_t request, int64_t kv_head, int64_t j, int64_t d) const {
    return 2 * noise(seed(1, request, kv_head, j, d));
  }
  float value(int64_t request, int64_t kv_head, int64_t j, int64_t d) const {
    return dims_.v_in_k ? key(request, kv_head, j, d) : noise(seed(2, request, kv_head, j, d));
  }
  static uint64_t seed(uint64_t what, int64_t request, int64_t head, int64_t j, int64_t d) {
    const auto sequence_and_head = static_cast<uint64_t>(request * 128 + head);
    return ((what * 16384 + sequence_and_head) * 65536 + static_cast<uint64_t>(j)) * 1024 +
           static_cast<uint64_t>(d);
  }
  int64_t blocks_of(const AttentionRequest& r) const;
  void add(const AttentionRequest& r);
  void add_keys(int64_t request, const KvBlock& block);
  Expected expected(int64_t request, int64_t position, int64_t h) const;
  Expected weighted(const std::vector<double>& scores,
                    const std::vector<int64_t>& keys,
                    int64_t request,
                    int64_t h) const;

  AttentionDims dims_;
  std::vector<AttentionRequest> requests_;
  int64_t n_blocks_ = 0;
  int64_t next_block_ = 0;
  int64_t next_row_ = 0;
  Tensor q_, out_, lse_, sinks_, k_, v_;
  std::vector<std::vector<KvBlock>> blocks_;
  std::vector<AttentionSequence> sequences_;
  std::vector<Expected> expected_;  // by row and head, once computed
};

inline AttentionBatch::AttentionBatch(const AttentionDims& dims,
                                      std::vector<AttentionRequest> requests)
    : dims_(dims), requests_(std::move(requests)) {
  if (dims_.v_dim == 0) dims_.v_dim = dims.head_dim;
  int64_t n_rows = 0;
  for (const AttentionRequest& r : requests_) {
    for (const PositionRun& run : r.rows) n_rows += run.n;
    n_blocks_ += blocks_of(r);
  }
  q_ = Tensor(dims.dtype, {n_rows, dims.n_heads, dims.head_dim});
  out_ = Tensor(dims.partial ? DType::F32 : dims.dtype, {n_rows, dims.n_heads, dims_.v_dim});
  if (dims.partial) lse_ = Tensor(DType::F32, {n_rows, dims.n_heads});
  k_ = Tensor(dims.dtype, {n_blocks_, dims.n_kv_heads, dims.block_size, dims.head_dim});
  if (!dims.v_in_k) {
    v_ = Tensor(dims.dtype, {n_blocks_, dims.n_kv_heads, dims.block_size, dims_.v_dim});
  }
  for (const Tensor* t : {&k_, &v_}) {
    for (int64_t i = 0; i < t->n_elements(); ++i) put(*t, i, std::nanf(""));
  }
  if (dims.with_sinks) {
    sinks_ = Tensor(DType::F32, {dims.n_heads});
    for (int64_t h = 0; h < dims.n_heads; ++h) put(sinks_, h, 3 * noise(seed(4, 0, h, 0, 0)));
  }
  for (int64_t h = 0; h < dims.n_heads; ++h) {
    head_to_kv.push_back(static_cast<int32_t>(h * dims.n_kv_heads / dims.n_heads));
  }
  for (const AttentionRequest& r : requests_) add(r);
}

// Runs are cut into blocks at multiples of the block size.
inline int64_t AttentionBatch::blocks_of(const AttentionRequest& r) const {
  int64_t n = 0;
  for (const PositionRun& run : r.keys) {
    if (run.n > 0) n += (run.end() - 1) / dims_.block_size - run.first / dims_.block_size + 1;
  }
  return n;
}

inline void AttentionBatch::add(const AttentionRequest& r) {
  const auto request = static_cast<int64_t>(blocks_.size());
  std::vector<KvBlock> blocks;
  for (const PositionRun& run : r.keys) {
    for (int64_t j = run.first; j < run.end();) {
      const int64_t end = std::min(run.end(), (j / dims_.block_size + 1) * dims_.block_size);
      blocks.push_back({.block = static_cast<int32_t>(n_blocks_ - 1 - next_block_++),  // reversed
                        .n_tokens = static_cast<int32_t>(end - j),
                        .first_position = j});
      add_keys(request, blocks.back());
      j = end;
    }
  }
  blocks_.push_back(blocks);
  const int64_t first_row = next_row_;
  for (const PositionRun& run : r.rows) {
    for (int64_t position = run.first; position < run.end(); ++position, ++next_row_) {
      for (int64_t i = 0; i < dims_.n_heads * dims_.head_dim; ++i) {
        put(q_,
            next_row_ * dims_.n_heads * dims_.head_dim + i,
            2 * noise(seed(3, request, i / dims_.head_dim, position, i % dims_.head_dim)));
      }
    }
  }
  sequences_.push_back({.first_row = first_row, .n_rows = next_row_ - first_row});
}

inline void AttentionBatch::add_keys(int64_t request, const KvBlock& block) {
  for (int64_t g = 0; g < dims_.n_kv_heads; ++g) {
    for (int64_t slot = 0; slot < block.n_tokens; ++slot) {
      const int64_t j = block.first_position + slot;
      const int64_t at = (block.block * dims_.n_kv_heads + g) * dims_.block_size + slot;
      for (int64_t d = 0; d < dims_.head_dim; ++d) {
        put(k_, at * dims_.head_dim + d, key(request, g, j, d));
      }
      if (dims_.v_in_k) continue;
      for (int64_t d = 0; d < dims_.v_dim; ++d) {
        put(v_, at * dims_.v_dim + d, value(request, g, j, d));
      }
    }
  }
}

inline AttentionArgs AttentionBatch::args() {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    sequences_[i].rows = requests_[i].rows;
    sequences_[i].keys = requests_[i].keys;
    sequences_[i].blocks = blocks_[i];
  }
  for (int64_t i = 0; i < out_.n_elements(); ++i) put(out_, i, std::nanf(""));
  return {.q = q_,
          .kv = kv(),
          .sequences = sequences_,
          .window = dims_.window,
          .scale = dims_.scale,
          .softcap = dims_.softcap,
          .head_to_kv = head_to_kv,
          .sinks = sinks_,
          .out = out_,
          .lse = lse_};
}

inline AttentionBatch::Expected AttentionBatch::expected(int64_t request,
                                                         int64_t position,
                                                         int64_t h) const {
  const int64_t kv_head = head_to_kv[static_cast<size_t>(h)];
  std::vector<double> scores;
  std::vector<int64_t> keys;
  double norm = 0;
  for (const PositionRun& run : requests_[static_cast<size_t>(request)].keys) {
    for (int64_t j = run.first; j < run.end(); ++j) {
      if (j > position || (dims_.window > 0 && j <= position - dims_.window)) continue;
      double score = 0;
      double q_norm = 0;
      double k_norm = 0;
      for (int64_t d = 0; d < dims_.head_dim; ++d) {
        const auto q = static_cast<double>(2 * noise(seed(3, request, h, position, d)));
        const auto k = static_cast<double>(key(request, kv_head, j, d));
        score += q * k;
        q_norm += q * q;
        k_norm += k * k;
      }
      score *= static_cast<double>(dims_.scale);
      const auto cap = static_cast<double>(dims_.softcap);
      keys.push_back(j);
      scores.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
      norm = std::max(norm, static_cast<double>(dims_.scale) * std::sqrt(q_norm * k_norm));
    }
  }
  Expected e = weighted(scores, keys, request, h);
  const auto n_keys = static_cast<int64_t>(keys.size());
  const double largest_v = dims_.v_in_k ? 2.0 : 1.0;
  e.bound = tolerance::attention(dims_.head_dim, norm, n_keys, largest_v);
  // tanh, its argument and the product: four roundings each of at most the cap; an error of the
  // scores counts twice, as in tolerance::attention.
  e.bound += 2 * 4 * tolerance::store(DType::F32, static_cast<double>(dims_.softcap)) * largest_v;
  return e;
}

inline AttentionBatch::Expected AttentionBatch::weighted(const std::vector<double>& scores,
                                                         const std::vector<int64_t>& keys,
                                                         int64_t request,
                                                         int64_t h) const {
  Expected e{.out = std::vector<double>(static_cast<size_t>(dims_.v_dim)),
             .magnitude = std::vector<double>(static_cast<size_t>(dims_.v_dim)),
             .lse = -std::numeric_limits<double>::infinity()};
  if (keys.empty()) return e;
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (size_t n = 0; n < keys.size(); ++n) {
    const double p = std::exp(scores[n] - maximum);
    sum += p;
    for (int64_t d = 0; d < dims_.v_dim; ++d) {
      const float v = value(request, head_to_kv[static_cast<size_t>(h)], keys[n], d);
      e.out[static_cast<size_t>(d)] += p * static_cast<double>(v);
      e.magnitude[static_cast<size_t>(d)] += p * std::abs(static_cast<double>(v));
    }
  }
  e.lse = maximum + std::log(sum);
  if (dims_.with_sinks && !dims_.partial) sum += std::exp(get(sinks_, h) - maximum);
  for (double& x : e.out) x /= sum;
  for (double& x : e.magnitude) x /= sum;
  return e;
}

inline void AttentionBatch::expect_equal(std::string_view who,
                                         TensorView out,
                                         TensorView lse,
                                         double roundings,
                                         double weight_rounding) {
  if (expected_.empty()) {
    for (size_t s = 0; s < requests_.size(); ++s) {
      for (const PositionRun& run : requests_[s].rows) {
        for (int64_t p = run.first; p < run.end(); ++p) {
          for (int64_t h = 0; h < dims_.n_heads; ++h) {
            expected_.push_back(expected(static_cast<int64_t>(s), p, h));
          }
        }
      }
    }
  }
  for (size_t row = 0; row < expected_.size(); ++row) {
    const Expected& e = expected_[row];
    const double bound = roundings * e.bound;
    const auto at = static_cast<int64_t>(row);
    for (int64_t d = 0; d < dims_.v_dim; ++d) {
      const double want = e.out[static_cast<size_t>(d)];
      const double near = bound + weight_rounding * e.magnitude[static_cast<size_t>(d)];
      ASSERT_NEAR(get(out, at * dims_.v_dim + d),
                  want,
                  near + tolerance::store(out.dtype(), std::abs(want) + near))
          << who << " row " << at / dims_.n_heads << " head " << at % dims_.n_heads << " element "
          << d;
    }
    if (lse.empty()) continue;
    if (std::isinf(e.lse)) {
      ASSERT_EQ(get(lse, at), e.lse) << who << " row " << at / dims_.n_heads;
    } else {
      ASSERT_NEAR(get(lse, at), e.lse, bound + roundings * tolerance::store(DType::F32, e.lse))
          << who << " row " << at / dims_.n_heads;
    }
  }
}

}  // namespace testbed::cpu
