#include "kernels/cpu/packed_quantised.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace testbed::cpu {
namespace {

float load_float(const std::byte* from, DType dtype) {
  if (dtype == DType::F32) {
    float value = 0.0F;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  f16 value;
  std::memcpy(&value, from, sizeof(value));
  return to_f32(value);
}

// The codes of one row, from [n_cols] bytes; `to` is the row's place in the first vector of a
// segment.
void store_int8(const int8_t* codes, int64_t n_cols, std::byte* to) {
  for (int64_t k = 0; k < n_cols; k += 4, to += 64) {
    uint32_t word = 0x80808080U;  // zeros beyond the last column
    std::memcpy(&word, codes + k, static_cast<size_t>(std::min<int64_t>(4, n_cols - k)));
    word ^= 0x80808080U;
    std::memcpy(to, &word, sizeof(word));
  }
}

void store_int4(const int8_t* codes, int64_t n_cols, std::byte* to) {
  for (int64_t k = 0; k < n_cols; k += 8, to += 64) {
    std::array<uint32_t, 2> words{};
    std::memcpy(words.data(), codes + k, static_cast<size_t>(std::min<int64_t>(8, n_cols - k)));
    const uint32_t both = words[0] | words[1] << 4;
    std::memcpy(to, &both, sizeof(both));
  }
}

void store_fp8(const int8_t* codes, int64_t n_cols, std::byte* to) {
  for (int64_t k = 0; k < n_cols; k += 4, to += 64) {
    std::array<uint16_t, 2> pairs{};
    std::memcpy(pairs.data(), codes + k, static_cast<size_t>(std::min<int64_t>(4, n_cols - k)));
    std::memcpy(to, &pairs[0], sizeof(pairs[0]));
    std::memcpy(to + 8, &pairs[1], sizeof(pairs[1]));
  }
}

// One row's scales or offsets: n_bytes each.
void store_values(TensorView values, int64_t row, int64_t group, int64_t n_bytes, std::byte* to) {
  const auto* from = static_cast<const std::byte*>(values.data());
  std::memcpy(
      to, from + (row * values.row_elements() + group) * n_bytes, static_cast<size_t>(n_bytes));
}

float code_at(WeightCoding coding, const std::byte* codes, int64_t lane, int64_t k) {
  const int64_t vector_cols = coding == WeightCoding::int4 ? 8 : 4;
  const auto byte =
      static_cast<uint8_t>(codes[k / vector_cols * 64 + PackedLayout::byte_of(coding, lane, k)]);
  if (coding == WeightCoding::fp8) return from_e4m3(byte);
  if (coding == WeightCoding::int8) return static_cast<float>(int{byte} - 128);
  return static_cast<float>(k % 8 < 4 ? byte & 15 : byte >> 4);
}

}  // namespace

void store_quantised(const PackedLayout& layout,
                     const QuantisedRows& rows,
                     int64_t lane,
                     std::byte* panel) {
  const int64_t n_cols = rows.n_cols();
  const int64_t segment_cols = std::max<int64_t>(layout.segment_cols(), 1);
  for (int64_t begin = 0; begin < n_cols; begin += segment_cols) {
    const int64_t count = std::min(segment_cols, n_cols - begin);
    for (int64_t r = 0; r < rows.n_rows(); ++r) {
      const int8_t* codes = rows.codes.as<int8_t>() + r * n_cols + begin;
      std::byte* to = panel + layout.code_offset(begin) +
                      PackedLayout::byte_of(layout.format.coding, lane + r, 0);
      if (layout.format.coding == WeightCoding::int8) store_int8(codes, count, to);
      if (layout.format.coding == WeightCoding::int4) store_int4(codes, count, to);
      if (layout.format.coding == WeightCoding::fp8) store_fp8(codes, count, to);
    }
  }
  for (int64_t r = 0; r < rows.n_rows(); ++r) {
    for (int64_t g = 0; g < layout.n_groups; ++g) {
      const int64_t at = lane + r;
      std::byte* scale = panel + layout.scale_offset(g) + at * layout.scale_bytes;
      store_values(rows.scales, r, g, layout.scale_bytes, scale);
      if (layout.offset_bytes == 0) continue;
      std::byte* offset = panel + layout.offset_offset(g) + at * layout.offset_bytes;
      store_values(rows.offsets, r, g, layout.offset_bytes, offset);
    }
  }
}

void load_quantised(const WeightFormat& format,
                    const WeightGroup& group,
                    int64_t lane,
                    float* out,
                    int64_t out_stride) {
  const float scale = load_float(group.scales + lane * format.scale_bytes(), format.scale_dtype);
  float zero = 0.0F;
  if (format.offset == WeightOffset::eight) zero = 8.0F;
  if (format.offset == WeightOffset::zero_point) {
    zero = static_cast<float>(std::to_integer<int>(group.offsets[lane]));
  }
  const bool has_minimum = format.offset == WeightOffset::minimum;
  const float minimum = has_minimum ? load_float(group.offsets + 2 * lane, DType::F16) : 0.0F;
  for (int64_t k = 0; k < group.n_cols; ++k) {
    const float value = (code_at(format.coding, group.codes, lane, k) - zero) * scale;
    out[k * out_stride] = has_minimum ? value + minimum : value;
  }
}

}  // namespace testbed::cpu
