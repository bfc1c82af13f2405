// Number formats of what-if arithmetic: bytes per value as held, scales included, and what the
// multiply-accumulates are then done in.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/base/device_spec.hpp"
#include "kernels/base/weight_format.hpp"
#include "runtime/model/model.hpp"

namespace testbed::plan {

struct NumberFormat {
  std::string_view name;
  double bytes_per_value = 0.0;  // of long rows
  MathType math = MathType::bf16;
  // The format that the program would hold, scales counted in each row; without one it is the round
  // number alone, for all matrices.
  std::optional<WeightFormat> held = std::nullopt;

  // Of a matrix [n, k].
  int64_t n_bytes(int64_t n, int64_t k, MatrixRole role = MatrixRole::layer) const;
  // What a matrix's costs are computed in: where it is not quantised, and for a round number, bf16.
  WeightFormat counted(MatrixRole role) const;
  // Columns of a matrix are cut at multiples of it.
  int64_t column_granularity() const { return held ? held->col_granularity() : 1; }
};

inline constexpr NumberFormat f32_format{"f32", 4.0, MathType::f32};
inline constexpr NumberFormat f16_format{"f16", 2.0, MathType::f16};
inline constexpr NumberFormat bf16_format{"bf16", 2.0, MathType::bf16};
// Eight bits with one scale per tensor or channel, which adds nothing that counts. fp8 is
// multiplied as fp8; int8 and int4 weights are expanded and multiplied in 16 bits.
inline constexpr NumberFormat fp8_format{"fp8", 1.0, MathType::fp8};
inline constexpr NumberFormat int8_format{"int8", 1.0, MathType::bf16};
// Groups of 32 with an f16 scale (GGUF's Q4_0): 18 bytes per 32 weights.
inline constexpr NumberFormat int4_format{
    "int4",
    static_cast<double>(dtype_info(DType::Q4_0).block_bytes) /
        static_cast<double>(dtype_info(DType::Q4_0).block_elements),
    MathType::bf16};

// As the program holds and multiplies weights: quantised ones are expanded to 16 bits.
NumberFormat number_format(const WeightFormat& format);
// Of weights that are stored so, as they are held unless asked otherwise (runtime/model/model.hpp).
NumberFormat format_of(DType stored);

}  // namespace testbed::plan
