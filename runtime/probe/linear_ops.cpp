// Matrix products at decode and prefill rows, over matrices that are larger than the caches
// together.
#include <algorithm>
#include <memory>

#include "runtime/probe/probe_op.hpp"
#include "runtime/probe/synthetic.hpp"

namespace testbed {
namespace {

// Of benchmarks/measured/gemm.csv: the widths of an 8 B model, square and wide.
struct Width {
  int64_t n;
  int64_t k;
};
constexpr Width widths[] = {{4096, 4096}, {16384, 4096}, {4096, 16384}};
constexpr Width read_width = widths[1];
constexpr int64_t rows[] = {1, 2, 4, 8, 16, 64, 128, 512};
constexpr int64_t most_rows = 512;

struct Matrices {
  std::vector<WeightMatrix> weights;
  const WeightMatrix& at(int64_t call) const {
    return weights[static_cast<size_t>(call) % weights.size()];
  }
};

Matrices make_matrices(Device& device, const Width& width) {
  const DType dtype = device.compute_dtype();
  const int64_t n_bytes = dtype_bytes(dtype, width.n * width.k);
  const int64_t count = std::max<int64_t>(2, rotated_bytes / n_bytes);
  constexpr int64_t block_rows = 256;
  const Tensor block = synthetic_tensor(dtype, {block_rows, width.k});
  Matrices matrices;
  matrices.weights.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const WeightMatrix weight = device.allocate_weight(width.n, width.k, dtype);
    for (int64_t row = 0; row < width.n; row += block_rows) device.store_rows(weight, row, block);
    matrices.weights.push_back(weight);
  }
  return matrices;
}

// One width's matrices and activations.
struct Bench {
  Matrices matrices;
  Tensor x;  // [rows, k]
  Tensor y;  // [rows, n]

  Bench(Device& device, const Width& width, int64_t n_rows)
      : matrices(make_matrices(device, width)),
        x(synthetic_tensor(device, device.compute_dtype(), {n_rows, width.k})),
        y(device.allocate(device.compute_dtype(), {n_rows, width.n})) {}
};

ProbeOp linear_op(Device& device,
                  const std::shared_ptr<Bench>& bench,
                  const Width& width,
                  int64_t m) {
  const DType dtype = device.compute_dtype();
  return {
      .kind = OpKind::linear,
      .shape = {.m = m, .n = width.n, .k = width.k},
      .cost = linear_cost(m, width.n, width.k, width.n, dtype, dtype),
      .point =
          GemmPoint{.m = m, .n = width.n, .k = width.k, .dtype = std::string(dtype_name(dtype))},
      .run = [&device, bench, m](int64_t call) {
        device.linear(
            bench->x.view().rows(0, m), bench->matrices.at(call), {}, bench->y.view().rows(0, m));
      }};
}

}  // namespace

std::vector<ProbeOp> linear_ops(Device& device) {
  std::vector<ProbeOp> ops;
  ops.reserve(std::size(widths) * std::size(rows));
  for (const Width& width : widths) {
    const auto bench = std::make_shared<Bench>(device, width, most_rows);
    for (const int64_t m : rows) ops.push_back(linear_op(device, bench, width, m));
  }
  return ops;
}

ProbeOp weight_reading_op(Device& device) {
  return linear_op(device, std::make_shared<Bench>(device, read_width, 1), read_width, 1);
}

}  // namespace testbed
