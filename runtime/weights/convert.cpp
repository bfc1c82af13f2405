// Conversions go through blocks of f32; equal types are copied.
#include "runtime/weights/convert.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/base/check.hpp"

namespace testbed {
namespace {

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

float load_f16(const std::byte* p) { return to_f32(f16{load<uint16_t>(p)}); }

int byte_at(const std::byte* p, int i) { return std::to_integer<int>(p[i]); }

// 32 values: d, then int8 codes. y = d*q
void expand_q8_0(const std::byte* block, float* y) {
  const float d = load_f16(block);
  for (int i = 0; i < 32; ++i)
    y[i] = d * static_cast<float>(static_cast<int8_t>(byte_at(block + 2, i)));
}

// 32 values: d, then nibbles; value i is the low half of byte i, value i + 16 its high half.
// y = d*(q - 8)
void expand_q4_0(const std::byte* block, float* y) {
  const float d = load_f16(block);
  for (int i = 0; i < 16; ++i) {
    const int q = byte_at(block + 2, i);
    y[i] = d * static_cast<float>((q & 15) - 8);
    y[i + 16] = d * static_cast<float>((q >> 4) - 8);
  }
}

// As Q4_0, with a minimum m after d. y = d*q + m
void expand_q4_1(const std::byte* block, float* y) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = byte_at(block + 4, i);
    y[i] = d * static_cast<float>(q & 15) + m;
    y[i + 16] = d * static_cast<float>(q >> 4) + m;
  }
}

struct ScaleMin {
  int scale;
  int min;
};

// The 6-bit scale and minimum of sub-block j (0..7) from the 12 packed bytes of a Q4_K block.
ScaleMin scale_min_k4(const std::byte* packed, int j) {
  if (j < 4) return {byte_at(packed, j) & 63, byte_at(packed, j + 4) & 63};
  const int low = byte_at(packed, j + 4);
  return {(low & 15) | ((byte_at(packed, j - 4) >> 6) << 4),
          (low >> 4) | ((byte_at(packed, j) >> 6) << 4)};
}

// 256 values: d, dmin, 12 bytes of scales, 128 bytes of nibbles; sub-block of 32 values.
// y = (d*scale)*q - dmin*min
void expand_q4_k(const std::byte* block, float* y) {
  const float d = load_f16(block);
  const float dmin = load_f16(block + 2);
  const std::byte* codes = block + 16;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = scale_min_k4(block + 4, j);
    const float scale = d * static_cast<float>(s.scale);
    const float min = dmin * static_cast<float>(s.min);
    const int shift = (j % 2) * 4;
    for (int i = 0; i < 32; ++i)
      y[j * 32 + i] = scale * static_cast<float>((byte_at(codes, i) >> shift) & 15) - min;
    if (shift != 0) codes += 32;
  }
}

// 256 values: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, d.
// y = (d*scale)*(q - 32)
void expand_q6_k(const std::byte* block, float* y) {
  const std::byte* scales = block + 192;
  const float d = load_f16(block + 208);
  const std::byte* low = block;
  const std::byte* high = block + 128;
  for (int half = 0; half < 2; ++half, low += 64, high += 32) {
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const int nibble = (byte_at(low, i + (quarter % 2) * 32) >> (quarter / 2 * 4)) & 15;
        const int q = nibble | (((byte_at(high, i) >> (2 * quarter)) & 3) << 4);
        const auto s = static_cast<int8_t>(byte_at(scales, half * 8 + quarter * 2 + i / 16));
        y[half * 128 + quarter * 32 + i] = d * static_cast<float>(s) * static_cast<float>(q - 32);
      }
    }
  }
}

void f16_to_f32(const std::byte* src, int64_t n, float* y) {
  // Exponent and mantissa moved into place and rescaled by 2^112: exact, subnormals included.
  constexpr float rescale = 0x1p112F;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = load<uint16_t>(src + 2 * i);
    const uint32_t magnitude = (bits & 0x7fffU) << 13;
    const float finite = std::bit_cast<float>(magnitude) * rescale;
    const uint32_t special = magnitude | 0x7f800000U;  // infinity or NaN
    const uint32_t out = magnitude >= (0x7c00U << 13) ? special : std::bit_cast<uint32_t>(finite);
    y[i] = std::bit_cast<float>(out | ((bits & 0x8000U) << 16));
  }
}

void bf16_to_f32(const std::byte* src, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_f32(bf16{load<uint16_t>(src + 2 * i)});
}

using ExpandBlock = void (*)(const std::byte*, float*);

ExpandBlock block_expander(DType dtype) {
  switch (dtype) {
    case DType::Q8_0:
      return expand_q8_0;
    case DType::Q4_0:
      return expand_q4_0;
    case DType::Q4_1:
      return expand_q4_1;
    case DType::Q4_K:
      return expand_q4_k;
    case DType::Q6_K:
      return expand_q6_k;
    default:
      return nullptr;
  }
}

void expand(DType from, const std::byte* src, int64_t n, float* y) {
  if (from == DType::F32) {
    std::memcpy(y, src, static_cast<size_t>(n) * sizeof(float));
  } else if (from == DType::F16) {
    f16_to_f32(src, n, y);
  } else if (from == DType::BF16) {
    bf16_to_f32(src, n, y);
  } else {
    const ExpandBlock expand_block = block_expander(from);
    CHECK(expand_block != nullptr);
    const DTypeInfo info = dtype_info(from);
    for (int64_t i = 0; i < n; i += info.block_elements, src += info.block_bytes)
      expand_block(src, y + i);
  }
}

void store(const float* y, int64_t n, DType to, std::byte* dst) {
  if (to == DType::F32) {
    std::memcpy(dst, y, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = to == DType::BF16 ? to_bf16(y[i]).bits : to_f16(y[i]).bits;
    std::memcpy(dst + 2 * i, &bits, sizeof(bits));
  }
}

}  // namespace

void unpack_blocks(DType from, const std::byte* src, int64_t n, BlockParts to) {
  CHECK(from == DType::Q8_0 || from == DType::Q4_0 || from == DType::Q4_1);
  const DTypeInfo info = dtype_info(from);
  CHECK(n % info.block_elements == 0 && (from == DType::Q4_1) == (to.minima != nullptr));
  const int64_t head_bytes = from == DType::Q4_1 ? 4 : 2;  // scale, minimum
  for (int64_t b = 0; b < n / info.block_elements; ++b, src += info.block_bytes) {
    to.scales[b] = f16{load<uint16_t>(src)};
    if (to.minima != nullptr) to.minima[b] = f16{load<uint16_t>(src + 2)};
    const std::byte* packed = src + head_bytes;
    int8_t* codes = to.codes + b * info.block_elements;
    if (from == DType::Q8_0) {
      std::memcpy(codes, packed, static_cast<size_t>(info.block_elements));
      continue;
    }
    for (int i = 0; i < 16; ++i) {
      codes[i] = static_cast<int8_t>(byte_at(packed, i) & 15);
      codes[i + 16] = static_cast<int8_t>(byte_at(packed, i) >> 4);
    }
  }
}

void convert_elements(DType from, const std::byte* src, int64_t n, DType to, std::byte* dst) {
  CHECK(to == DType::F32 || to == DType::F16 || to == DType::BF16);
  if (from == to) {
    std::memcpy(dst, src, static_cast<size_t>(dtype_bytes(from, n)));
    return;
  }
  constexpr int64_t chunk = 1024;  // whole blocks of every type
  std::array<float, chunk> buffer;
  for (int64_t i = 0; i < n; i += chunk) {
    const int64_t m = std::min(chunk, n - i);
    expand(from, src + dtype_bytes(from, i), m, buffer.data());
    store(buffer.data(), m, to, dst + dtype_bytes(to, i));
  }
}

}  // namespace testbed
