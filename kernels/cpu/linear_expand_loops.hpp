// Quantised weights to f32, written over vectors: Lanes has the instruction set's. Files that
// include it are compiled with -ffp-contract=off: a value is a rounded product, and a rounded sum
// of it and a minimum, as in dequantise(). Of internal linkage: nothing may be merged with a copy
// that was compiled for another instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_kernels.hpp"

namespace testbed::cpu {
namespace {

template <typename Lanes>
typename Lanes::F zeros_of(const WeightFormat& format, const std::byte* offsets, int64_t lane) {
  if (format.coding == WeightCoding::int8) return Lanes::set1(128.0F);
  if (format.offset == WeightOffset::eight) return Lanes::set1(8.0F);
  if (format.offset == WeightOffset::zero_point) return Lanes::load_u8(offsets + lane);
  return Lanes::set1(0.0F);
}

template <typename Lanes>
void expand_group(const WeightFormat& format, const WeightGroup& group, float* out) {
  constexpr int64_t panel_rows = 16;
  const bool is_fp8 = format.coding == WeightCoding::fp8;
  const bool is_int4 = format.coding == WeightCoding::int4;
  const bool has_minimum = format.offset == WeightOffset::minimum;
  const int64_t vector_cols = is_int4 ? 8 : 4;
  for (int64_t lane = 0; lane < panel_rows; lane += Lanes::width) {
    const typename Lanes::F scale = format.scale_dtype == DType::F32
                                        ? Lanes::load_f32(group.scales + 4 * lane)
                                        : Lanes::load_f16(group.scales + 2 * lane);
    const typename Lanes::F zero = zeros_of<Lanes>(format, group.offsets, lane);
    const typename Lanes::F minimum =
        has_minimum ? Lanes::load_f16(group.offsets + 2 * lane) : Lanes::set1(0.0F);
    for (int64_t k = 0; k < group.n_cols; ++k) {
      const auto codes = Lanes::load(group.codes + k / vector_cols * 64 + 4 * lane);
      const auto column = static_cast<int>(k % vector_cols);
      const int shift = column < 4 ? 8 * column : 8 * column - 28;
      typename Lanes::F value =
          is_fp8 ? Lanes::e4m3(codes, column) : Lanes::field(codes, shift, is_int4 ? 15 : 255);
      if (!is_fp8) value = Lanes::sub(value, zero);
      value = Lanes::mul(value, scale);
      if (has_minimum) value = Lanes::add(value, minimum);
      Lanes::store(out + k * panel_rows + lane, value);
    }
  }
}

}  // namespace
}  // namespace testbed::cpu
