// Products that see the same x, and those whose result is gated: one op where the device does them
// in one go.
#include "kernels/device_counted.hpp"

namespace testbed {
void Device::linear_group(TensorView x, std::span<const LinearOperands> products) {
  if (!groups_products()) {
    for (const LinearOperands& p : products) linear(x, *p.weight, p.bias, p.y);
    return;
  }
  if (products.empty()) return;
  int64_t n = 0;
  for (const LinearOperands& p : products) {
    check_product(x, *p.weight, p.bias, p.y);
    n += p.weight->n_rows();
  }
  counted(
      {OpKind::linear,
       x.n_rows(),
       product_operands(x, products.front().weight->format()),
       {.m = x.n_rows(), .n = n, .k = row_width(x)}},
      [&] {
        OpCost cost;
        for (const LinearOperands& p : products) cost += product_cost(x, *p.weight, p.bias);
        return cost;
      },
      [&] { do_linear_group(x, products); });
}

void Device::do_linear_group(TensorView x, std::span<const LinearOperands> products) {
  for (const LinearOperands& p : products) do_linear(x, *p.weight, p.bias, p.y);
}

void Device::linear_gated(TensorView x,
                          const WeightMatrix& weight,
                          TensorView bias,
                          Activation activation,
                          TensorView gate_up,
                          TensorView out) {
  if (!gates_products(weight)) {
    linear(x, weight, bias, gate_up);
    gated_activation(activation, gate_up, out);
    return;
  }
  check_product(x, weight, bias, gate_up);
  CHECK(gate_up.n_rows() == out.n_rows() && row_width(gate_up) == 2 * row_width(out));
  CHECK(gate_up.dtype() == out.dtype());
  counted(
      {OpKind::linear,
       x.n_rows(),
       product_operands(x, weight.format()),
       {.m = x.n_rows(), .n = weight.n_rows(), .k = weight.n_cols()}},
      [&] { return product_cost(x, weight, bias); },
      [&] { do_linear_gated(x, weight, bias, activation, gate_up, out); });
  counted(
      {OpKind::activation, out.n_rows(), out.dtype()},
      [&] { return activation_cost(out.n_rows(), row_width(out), out.dtype()); },
      [] {});
}

void Device::do_linear_gated(TensorView x,
                             const WeightMatrix& weight,
                             TensorView bias,
                             Activation activation,
                             TensorView gate_up,
                             TensorView out) {
  do_linear(x, weight, bias, gate_up);
  do_gated_activation(activation, gate_up, out);
}

}  // namespace testbed
