#include "kernels/cuda/quantised.hpp"

#include <algorithm>

#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {
namespace {

constexpr int64_t alignment = 256;

int64_t aligned(int64_t n_bytes) { return (n_bytes + alignment - 1) / alignment * alignment; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Groups are half a unit, two units, or whole rows, whose units all have group 0.
int32_t unit_shift_of(int64_t group_cols) {
  constexpr int32_t all = 31;  // of at most 2^31 units
  if (group_cols == half_cols) return -1;
  if (group_cols == 2 * unit_cols) return 1;
  CHECK(group_cols == 0);
  return all;
}

}  // namespace

QuantisedLayout::QuantisedLayout(const WeightFormat& format, int64_t rows, int64_t cols)
    : n_rows(rows),
      n_cols(cols),
      n_units(ceil_div(cols, unit_cols)),
      n_groups(format.group_cols == half_cols ? 2 * n_units : format.n_groups(cols)),
      unit_shift(unit_shift_of(format.group_cols)),
      scale_is_f32(format.scale_dtype == DType::F32 ? 1 : 0),
      coding(format.coding),
      offset(format.offset),
      padding{} {
  CHECK(format.is_quantised() && n_units <= INT32_MAX);
  const int64_t padded_rows = ceil_div(rows, strip_rows) * strip_rows;
  scales_at = aligned(format.code_bytes(padded_rows, n_units * unit_cols));
  offsets_at = scales_at + aligned(padded_rows * n_groups * format.scale_bytes());
  n_bytes = offsets_at + aligned(padded_rows * n_groups * format.offset_bytes());
}

void quantised_linear_expanded(Queue& queue,
                               Gemm& gemm,
                               const QuantisedLinear& call,
                               TensorView scratch) {
  const int64_t n = call.layout.n_rows;
  const int64_t k = call.layout.n_cols;
  CHECK(call.matrix != nullptr && call.x.dtype() == DType::BF16);
  const int64_t strips = scratch.n_bytes() / dtype_bytes(DType::BF16, strip_rows * k);
  CHECK(strips > 0);
  for (int64_t begin = 0; begin < n; begin += strips * strip_rows) {
    const TensorView part(
        scratch.data(), DType::BF16, {std::min(strips * strip_rows, n - begin), k});
    expand_quantised(queue, call.layout, call.matrix, begin, part);
    gemm.linear_columns(call.x, part, call.y, begin);
  }
  if (call.biases == nullptr) return;
  add_bias(queue, call.y, {const_cast<float*>(call.biases), DType::F32, {n}});
}

}  // namespace testbed::cuda
