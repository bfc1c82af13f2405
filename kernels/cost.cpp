#include "kernels/cost.hpp"

namespace testbed {

int64_t expansion_ops(int64_t n_weights, const WeightFormat& weight) {
  constexpr int64_t counted_for = 64;
  const auto of_64 = [&]() -> int64_t {
    switch (weight.coding) {
      case WeightCoding::plain:
        return 0;
      case WeightCoding::int8:
        return 392;
      case WeightCoding::fp8:
        return 273;
      case WeightCoding::int4:
        break;
    }
    if (weight.offset == WeightOffset::eight) return 177;
    return weight.offset == WeightOffset::minimum ? 218 : 242;
  }();
  return (n_weights * of_64 + counted_for - 1) / counted_for;
}

OpCost linear_cost(int64_t m,
                   int64_t n,
                   int64_t k,
                   int64_t model_rows,
                   const WeightFormat& weight,
                   DType activation) {
  return {.flops = 2 * m * n * k,
          .model_flops = 2 * m * model_rows * k,
          .weight_bytes = weight.n_bytes(n, k),
          .expansion_ops = expansion_ops(n * k, weight),
          .activation_bytes = dtype_bytes(activation, m * k) + dtype_bytes(activation, m * n)};
}

OpCost grouped_linear_cost(int64_t m,
                           int64_t n_matrices,
                           int64_t n,
                           int64_t k,
                           const WeightFormat& weight,
                           DType activation) {
  OpCost cost = linear_cost(m, n, k, n, weight, activation);
  cost.weight_bytes *= n_matrices;
  cost.expansion_ops *= n_matrices;
  return cost;
}

OpCost embed_cost(
    int64_t m, int64_t n_gathered, int64_t d_model, const WeightFormat& weight, DType activation) {
  return {.weight_bytes = weight.n_bytes(n_gathered, d_model),
          .expansion_ops = expansion_ops(n_gathered * d_model, weight),
          .activation_bytes = dtype_bytes(activation, m * d_model)};
}

OpCost norm_cost(int64_t n_rows, int64_t d, bool with_residual, DType activation) {
  const int64_t passes = with_residual ? 4 : 2;  // x, y; with a residual also read and written
  return {.flops = (with_residual ? 5 : 4) * n_rows * d,
          .weight_bytes = dtype_bytes(DType::F32, d),
          .activation_bytes = passes * dtype_bytes(activation, n_rows * d)};
}

OpCost add_cost(int64_t n_elements, DType activation) {
  return {.flops = n_elements, .activation_bytes = 3 * dtype_bytes(activation, n_elements)};
}

OpCost scale_cost(int64_t n_elements, DType activation) {
  return {.flops = n_elements, .activation_bytes = 2 * dtype_bytes(activation, n_elements)};
}

OpCost softcap_cost(int64_t n_elements, DType activation) {
  return {.flops = 5 * n_elements, .activation_bytes = 2 * dtype_bytes(activation, n_elements)};
}

OpCost rope_cost(int64_t n_elements, DType activation) {
  return {.flops = 3 * n_elements, .activation_bytes = 2 * dtype_bytes(activation, n_elements)};
}

OpCost activation_cost(int64_t m, int64_t d_ff, DType activation) {
  return {.flops = 5 * m * d_ff, .activation_bytes = 3 * dtype_bytes(activation, m * d_ff)};
}

OpCost router_cost(int64_t m, int64_t n_experts, int64_t top_k, int64_t n_parameters) {
  return {.flops = 5 * m * n_experts,
          .weight_bytes = n_parameters * dtype_bytes(DType::F32, n_experts),
          .activation_bytes = dtype_bytes(DType::F32, m * n_experts) +
                              dtype_bytes(DType::I32, m * top_k) +
                              dtype_bytes(DType::F32, m * top_k)};
}

OpCost combine_cost(int64_t n_terms, int64_t n_out, int64_t d, DType activation) {
  return {.flops = 2 * n_terms * d,
          .activation_bytes = dtype_bytes(activation, (n_terms + n_out) * d)};
}

OpCost copy_cost(int64_t n_elements_read, int64_t n_elements_written, DType dtype) {
  return {.activation_bytes =
              dtype_bytes(dtype, n_elements_read) + dtype_bytes(dtype, n_elements_written)};
}

}  // namespace testbed
