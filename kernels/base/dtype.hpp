// Element types, their sizes, and scalar conversions. Block-quantised types are those of GGUF:
// n_elements must be a multiple of block_elements().
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/check.hpp"

namespace testbed {

enum class DType : uint8_t { F32, F16, BF16, I32, I8, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K };

struct DTypeInfo {
  std::string_view name;   // as INTERFACE.md spells it: "f32", "bf16", "q8_0", ...
  int64_t block_elements;  // elements in one block; 1 for plain types
  int64_t block_bytes;     // bytes of one block, scales included
};

constexpr DTypeInfo dtype_info(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return {"f32", 1, 4};
    case DType::F16:
      return {"f16", 1, 2};
    case DType::BF16:
      return {"bf16", 1, 2};
    case DType::I32:
      return {"i32", 1, 4};
    case DType::I8:
      return {"i8", 1, 1};
    case DType::Q8_0:
      return {"q8_0", 32, 34};
    case DType::Q4_0:
      return {"q4_0", 32, 18};
    case DType::Q4_1:
      return {"q4_1", 32, 20};
    case DType::Q4_K:
      return {"q4_k", 256, 144};
    case DType::Q6_K:
      return {"q6_k", 256, 210};
  }
  check_failed("known dtype", __FILE__, __LINE__);
}

constexpr std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }

// Bytes of n_elements elements. n_elements must fill whole blocks.
constexpr int64_t dtype_bytes(DType dtype, int64_t n_elements) {
  const DTypeInfo info = dtype_info(dtype);
  CHECK(n_elements % info.block_elements == 0);
  return n_elements / info.block_elements * info.block_bytes;
}

constexpr bool is_quantised(DType dtype) { return dtype_info(dtype).block_elements > 1; }

// The bits of a bfloat16. Arithmetic is in f32; this type only stores.
struct bf16 {
  uint16_t bits = 0;
};
struct f16 {
  uint16_t bits = 0;
};

constexpr float to_f32(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Round to nearest even; NaN stays a NaN.
constexpr bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) return bf16{static_cast<uint16_t>((u >> 16) | 0x40U)};
  return bf16{static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

constexpr float to_f32(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000U) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fU;
  const uint32_t mantissa = x.bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

}  // namespace testbed
