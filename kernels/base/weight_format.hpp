// WeightFormat: how a weight matrix [n_rows, n_cols] is held: plain elements of a dtype, or
// quantised: codes of 8 or 4 bits, and for each row and group of columns a scale, and maybe an
// offset. Scales count as weight bytes. docs/quantisation.md has the formulas.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/base/check.hpp"
#include "kernels/base/dtype.hpp"

namespace testbed {

enum class WeightCoding : uint8_t {
  plain,
  int8,  // -128 ... 127
  int4,  // 0 ... 15
  fp8,   // e4m3: 1 sign, 4 exponent (bias 7), 3 fraction bits; 0x7f and 0xff are NaN; no infinity
};

// What a code stands for, in f32:
enum class WeightOffset : uint8_t {
  none,        // code * scale
  eight,       // (code - 8) * scale                    GGUF's Q4_0
  zero_point,  // (code - zero) * scale, zero I8 0 ... 15
  minimum,     // code * scale + minimum, minimum F16    GGUF's Q4_1
};

struct WeightFormat {
  WeightCoding coding = WeightCoding::plain;
  DType dtype = DType::BF16;  // of plain elements
  // What shares a scale: consecutive columns from column 0 of the whole tensor on, the last group
  // may have fewer (0: all of a row), of consecutive rows of the whole tensor (0: all of them).
  // However many rows share one, each row holds it: so any slice can be cut.
  int32_t group_cols = 0;
  int32_t group_rows = 1;
  DType scale_dtype = DType::F32;
  WeightOffset offset = WeightOffset::none;

  constexpr WeightFormat() = default;
  constexpr WeightFormat(DType plain) : dtype(plain) {}  // NOLINT(google-explicit-constructor)
  constexpr WeightFormat(WeightCoding c, int32_t cols, int32_t rows, DType scale, WeightOffset o)
      : coding(c), group_cols(cols), group_rows(rows), scale_dtype(scale), offset(o) {}

  constexpr bool is_quantised() const { return coding != WeightCoding::plain; }
  // Groups of columns of a row; 0 for plain ones.
  constexpr int64_t n_groups(int64_t n_cols) const {
    if (!is_quantised() || n_cols == 0) return 0;
    return group_cols == 0 ? 1 : (n_cols + group_cols - 1) / group_cols;
  }
  // Of the codes alone; an odd number of 4-bit codes in a row fills its last byte.
  constexpr int64_t code_bytes(int64_t n_rows, int64_t n_cols) const {
    if (!is_quantised()) return dtype_bytes(dtype, n_rows * n_cols);
    return n_rows * (coding == WeightCoding::int4 ? (n_cols + 1) / 2 : n_cols);
  }
  constexpr int64_t scale_bytes() const { return dtype_bytes(scale_dtype, 1); }
  constexpr int64_t offset_bytes() const {
    if (offset == WeightOffset::zero_point) return 1;
    return offset == WeightOffset::minimum ? dtype_bytes(DType::F16, 1) : 0;
  }
  // Scales and offsets included, padding not.
  constexpr int64_t n_bytes(int64_t n_rows, int64_t n_cols) const {
    return code_bytes(n_rows, n_cols) +
           n_rows * n_groups(n_cols) * (is_quantised() ? scale_bytes() + offset_bytes() : 0);
  }
  // A slice's columns begin and end at multiples of this, or at the tensor's end (D4).
  constexpr int64_t col_granularity() const {
    return is_quantised() && group_cols > 0 ? group_cols : 1;
  }
  constexpr bool operator==(const WeightFormat&) const = default;
};

namespace weight_formats {
inline constexpr WeightFormat int8_row{WeightCoding::int8, 0, 1, DType::F32, WeightOffset::none};
inline constexpr WeightFormat int8_g32{WeightCoding::int8, 32, 1, DType::F16, WeightOffset::none};
inline constexpr WeightFormat int8_g128{WeightCoding::int8, 128, 1, DType::F16, WeightOffset::none};
inline constexpr WeightFormat int4_g32{
    WeightCoding::int4, 32, 1, DType::F16, WeightOffset::zero_point};
inline constexpr WeightFormat int4_g128{
    WeightCoding::int4, 128, 1, DType::F16, WeightOffset::zero_point};
inline constexpr WeightFormat fp8_tensor{WeightCoding::fp8, 0, 0, DType::F32, WeightOffset::none};
inline constexpr WeightFormat fp8_row{WeightCoding::fp8, 0, 1, DType::F32, WeightOffset::none};
inline constexpr WeightFormat fp8_block128{
    WeightCoding::fp8, 128, 128, DType::F32, WeightOffset::none};
// As GGUF stores them; q8_0 is int8_g32.
inline constexpr WeightFormat q4_0{WeightCoding::int4, 32, 1, DType::F16, WeightOffset::eight};
inline constexpr WeightFormat q4_1{WeightCoding::int4, 32, 1, DType::F16, WeightOffset::minimum};

struct Named {
  std::string_view name;
  WeightFormat format;
};
inline constexpr std::array quantised{
    Named{"int8-row", int8_row},
    Named{"int8-g32", int8_g32},
    Named{"int8-g128", int8_g128},
    Named{"int4-g32", int4_g32},
    Named{"int4-g128", int4_g128},
    Named{"fp8-tensor", fp8_tensor},
    Named{"fp8-row", fp8_row},
    Named{"fp8-block128", fp8_block128},
    Named{"q4_0", q4_0},
    Named{"q4_1", q4_1},
};
}  // namespace weight_formats

// "bf16", "int8-g32", ...: as the record spells it.
constexpr std::string_view format_name(const WeightFormat& format) {
  if (!format.is_quantised()) return dtype_name(format.dtype);
  for (const weight_formats::Named& named : weight_formats::quantised) {
    if (named.format == format) return named.name;
  }
  check_failed("named weight format", __FILE__, __LINE__);
}

// What is held of a tensor that is stored in blocks and computed in that form; the dtype itself for
// others (K-quants are expanded, see runtime/weights).
constexpr WeightFormat native_format(DType stored) {
  switch (stored) {
    case DType::Q8_0:
      return weight_formats::int8_g32;
    case DType::Q4_0:
      return weight_formats::q4_0;
    case DType::Q4_1:
      return weight_formats::q4_1;
    default:
      return stored;
  }
}

}  // namespace testbed
