// f32 to f16.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace testbed {

// Round to nearest even; above the range of f16 gives infinity.
inline f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 16) & 0x8000U;
  const uint32_t magnitude = u & 0x7fffffffU;
  uint32_t out = 0;
  if (magnitude > 0x7f800000U) {
    out = 0x7e00U;  // NaN
  } else if (magnitude >= 0x477ff000U) {
    out = 0x7c00U;  // rounds to 65536 or more
  } else if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 leaves the subnormal's units of 2^-24 in the low bits, rounded.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    out = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F);
  } else {
    out = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return f16{static_cast<uint16_t>(sign | out)};
}

}  // namespace testbed
