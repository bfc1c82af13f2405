#include "kernels/cost.hpp"

#include <algorithm>

namespace testbed {

OpCost linear_cost(
    int64_t m, int64_t n, int64_t k, int64_t model_rows, DType weight, DType activation) {
  return {.flops = 2 * m * n * k,
          .model_flops = 2 * m * model_rows * k,
          .weight_bytes = dtype_bytes(weight, n * k),
          .activation_bytes = dtype_bytes(activation, m * k) + dtype_bytes(activation, m * n)};
}

OpCost embed_cost(int64_t m, int64_t n_gathered, int64_t d_model, DType weight, DType activation) {
  return {.weight_bytes = n_gathered * dtype_bytes(weight, d_model),
          .activation_bytes = dtype_bytes(activation, m * d_model)};
}

OpCost norm_cost(int64_t n_rows, int64_t d, bool with_residual, DType activation) {
  const int64_t passes = with_residual ? 4 : 2;  // x, y; with a residual also read and written
  return {.flops = (with_residual ? 5 : 4) * n_rows * d,
          .weight_bytes = dtype_bytes(DType::F32, d),
          .activation_bytes = passes * dtype_bytes(activation, n_rows * d)};
}

OpCost rope_cost(int64_t n_elements, DType activation) {
  return {.flops = 3 * n_elements, .activation_bytes = 2 * dtype_bytes(activation, n_elements)};
}

OpCost kv_write_cost(int64_t n_rows, int64_t n_kv_heads, int64_t head_dim, DType dtype) {
  const int64_t bytes = 2 * dtype_bytes(dtype, n_rows * n_kv_heads * head_dim);
  return {.kv_write_bytes = bytes, .activation_bytes = bytes};
}

int64_t visible_tokens(const AttentionSequence& s, int64_t window) {
  const int64_t end = s.first_position + s.n_rows;
  const int64_t begin = window > 0 ? std::max<int64_t>(0, s.first_position - window + 1) : 0;
  return s.n_rows > 0 ? end - begin : 0;
}

int64_t visible_pairs(const AttentionSequence& s, int64_t window) {
  // Query at position p sees min(p + 1, window) keys. Sum the ramp, then the plateau.
  const int64_t first = s.first_position + 1;
  const int64_t last = s.first_position + s.n_rows;
  const int64_t limit = window > 0 ? window : last;
  const int64_t ramp_last = std::min(last, limit);
  const int64_t ramp = first <= ramp_last ? (first + ramp_last) * (ramp_last - first + 1) / 2 : 0;
  const int64_t plateau = last - std::max(first - 1, ramp_last);
  return ramp + std::max<int64_t>(0, plateau) * limit;
}

OpCost attention_cost(std::span<const AttentionSequence> sequences,
                      int64_t window,
                      int64_t n_heads,
                      int64_t n_kv_heads,
                      int64_t head_dim,
                      DType dtype) {
  OpCost cost;
  for (const AttentionSequence& s : sequences) {
    cost.flops += 4 * head_dim * n_heads * visible_pairs(s, window);
    cost.kv_bytes += 2 * dtype_bytes(dtype, visible_tokens(s, window) * n_kv_heads * head_dim);
    cost.activation_bytes += 2 * dtype_bytes(dtype, s.n_rows * n_heads * head_dim);
  }
  cost.model_flops = cost.flops;
  return cost;
}

OpCost activation_cost(int64_t m, int64_t d_ff, DType activation) {
  return {.flops = 5 * m * d_ff, .activation_bytes = 3 * dtype_bytes(activation, m * d_ff)};
}

OpCost copy_cost(int64_t n_elements_read, int64_t n_elements_written, DType dtype) {
  return {.activation_bytes =
              dtype_bytes(dtype, n_elements_read) + dtype_bytes(dtype, n_elements_written)};
}

}  // namespace testbed
