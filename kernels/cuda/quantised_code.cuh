// Codes of quantised weights into numbers, in registers (quantised.hpp has the layout).
#pragma once

#include "kernels/cuda/quantised.hpp"
#include "kernels/cuda/row_code.cuh"

namespace testbed::cuda {

// Kinds of formats that the fast kernels are compiled for. fine: a scale for each half of a unit,
// else for whole units or more.
template <WeightCoding weight_coding, WeightOffset weight_offset, bool is_fine>
struct Kind {
  static constexpr WeightCoding coding = weight_coding;
  static constexpr WeightOffset offset = weight_offset;
  static constexpr bool fine = is_fine;
  static constexpr bool is_4_bit = coding == WeightCoding::int4;
  static constexpr int n_parts = is_4_bit ? 1 : 2;  // 16-byte accesses of a lane for a unit
  static constexpr int n_scales = fine ? 2 : 1;     // of a row in a unit
};

template <typename Run>
void with_kind(const QuantisedLayout& layout, const Run& run) {
  using Coding = WeightCoding;
  using Offset = WeightOffset;
  const bool fine = layout.unit_shift < 0;
  if (layout.coding == Coding::fp8) {
    CHECK(!fine);
    run(static_cast<Kind<Coding::fp8, Offset::none, false>*>(nullptr));
  } else if (layout.coding == Coding::int8) {
    if (fine) {
      run(static_cast<Kind<Coding::int8, Offset::none, true>*>(nullptr));
    } else {
      run(static_cast<Kind<Coding::int8, Offset::none, false>*>(nullptr));
    }
  } else if (layout.offset == Offset::zero_point) {
    if (fine) {
      run(static_cast<Kind<Coding::int4, Offset::zero_point, true>*>(nullptr));
    } else {
      run(static_cast<Kind<Coding::int4, Offset::zero_point, false>*>(nullptr));
    }
  } else {
    CHECK(fine);
    if (layout.offset == Offset::eight) {
      run(static_cast<Kind<Coding::int4, Offset::eight, true>*>(nullptr));
    } else {
      CHECK(layout.offset == Offset::minimum);
      run(static_cast<Kind<Coding::int4, Offset::minimum, true>*>(nullptr));
    }
  }
}

// Where a code, a scale or an offset is: r = row in its strip, c = column in its unit.
struct CodePlace {
  int word;   // 32 bits, from the unit's start
  int shift;  // of its lowest bit
};
__device__ inline CodePlace code_place(bool is_4_bit, int r, int c) {
  const int half = c / static_cast<int>(half_cols);
  const int lane = r % 8 * 4 + c % static_cast<int>(half_cols) / 8;
  const int step = c % 8 / 4;
  const int i = r / 8 + c % 4 / 2 * 2;
  const int high = c % 2;
  if (is_4_bit) return {lane * 4 + half * 2 + step, 4 * i + 16 * high};
  return {half * 128 + lane * 4 + step * 2 + i / 2, 8 * (i % 2 + 2 * high)};
}
constexpr int words_of_unit(bool is_4_bit) { return is_4_bit ? 128 : 256; }
__device__ inline int64_t scale_place(const QuantisedLayout& layout, int64_t row, int64_t group) {
  const auto r = static_cast<int>(row % strip_rows);
  return (row / strip_rows * layout.n_groups + group) * strip_rows + r % 8 * 2 + r / 8;
}
__device__ inline int64_t group_of(const QuantisedLayout& layout, int64_t col) {
  return layout.unit_shift < 0 ? col / half_cols : (col / unit_cols) >> layout.unit_shift;
}

// e4m3 into f32: its 4 exponent bits are the f32's lowest ones, 2^120 makes up for the biases
// (127 - 7), also of subnormal numbers. Not for NaN.
__device__ inline float value_of_fp8(uint32_t code) {
  return as_float((code & 0x80U) << 24 | (code & 0x7fU) << 20) * 0x1p120F;
}

// dequantise() of one weight: the readable way, for where a few are wanted.
__device__ inline float value_at(const QuantisedLayout& layout,
                                 const void* matrix,
                                 int64_t row,
                                 int64_t col) {
  const auto* bytes = static_cast<const unsigned char*>(matrix);
  const bool is_4_bit = layout.coding == WeightCoding::int4;
  const CodePlace place =
      code_place(is_4_bit, static_cast<int>(row % strip_rows), static_cast<int>(col % unit_cols));
  const int64_t unit = row / strip_rows * layout.n_units + col / unit_cols;
  const uint32_t word =
      reinterpret_cast<const uint32_t*>(bytes)[unit * words_of_unit(is_4_bit) + place.word];
  const uint32_t code = word >> place.shift & (is_4_bit ? 0xfU : 0xffU);
  float value = layout.coding == WeightCoding::fp8 ? value_of_fp8(code)
                : layout.coding == WeightCoding::int8
                    ? static_cast<float>(static_cast<int8_t>(code))
                    : static_cast<float>(code);
  const int64_t at = scale_place(layout, row, group_of(layout, col));
  const unsigned char* offsets = bytes + layout.offsets_at;
  if (layout.offset == WeightOffset::eight) value -= 8.0F;
  if (layout.offset == WeightOffset::zero_point) value -= static_cast<float>(offsets[at]);
  const unsigned char* scales = bytes + layout.scales_at;
  value *= layout.scale_is_f32 != 0 ? reinterpret_cast<const float*>(scales)[at]
                                    : f16_value(reinterpret_cast<const uint16_t*>(scales)[at]);
  if (layout.offset == WeightOffset::minimum) {
    value += f16_value(reinterpret_cast<const uint16_t*>(offsets)[at]);
  }
  return value;
}

// What a lane has of a unit: codes; of rows g and g + 8 scales and offsets, as they are stored.
template <typename K>
struct LaneUnit {
  Words codes[K::n_parts];
  uint32_t scales[2];  // f16: two in each word, for each half if fine; f32: of the two rows
  uint32_t offsets[K::n_scales];  // zero points in bits 0 and 8, or two f16

  // strip, unit of the matrix; the unit's number is known to be below n_units.
  __device__ void load(const QuantisedLayout& layout, const void* matrix, int64_t strip, int unit) {
    const auto lane = static_cast<int>(threadIdx.x) % warp_size;
    const auto* bytes = static_cast<const unsigned char*>(matrix);
    const int64_t at = strip * layout.n_units + unit;
    const Words* parts = reinterpret_cast<const Words*>(bytes) + at * K::n_parts * warp_size + lane;
    for (int i = 0; i < K::n_parts; ++i) codes[i] = load_once(parts + i * warp_size);
    const int g = lane / 4;
    for (int i = 0; i < K::n_scales; ++i) {
      const int64_t group = K::fine ? 2 * int64_t{unit} + i : unit >> layout.unit_shift;
      const int64_t pair = (strip * layout.n_groups + group) * (strip_rows / 2) + g;
      load_group(layout, bytes, pair, i);
    }
  }

  __device__ float scale(const QuantisedLayout& layout, int i, int row_half) const {
    if (!K::fine && layout.scale_is_f32 != 0) return as_float(scales[row_half]);
    return f16_value(static_cast<uint16_t>(scales[i] >> (16 * row_half)));
  }
  __device__ float minimum(int i, int row_half) const {
    return f16_value(static_cast<uint16_t>(offsets[i] >> (16 * row_half)));
  }

  // The operand A of a step of a half: codes less zero points, exact.
  __device__ void expand(int half, int step, uint32_t (&a)[4]) const {
    constexpr uint32_t one = 0x3f803f80U;  // in bf16, twice
    if constexpr (K::coding == WeightCoding::int4) {
      // 0x4300 | code is 128 + code.
      const uint32_t word = codes[0].w[2 * half + step];
      for (int i = 0; i < 4; ++i) {
        const uint32_t more = masked_or(word >> (4 * i), 0x000f000fU, 0x43004300U);
        a[i] = fma_bf16x2(more, one, less(half, i % 2));
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = codes[half].w[2 * step + i / 2];
        if constexpr (K::coding == WeightCoding::int8) {
          // The low 7 bits as above; the highest, -128, makes the 128 that is taken off 256.
          const uint32_t pair = word >> (8 * (i % 2));
          a[i] = fma_bf16x2(
              (pair & 0x007f007fU) | 0x43004300U, one, (pair & 0x00800080U) | 0xc300c300U);
        } else {
          // As value_of_fp8, in bf16: 0x7b80 is 2^120, 0x8000 is -0, which keeps signs of zeros.
          const uint32_t pair = word << (8 * (1 - i % 2));
          const uint32_t small = masked_or(pair, 0x80008000U, pair >> 4 & 0x07f007f0U);
          a[i] = fma_bf16x2(small, 0x7b807b80U, 0x80008000U);
        }
      }
    }
  }

 private:
  __device__ void load_group(const QuantisedLayout& layout,
                             const unsigned char* bytes,
                             int64_t pair,
                             int i) {
    const unsigned char* at = bytes + layout.scales_at;
    if (!K::fine && layout.scale_is_f32 != 0) {
      scales[0] = reinterpret_cast<const uint32_t*>(at)[2 * pair];
      scales[1] = reinterpret_cast<const uint32_t*>(at)[2 * pair + 1];
    } else {
      scales[i] = reinterpret_cast<const uint32_t*>(at)[pair];
    }
    const unsigned char* of = bytes + layout.offsets_at;
    if constexpr (K::offset == WeightOffset::zero_point) {
      offsets[i] = reinterpret_cast<const uint16_t*>(of)[pair];
    } else if constexpr (K::offset == WeightOffset::minimum) {
      offsets[i] = reinterpret_cast<const uint32_t*>(of)[pair];
    }
  }

  // -(128 + zero point) twice, in bf16.
  __device__ uint32_t less(int half, int row_half) const {
    if constexpr (K::offset == WeightOffset::zero_point) {
      const uint32_t zero = offsets[K::fine ? half : 0] >> (8 * row_half) & 0xffU;
      return 0xc300c300U | zero | zero << 16;
    }
    return K::offset == WeightOffset::eight ? 0xc308c308U : 0xc300c300U;
  }
};

}  // namespace testbed::cuda
