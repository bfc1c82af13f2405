#include "runtime/plan/formats.hpp"

#include <cmath>

namespace testbed::plan {
namespace {

MathType math_of(const WeightFormat& format) {
  if (format.is_quantised()) return MathType::bf16;
  if (format.dtype == DType::F32) return MathType::f32;
  return format.dtype == DType::F16 ? MathType::f16 : MathType::bf16;
}

double bytes_per_value(const WeightFormat& format) {
  if (format.group_cols > 0) {
    return static_cast<double>(format.n_bytes(1, format.group_cols)) / format.group_cols;
  }
  return static_cast<double>(format.code_bytes(1, 2)) / 2.0;
}

}  // namespace

int64_t NumberFormat::n_bytes(int64_t n, int64_t k, MatrixRole role) const {
  if (!held) return std::llround(static_cast<double>(n * k) * bytes_per_value);
  return counted(role).n_bytes(n, k);
}

WeightFormat NumberFormat::counted(MatrixRole role) const {
  if (!held) return DType::BF16;
  if (!held->is_quantised() || role == MatrixRole::layer) return *held;
  if (role == MatrixRole::plain) return DType::BF16;
  return table_format(*held).value_or(DType::BF16);
}

NumberFormat number_format(const WeightFormat& format) {
  return {format_name(format), bytes_per_value(format), math_of(format), format};
}

NumberFormat format_of(DType stored) {
  const WeightFormat native = native_format(stored);
  const bool expanded = is_quantised(stored) && !native.is_quantised();
  return number_format(expanded ? WeightFormat(DType::BF16) : native);
}

}  // namespace testbed::plan
