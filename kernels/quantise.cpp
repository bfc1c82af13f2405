#include "kernels/quantise.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/base/errors.hpp"
#include "kernels/base/float16.hpp"

namespace testbed {
namespace {

constexpr float e4m3_max = 448.0F;
constexpr float f16_max = 65504.0F;

// Scales and minima, which may be F32 or F16.
void store(TensorView x, int64_t i, float value) {
  if (x.dtype() == DType::F32) {
    x.as<float>()[i] = value;
  } else {
    x.as<f16>()[i] = to_f16(value);
  }
}

float load(TensorView x, int64_t i) {
  return x.dtype() == DType::F32 ? x.as<float>()[i] : to_f32(x.as<f16>()[i]);
}

// As it will be held; 1 if nothing is left of it.
float held_scale(float wanted, DType dtype) {
  if (dtype == DType::F16) wanted = to_f32(to_f16(std::min(wanted, f16_max)));
  return wanted == 0.0F ? 1.0F : wanted;
}

// Elements are taken in strips of a constant length, without branches, so that compilers use vector
// instructions at any level of optimisation.
constexpr int64_t strip = 32;

// All of [0, n): in strips, then what is left one by one.
template <typename Strip, typename One>
void for_strips(int64_t n, Strip&& take_strip, One&& take_one) {
  int64_t i = 0;
  for (; i + strip <= n; i += strip) take_strip(i);
  for (; i < n; ++i) take_one(i);
}

uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffU; }

// Magnitudes are ordered as their bits are; NaN's are above infinity's.
float largest_magnitude(const float* w, int64_t n) {
  std::array<int32_t, strip> largest{};
  const auto bits = [&](int64_t i) { return static_cast<int32_t>(magnitude_bits(w[i])); };
  for_strips(
      n,
      [&](int64_t i) {
        for (int64_t j = 0; j < strip; ++j) {
          int32_t& of_lane = largest[static_cast<size_t>(j)];
          of_lane = bits(i + j) > of_lane ? bits(i + j) : of_lane;
        }
      },
      [&](int64_t i) { largest[0] = std::max(largest[0], bits(i)); });
  return std::bit_cast<float>(*std::max_element(largest.begin(), largest.end()));
}

// One group of columns of one row.
struct Group {
  const float* w;
  int8_t* codes;
  int64_t n;
};

template <typename Encode>
void encode_all(const Group& g, const Encode& encode) {
  for_strips(
      g.n,
      [&](int64_t i) {
        for (int64_t j = 0; j < strip; ++j) g.codes[i + j] = encode(g.w[i + j]);
      },
      [&](int64_t i) { g.codes[i] = encode(g.w[i]); });
}

float clamped(float x, float limit) {
  x = x < limit ? x : limit;
  return x > -limit ? x : -limit;
}

// The nearest integer of |x| < 2^22, halves to even: the sum has no bits below the units.
int32_t nearest(float x) {
  constexpr float units = 0x1.8p23F;
  return std::bit_cast<int32_t>(x + units) - std::bit_cast<int32_t>(units);
}

void encode_int8(const Group& g, float scale) {
  encode_all(g,
             [scale](float w) { return static_cast<int8_t>(nearest(clamped(w / scale, 127.0F))); });
}

// to_e4m3 of what is within its range.
uint32_t e4m3_in_range(float x) {
  constexpr uint32_t smallest_normal = std::bit_cast<uint32_t>(0x1p-6F);
  constexpr float subnormal_units = 0x1.8p14F;  // its last bit is 2^-9
  const uint32_t magnitude = magnitude_bits(x);
  const uint32_t normal = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + subnormal_units) -
      std::bit_cast<uint32_t>(subnormal_units);
  const uint32_t sign = (std::bit_cast<uint32_t>(x) >> 24) & 0x80U;
  return sign | (magnitude < smallest_normal ? subnormal : normal);
}

void encode_fp8(const Group& g, float scale) {
  encode_all(g, [scale](float w) {
    return static_cast<int8_t>(e4m3_in_range(clamped(w / scale, e4m3_max)));
  });
}

struct Extent {
  float low = 0.0F;
  float high = 0.0F;
};

// Of the values and 0.
Extent extent_of(const float* w, int64_t n) {
  std::array<float, strip> low{};
  std::array<float, strip> high{};
  const auto take = [&](size_t lane, float x) {
    low[lane] = x < low[lane] ? x : low[lane];
    high[lane] = x > high[lane] ? x : high[lane];
  };
  for_strips(
      n,
      [&](int64_t i) {
        for (int64_t j = 0; j < strip; ++j) take(static_cast<size_t>(j), w[i + j]);
      },
      [&](int64_t i) { take(0, w[i]); });
  return {*std::min_element(low.begin(), low.end()), *std::max_element(high.begin(), high.end())};
}

struct ScaleAndZero {
  float scale;
  float zero;
};

ScaleAndZero encode_int4(const Group& g, DType scale_dtype) {
  const Extent extent = extent_of(g.w, g.n);
  const float scale = held_scale((extent.high - extent.low) / 15.0F, scale_dtype);
  const int32_t zero = std::clamp(nearest(clamped(-extent.low / scale, 15.0F)), 0, 15);
  encode_all(g, [scale, zero](float w) {
    // Beyond 32 steps a code is 0 or 15 whatever the zero point.
    const int32_t code = nearest(clamped(w / scale, 32.0F)) + zero;
    return static_cast<int8_t>(code < 0 ? 0 : code > 15 ? 15 : code);
  });
  return {scale, static_cast<float>(zero)};
}

class Quantiser {
 public:
  Quantiser(TensorView rows, const QuantisedRows& out, std::optional<float> tensor_amax)
      : rows_(rows), out_(out), n_cols_(out.n_cols()), tensor_amax_(tensor_amax) {
    const WeightFormat& format = out.format;
    CHECK(format.is_quantised() && rows.dtype() == DType::F32);
    CHECK(rows.n_rows() == out.n_rows() && (rows.n_rows() == 0 || rows.row_elements() == n_cols_));
    CHECK(format.group_rows != 0 || tensor_amax.has_value());
    n_groups_ = format.n_groups(n_cols_);
    group_cols_ = format.group_cols == 0 ? std::max<int64_t>(n_cols_, 1) : format.group_cols;
  }

  void run() {
    const int64_t n = rows_.n_rows();
    if (!std::isfinite(largest_magnitude(rows_.as<float>(), rows_.n_elements()))) {
      throw WeightsError("a weight that is to be quantised is not finite");
    }
    const int64_t together = out_.format.group_rows == 0 ? n : out_.format.group_rows;
    for (int64_t begin = 0; begin < n; begin += together) {
      const int64_t end = std::min(begin + together, n);
      for (int64_t g = 0; g < n_groups_; ++g) encode(begin, end, g);
    }
  }

 private:
  Group group(int64_t row, int64_t g) const {
    const int64_t at = row * n_cols_ + g * group_cols_;
    return {rows_.as<float>() + at,
            out_.codes.as<int8_t>() + at,
            std::min(group_cols_, n_cols_ - g * group_cols_)};
  }

  float amax(int64_t begin, int64_t end, int64_t g) const {
    if (out_.format.group_rows == 0) return *tensor_amax_;
    float largest = 0.0F;
    for (int64_t row = begin; row < end; ++row) {
      const Group of_row = group(row, g);
      largest = std::max(largest, largest_magnitude(of_row.w, of_row.n));
    }
    return largest;
  }

  // Group g of rows [begin, end), which share a scale.
  void encode(int64_t begin, int64_t end, int64_t g) const {
    const WeightFormat& format = out_.format;
    if (format.coding == WeightCoding::int4) {
      CHECK(format.offset == WeightOffset::zero_point && end == begin + 1);
      const ScaleAndZero held = encode_int4(group(begin, g), format.scale_dtype);
      store(out_.scales, begin * n_groups_ + g, held.scale);
      out_.offsets.as<int8_t>()[begin * n_groups_ + g] = static_cast<int8_t>(held.zero);
      return;
    }
    const bool fp8 = format.coding == WeightCoding::fp8;
    const float scale =
        held_scale(amax(begin, end, g) / (fp8 ? e4m3_max : 127.0F), format.scale_dtype);
    for (int64_t row = begin; row < end; ++row) {
      fp8 ? encode_fp8(group(row, g), scale) : encode_int8(group(row, g), scale);
      store(out_.scales, row * n_groups_ + g, scale);
    }
  }

  TensorView rows_;
  const QuantisedRows& out_;
  int64_t n_cols_;
  std::optional<float> tensor_amax_;
  int64_t n_groups_ = 0;
  int64_t group_cols_ = 1;
};

float value_of(WeightCoding coding, int8_t code) {
  return coding == WeightCoding::fp8 ? from_e4m3(std::bit_cast<uint8_t>(code))
                                     : static_cast<float>(code);
}

}  // namespace

QuantisedRows QuantisedRows::rows(int64_t begin, int64_t count) const {
  return {format,
          codes.rows(begin, count),
          scales.rows(begin, count),
          offsets.data() == nullptr ? TensorView() : offsets.rows(begin, count)};
}

QuantisedTensor::QuantisedTensor(const WeightFormat& wanted, int64_t n_rows, int64_t n_cols)
    : format(wanted),
      codes(DType::I8, {n_rows, n_cols}),
      scales(wanted.scale_dtype, {n_rows, wanted.n_groups(n_cols)}) {
  if (wanted.offset == WeightOffset::zero_point) {
    offsets = Tensor(DType::I8, {n_rows, wanted.n_groups(n_cols)});
  } else if (wanted.offset == WeightOffset::minimum) {
    offsets = Tensor(DType::F16, {n_rows, wanted.n_groups(n_cols)});
  }
}

void quantise(TensorView rows, const QuantisedRows& out, std::optional<float> tensor_amax) {
  Quantiser(rows, out, tensor_amax).run();
}

void dequantise(const QuantisedRows& rows, TensorView out) {
  CHECK(out.dtype() == DType::F32 && out.n_elements() == rows.codes.n_elements());
  const WeightFormat& format = rows.format;
  const int64_t n_cols = rows.n_cols();
  const int64_t n_groups = format.n_groups(n_cols);
  const int64_t group_cols = format.group_cols == 0 ? n_cols : format.group_cols;
  for (int64_t row = 0; row < rows.n_rows(); ++row) {
    for (int64_t k = 0; k < n_cols; ++k) {
      const int64_t at = row * n_groups + k / group_cols;
      float code = value_of(format.coding, rows.codes.as<int8_t>()[row * n_cols + k]);
      if (format.offset == WeightOffset::eight) code -= 8.0F;
      if (format.offset == WeightOffset::zero_point) {
        code -= static_cast<float>(rows.offsets.as<int8_t>()[at]);
      }
      float value = code * load(rows.scales, at);
      if (format.offset == WeightOffset::minimum) value += load(rows.offsets, at);
      out.as<float>()[row * n_cols + k] = value;
    }
  }
}

float largest_magnitude(TensorView values) {
  return largest_magnitude(values.as<float>(), values.n_elements());
}

uint8_t to_e4m3(float x) {
  if (std::isnan(x)) return std::signbit(x) ? 0xffU : 0x7fU;
  return static_cast<uint8_t>(e4m3_in_range(clamped(x, e4m3_max)));
}

float from_e4m3(uint8_t bits) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t exponent = (i >> 3) & 15U;
      const auto fraction = static_cast<float>(i & 7U);
      float value = exponent == 0
                        ? fraction * 0x1p-9F
                        : std::ldexp(1.0F + fraction / 8.0F, static_cast<int>(exponent) - 7);
      if ((i & 0x7fU) == 0x7fU) value = std::nanf("");
      all[i] = (i & 0x80U) != 0 ? -value : value;
    }
    return all;
  }();
  return values[bits];
}

}  // namespace testbed
