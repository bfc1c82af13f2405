// Quantised weights in plain C++, for any processor.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/linear_quantised.hpp"
#include "kernels/cpu/linear_quantised_groups.hpp"
#include "kernels/cpu/linear_x.hpp"
#include "kernels/cpu/packed_quantised.hpp"

namespace testbed::cpu {
namespace {

constexpr int64_t panel_rows = PackedLayout::panel_rows;
constexpr int64_t block_cols = PackedLayout::block_cols;
constexpr int max_rows = 8;

float load_scale(const std::byte* from, int64_t i, DType dtype) {
  if (dtype == DType::F32) return reinterpret_cast<const float*>(from)[i];
  return to_f32(reinterpret_cast<const f16*>(from)[i]);
}

// What is taken from each code.
void load_zeros(const WeightGroup& group, const WeightFormat& format, int32_t* zeros) {
  const int32_t constant = format.coding == WeightCoding::int8    ? 128
                           : format.offset == WeightOffset::eight ? 8
                                                                  : 0;
  std::fill_n(zeros, panel_rows, constant);
  if (format.offset != WeightOffset::zero_point) return;
  for (int64_t i = 0; i < panel_rows; ++i) zeros[i] = std::to_integer<int32_t>(group.offsets[i]);
}

// Codes of one block, less their zeros: [32][16].
void load_block(const std::byte* codes, bool is_int4, const int32_t* zeros, int32_t* out) {
  for (int64_t k = 0; k < block_cols; ++k) {
    for (int64_t i = 0; i < panel_rows; ++i) {
      const std::byte byte = codes[k / (is_int4 ? 8 : 4) * 64 + i * 4 + k % 4];
      const int shift = is_int4 && k % 8 >= 4 ? 4 : 0;
      const int code = std::to_integer<int>(byte) >> shift & (is_int4 ? 15 : 255);
      out[k * panel_rows + i] = code - zeros[i];
    }
  }
}

// parts[r][i] += scale of x times the block's integer dot product.
void add_block(
    const LinearTile& t, int64_t first_col, const int32_t* weights, float* parts, int64_t stride) {
  const auto* x = static_cast<const int8_t*>(t.x) + first_col * t.n_rows;
  const float* scales = t.x_scales + first_col / block_cols * t.n_rows;
  for (int64_t r = 0; r < t.n_rows; ++r) {
    int32_t dots[panel_rows] = {};
    for (int64_t k = 0; k < block_cols; ++k) {
      const int8_t* code = x + (k / 4 * t.n_rows + r) * 4 + k % 4;
      for (int64_t i = 0; i < panel_rows; ++i) dots[i] += *code * weights[k * panel_rows + i];
    }
    for (int64_t i = 0; i < panel_rows; ++i) {
      parts[r * stride + i] += static_cast<float>(dots[i]) * scales[r];
    }
  }
}

void finish_group(const LinearTile& t, const WeightGroup& group, const float* parts, float* c) {
  const WeightFormat& format = t.layout->format;
  const bool has_minimum = format.offset == WeightOffset::minimum;
  for (int64_t r = 0; r < t.n_rows; ++r) {
    float* sums = c + r * t.c_stride;
    for (int64_t i = 0; i < panel_rows; ++i) {
      sums[i] += load_scale(group.scales, i, format.scale_dtype) * parts[r * panel_rows + i];
    }
    if (!has_minimum) continue;
    const float x_sum = t.x_sums[group.first_col / block_cols * t.n_rows + r];
    for (int64_t i = 0; i < panel_rows; ++i) {
      sums[i] += load_scale(group.offsets, i, DType::F16) * x_sum;
    }
  }
}

void panel_tile(const LinearTile& t) {
  const WeightFormat& format = t.layout->format;
  const bool is_int4 = format.coding == WeightCoding::int4;
  const bool one_group = format.group_cols == 0;
  for (int64_t r = 0; r < t.n_rows; ++r) {
    if (t.first) std::fill_n(t.c + r * t.c_stride, panel_rows, 0.0F);
  }
  for_each_group(t, [&](const WeightGroup& group) {
    float group_parts[max_rows * panel_rows] = {};
    float* parts = one_group ? t.c : group_parts;
    const int64_t stride = one_group ? t.c_stride : panel_rows;
    int32_t zeros[panel_rows];
    load_zeros(group, format, zeros);
    const int64_t block_bytes = is_int4 ? 256 : 512;
    for (int64_t b = 0; b < group.n_cols / block_cols; ++b) {
      int32_t weights[block_cols * panel_rows];
      load_block(group.codes + b * block_bytes, is_int4, zeros, weights);
      add_block(t, group.first_col + b * block_cols, weights, parts, stride);
    }
    if (!one_group) finish_group(t, group, parts, t.c);
  });
  for (int64_t r = 0; one_group && t.last && r < t.n_rows; ++r) {
    for (int64_t i = 0; i < panel_rows; ++i) {
      t.c[r * t.c_stride + i] *= load_scale(t.row_scales, i, format.scale_dtype);
    }
  }
}

void tile(const LinearTile& t) {
  LinearTile panel = t;
  for (int p = 0; p < t.n_panels; ++p) {
    panel_tile(panel);
    panel.w += t.panel_bytes;
    panel.row_scales += t.panel_bytes;
    panel.c += panel_rows;
  }
}

}  // namespace

LinearKernel portable_int_kernel() {
  return {.x_packing = XPacking::int8, .max_rows = max_rows, .n_accumulators = 8, .tile = tile};
}

void portable_expand(const WeightFormat& format, const WeightGroup& group, float* out) {
  for (int64_t lane = 0; lane < panel_rows; ++lane) {
    load_quantised(format, group, lane, out + lane, panel_rows);
  }
}

void portable_quantise_x(const bf16* x, int64_t n_cols, const QuantisedX& out) {
  for (int64_t begin = 0, b = 0; begin < n_cols; begin += block_cols, ++b) {
    const int64_t n = std::min(block_cols, n_cols - begin);
    uint32_t largest = 0;  // magnitude, as bits: NaN above infinity above all numbers
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, x[begin + i].bits & 0x7fffU);
    const bool finite = largest < 0x7f80U;
    const float scale = std::bit_cast<float>(largest << 16) / 127.0F;
    int32_t sum = 0;
    int8_t* codes = out.codes + begin;
    std::fill_n(codes, block_cols, int8_t{0});
    for (int64_t i = 0; finite && largest != 0 && i < n; ++i) {
      const float code = std::nearbyint(to_f32(x[begin + i]) / scale);
      codes[i] = static_cast<int8_t>(std::clamp(code, -127.0F, 127.0F));
      sum += codes[i];
    }
    out.scales[b] = finite ? scale : std::numeric_limits<float>::quiet_NaN();
    out.negated_sums[b] = -sum;
    out.sums[b] = out.scales[b] * static_cast<float>(sum);
  }
}

}  // namespace testbed::cpu
