// Number formats of what-if arithmetic: bytes per value as stored, scales included, and what the
// multiply-accumulates are then done in.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "kernels/base/device_spec.hpp"
#include "kernels/base/dtype.hpp"

namespace testbed::plan {

struct NumberFormat {
  std::string_view name;
  double bytes_per_value = 0.0;
  MathType math = MathType::bf16;
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

inline constexpr std::array number_formats{
    f32_format, f16_format, bf16_format, fp8_format, int8_format, int4_format};

// Throws ConfigError listing the formats.
NumberFormat format_by_name(const std::string& name);
// How weights that are stored so are read: block-quantised ones are expanded to bf16 on loading.
NumberFormat format_of(DType stored);

}  // namespace testbed::plan
