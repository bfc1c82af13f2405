// What the ops of Device share: how an op is run, counted and timed. Only for device*.cpp.
#pragma once

#include <chrono>
#include <thread>

#include "kernels/base/check.hpp"
#include "kernels/device.hpp"

namespace testbed {

template <typename Run>
void Device::slowly(Run&& run) {
  if (slowdown_ == 1.0) {
    run();
    return;
  }
  // Sleeps are late by some 50 us, which is made up for.
  constexpr int64_t shortest_sleep_ns = 500'000;
  synchronize();
  int64_t begin_ns = now_ns();
  run();
  synchronize();
  owed_ns_ += static_cast<int64_t>((slowdown_ - 1.0) * static_cast<double>(now_ns() - begin_ns));
  if (owed_ns_ < shortest_sleep_ns) return;
  begin_ns = now_ns();
  std::this_thread::sleep_for(std::chrono::nanoseconds(owed_ns_));
  owed_ns_ -= now_ns() - begin_ns;
}

template <typename Cost, typename Run>
void Device::counted(const Op& op, Cost&& cost, Run&& run) {
  if (op.n_rows == 0) return;
  if (sink_ == nullptr && !charges()) {
    slowly(run);
    return;
  }
  const int64_t begin_ns = clock_.now_ns();
  slowly(run);
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
inline DType product_operands(TensorView x, const WeightFormat& weight) {
  return x.dtype() == DType::F32 || weight.is_quantised() ? x.dtype() : weight.dtype;
}

// y = x W^T + bias.
inline void check_product(TensorView x, const WeightMatrix& weight, TensorView bias, TensorView y) {
  CHECK(x.n_rows() == y.n_rows() && row_width(x) == weight.n_cols());
  CHECK(row_width(y) == weight.n_rows());
  CHECK(bias.empty() || bias.n_elements() == weight.n_rows());
}

inline OpCost product_cost(TensorView x, const WeightMatrix& weight, TensorView bias) {
  OpCost cost = linear_cost(x.n_rows(),
                            weight.n_rows(),
                            weight.n_cols(),
                            weight.model_rows(),
                            weight.format(),
                            x.dtype());
  if (!bias.empty()) cost.weight_bytes += bias.n_bytes();
  return cost;
}

}  // namespace testbed
