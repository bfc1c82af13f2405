// What the ops of Device share: how an op is run, counted and timed. Only for device*.cpp.
#pragma once

#include "kernels/base/check.hpp"
#include "kernels/device.hpp"

namespace testbed {

template <typename Cost, typename Run>
void Device::counted(const Op& op, Cost&& cost, Run&& run) {
  if (op.n_rows == 0) return;
  if (sink_ == nullptr && !charges()) {
    run();
    return;
  }
  const int64_t begin_ns = clock_.now_ns();
  run();
  const OpCost of_op = cost();
  if (charges()) do_charge(op.kind, of_op, op.shape, op.operands);
  if (sink_ == nullptr) return;
  sink_->on_op({.kind = op.kind, .cost = of_op, .begin_ns = begin_ns, .end_ns = clock_.now_ns()});
}

// Elements of a row, of a tensor without rows too.
inline int64_t row_width(TensorView x) {
  int64_t width = 1;
  for (int i = 1; i < x.shape().rank(); ++i) width *= x.shape()[i];
  return width;
}

// What a product of x and weights of this type is computed in.
inline DType product_operands(TensorView x, DType weight) {
  return x.dtype() == DType::F32 ? DType::F32 : weight;
}

}  // namespace testbed
