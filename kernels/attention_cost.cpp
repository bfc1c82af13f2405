#include "kernels/attention_cost.hpp"

#include <algorithm>
#include <limits>

namespace testbed {
namespace {

// Pairs (p, k), p in rows, k in keys, k <= p.
int64_t causal_pairs(const PositionRun& rows, const PositionRun& keys) {
  // Sum over the first n positions from the keys' start of the keys seen: a ramp to all of them,
  // then a plateau.
  const auto seen = [&](int64_t n) {
    if (n <= 0) return int64_t{0};
    const int64_t ramp = std::min(n, keys.n);
    return ramp * (ramp + 1) / 2 + (n - ramp) * keys.n;
  };
  return seen(rows.end() - keys.first) - seen(rows.first - keys.first);
}

int64_t overlap(int64_t begin, int64_t end, std::span<const PositionRun> keys) {
  int64_t n = 0;
  for (const PositionRun& run : keys) {
    n += std::max<int64_t>(0, std::min(end, run.end()) - std::max(begin, run.first));
  }
  return n;
}

int64_t f32_results(int64_t m, int64_t n_heads, int64_t v_dim) {
  return dtype_bytes(DType::F32, m * n_heads * (v_dim + 1));  // with the log-sum-exp
}

}  // namespace

int64_t visible_tokens(std::span<const PositionRun> rows,
                       std::span<const PositionRun> keys,
                       int64_t window) {
  int64_t n = 0;
  int64_t counted = std::numeric_limits<int64_t>::min();  // positions below it
  for (const PositionRun& run : rows) {
    if (run.n == 0) continue;
    const int64_t begin = window > 0 ? run.first - window + 1 : counted;
    n += overlap(std::max(counted, begin), run.end(), keys);
    counted = run.end();
  }
  return n;
}

int64_t visible_tokens(const AttentionSequence& sequence, int64_t window) {
  return visible_tokens(sequence.rows, sequence.keys, window);
}

int64_t visible_pairs(std::span<const PositionRun> rows,
                      std::span<const PositionRun> keys,
                      int64_t window) {
  int64_t n = 0;
  for (const PositionRun& row_run : rows) {
    for (const PositionRun& key_run : keys) {
      n += causal_pairs(row_run, key_run);
      if (window > 0) n -= causal_pairs({row_run.first - window, row_run.n}, key_run);
    }
  }
  return n;
}

int64_t visible_pairs(const AttentionSequence& sequence, int64_t window) {
  return visible_pairs(sequence.rows, sequence.keys, window);
}

OpCost attention_cost(std::span<const AttentionSequence> sequences,
                      int64_t window,
                      int64_t n_heads,
                      const KvShape& kv,
                      bool partial) {
  OpCost cost;
  for (const AttentionSequence& s : sequences) {
    cost.flops += 2 * (kv.head_dim + kv.v_dim) * n_heads * visible_pairs(s, window);
    const int64_t n_visible = visible_tokens(s, window);
    if (kv.is_cache()) {
      cost.kv_bytes += n_visible * kv.token_bytes();
    } else {
      cost.kv_bytes += dtype_bytes(kv.dtype, n_visible * kv.cached_elements);
      cost.activation_bytes += n_visible * kv.token_bytes();
    }
    cost.activation_bytes += dtype_bytes(kv.dtype, s.n_rows * n_heads * kv.head_dim);
    cost.activation_bytes += partial ? f32_results(s.n_rows, n_heads, kv.v_dim)
                                     : dtype_bytes(kv.dtype, s.n_rows * n_heads * kv.v_dim);
  }
  cost.model_flops = cost.flops;
  return cost;
}

OpCost merge_attention_cost(int64_t m, int64_t n_heads, int64_t v_dim) {
  return {.flops = 3 * m * n_heads * v_dim, .activation_bytes = 3 * f32_results(m, n_heads, v_dim)};
}

OpCost finish_attention_cost(
    int64_t m, int64_t n_heads, int64_t v_dim, bool with_sinks, DType activation) {
  return {.flops = m * n_heads * v_dim,
          .weight_bytes = with_sinks ? dtype_bytes(DType::F32, n_heads) : 0,
          .activation_bytes =
              f32_results(m, n_heads, v_dim) + dtype_bytes(activation, m * n_heads * v_dim)};
}

OpCost kv_write_cost(int64_t n_tokens, const KvShape& kv) {
  const int64_t bytes = n_tokens * kv.token_bytes();
  if (!kv.is_cache()) return {.activation_bytes = 2 * bytes};
  return {.kv_write_bytes = bytes, .activation_bytes = bytes};
}

OpCost gather_blocks_cost(int64_t n_tokens, const KvShape& kv) {
  const int64_t bytes = n_tokens * kv.token_bytes();
  return {.activation_bytes = 2 * bytes};
}

}  // namespace testbed
