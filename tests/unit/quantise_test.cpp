// quantise() and dequantise() against the unit references (tests/fixtures/units/quant.json), bit
// for bit, and what the references do not show: short groups, slices, refusals.
#include "kernels/quantise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/base/errors.hpp"
#include "kernels/base/float16.hpp"
#include "runtime/weights/safetensors_file.hpp"
#include "tests/unit/weights_builders.hpp"

namespace testbed {
namespace {

using namespace weight_formats;

// Those that quantise() makes; others come from files.
constexpr auto quantisable = std::span(weight_formats::quantised).first<8>();
static_assert(quantisable.back().format == fp8_block128);

const SafetensorsFile& references() {
  static const SafetensorsFile file =
      SafetensorsFile::open(test::fixture("units/quant.safetensors"));
  return file;
}

template <typename T>
std::vector<T> values(const std::string& name) {
  const auto& tensor = references().tensors().at(name);
  std::vector<T> out(tensor.data.size() / sizeof(T));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

template <typename T>
std::vector<T> values(TensorView x) {
  const T* begin = static_cast<const T*>(x.data());
  return {begin, begin + x.n_bytes() / static_cast<int64_t>(sizeof(T))};
}

Tensor source_of(const std::string& matrix) {
  const auto& tensor = references().tensors().at(matrix + ".source");
  Tensor out(DType::F32, {tensor.shape[0], tensor.shape[1]});
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

QuantisedTensor quantised_rows(TensorView rows, const WeightFormat& format) {
  QuantisedTensor out(format, rows.n_rows(), rows.row_elements());
  quantise(rows, out, largest_magnitude(rows));
  return out;
}

Tensor dequantised(const QuantisedRows& rows) {
  Tensor out(DType::F32, {rows.n_rows(), rows.n_cols()});
  dequantise(rows, out);
  return out;
}

// The reference's scale of each block of rows and of columns, as each row holds it.
std::vector<float> spread(const std::vector<float>& scales,
                          int64_t n_rows,
                          int64_t group_rows,
                          int64_t n_groups) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>(n_rows * n_groups));
  for (int64_t row = 0; row < n_rows; ++row) {
    const int64_t at = group_rows == 0 ? 0 : row / group_rows;
    for (int64_t g = 0; g < n_groups; ++g) {
      out.push_back(scales.at(static_cast<size_t>(at * n_groups + g)));
    }
  }
  return out;
}

struct Case {
  const char* name;  // in the references
  WeightFormat format;
};

class QuantiseReference : public testing::TestWithParam<Case> {};

TEST_P(QuantiseReference, codes_and_scales_bit_for_bit) {
  const auto& [name, format] = GetParam();
  for (const std::string matrix : {"a", "b", "c"}) {
    SCOPED_TRACE(matrix);
    const Tensor source = source_of(matrix);
    const QuantisedTensor got = quantised_rows(source, format);
    const std::string of = matrix + "." + name;
    EXPECT_EQ(values<int8_t>(got.codes), values<int8_t>(of + ".q"));
    const int64_t n_rows = source.shape()[0];
    const int64_t n_groups = format.n_groups(source.shape()[1]);
    if (format.scale_dtype == DType::F16) {
      EXPECT_EQ(values<uint16_t>(got.scales), values<uint16_t>(of + ".scale"));
      EXPECT_EQ(values<int8_t>(got.offsets), values<int8_t>(of + ".zero"));
    } else {
      EXPECT_EQ(values<float>(got.scales),
                spread(values<float>(of + ".scale"), n_rows, format.group_rows, n_groups));
    }
  }
}

TEST_P(QuantiseReference, dequantised_bit_for_bit) {
  const auto& [name, format] = GetParam();
  const QuantisedTensor codes = quantised_rows(source_of("c"), format);
  EXPECT_EQ(values<float>(dequantised(codes)),
            values<float>(std::string("c.") + name + ".dequant"));
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         QuantiseReference,
                         testing::Values(Case{"int8", int8_row},
                                         Case{"int4", int4_g128},
                                         Case{"fp8_tensor", fp8_tensor},
                                         Case{"fp8_channel", fp8_row},
                                         Case{"fp8_block128", fp8_block128}),
                         [](const auto& p) { return std::string(p.param.name); });

TEST(Quantise, e4m3_rounds_as_the_references) {
  const auto in = values<float>("e4m3fn.edge_in");
  const auto out = values<uint8_t>("e4m3fn.edge_out");
  ASSERT_EQ(in.size(), out.size());
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(to_e4m3(in[i]), out[i]) << in[i];
  const auto table = values<float>("e4m3fn.table");
  for (size_t i = 0; i < table.size(); ++i) {
    const float value = from_e4m3(static_cast<uint8_t>(i));
    if (std::isnan(table[i])) {
      EXPECT_TRUE(std::isnan(value)) << i;
    } else {
      EXPECT_EQ(value, table[i]) << i;
      EXPECT_EQ(to_e4m3(value), i);
    }
  }
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_e4m3(1e4F), 0x7e);
  EXPECT_EQ(to_e4m3(infinity), 0x7e);
  EXPECT_EQ(to_e4m3(-infinity), 0xfe);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7f);
}

// Every value within half a step of what its code stands for. int4 clamps at both ends, by at most
// a step more when the zero point was rounded; f16 scales are off by 2^-11 of themselves, and that
// over the 15 or 127 steps of a code.
TEST(Quantise, every_format_is_within_its_step) {
  const Tensor source = source_of("a");
  for (const auto& [name, format] : quantisable) {
    SCOPED_TRACE(name);
    const QuantisedTensor codes = quantised_rows(source, format);
    const auto back = values<float>(dequantised(codes));
    const int64_t n_groups = format.n_groups(256);
    for (size_t i = 0; i < back.size(); ++i) {
      const size_t row = i / 256;
      const auto group =
          format.group_cols == 0 ? 0 : static_cast<int64_t>(i % 256) / format.group_cols;
      const size_t at = row * static_cast<size_t>(n_groups) + static_cast<size_t>(group);
      const float scale = format.scale_dtype == DType::F16 ? to_f32(codes.scales.as<f16>()[at])
                                                           : codes.scales.as<float>()[at];
      const float w = source.as<float>()[i];
      float step = scale;
      if (format.coding == WeightCoding::fp8) step = std::max(std::abs(w) / 8.0F, scale * 0x1p-9F);
      const float slack = format.coding == WeightCoding::int4 ? 1.01F : 0.57F;
      EXPECT_LE(std::abs(back[i] - w), slack * step) << i;
    }
  }
}

// 70 columns: groups of 32, 32 and 6; 200 rows: blocks of 128 and 72.
Tensor ragged() {
  Tensor x(DType::F32, {200, 70});
  for (int64_t i = 0; i < x.n_elements(); ++i) {
    x.as<float>()[i] = static_cast<float>(i % 251 - 120) * (i % 70 >= 64 ? 0.001F : 0.02F);
  }
  return x;
}

TEST(Quantise, last_groups_are_short) {
  const Tensor x = ragged();
  const QuantisedTensor codes = quantised_rows(x, int8_g32);
  ASSERT_EQ(codes.scales.shape()[1], 3);
  for (int64_t row = 0; row < 200; ++row) {
    const float amax =
        largest_magnitude(TensorView(x.as<float>() + row * 70 + 64, DType::F32, {1, 6}));
    EXPECT_EQ(codes.scales.as<f16>()[row * 3 + 2].bits, to_f16(amax / 127.0F).bits);
  }
}

// Rows in pieces that begin on groups of rows equal the whole, for every format.
TEST(Quantise, pieces_equal_the_whole) {
  const Tensor x = ragged();
  for (const auto& [name, format] : quantisable) {
    SCOPED_TRACE(name);
    const QuantisedTensor whole = quantised_rows(x, format);
    const QuantisedTensor pieces(format, 200, 70);
    for (const int64_t begin : {0, 128}) {
      const int64_t n = std::min<int64_t>(128, 200 - begin);
      quantise(x.view().rows(begin, n), pieces.view().rows(begin, n), largest_magnitude(x));
    }
    EXPECT_EQ(values<int8_t>(whole.codes), values<int8_t>(pieces.codes));
    EXPECT_EQ(values<uint8_t>(whole.scales), values<uint8_t>(pieces.scales));
    EXPECT_EQ(values<int8_t>(whole.offsets), values<int8_t>(pieces.offsets));
  }
}

TEST(Quantise, extremes_keep_finite_scales) {
  const Tensor x(DType::F32, {2, 32});
  x.as<float>()[0] = 3e38F;    // the f16 scale is its largest
  x.as<float>()[32] = 1e-30F;  // and here 0, so 1
  for (const WeightFormat& format : {int8_g32, int4_g32}) {
    const QuantisedTensor codes = quantised_rows(x, format);
    EXPECT_EQ(to_f32(codes.scales.as<f16>()[0]), 65504.0F);
    EXPECT_EQ(to_f32(codes.scales.as<f16>()[1]), 1.0F);
    EXPECT_EQ(codes.codes.as<int8_t>()[0], format == int8_g32 ? 127 : 15);
    EXPECT_EQ(codes.codes.as<int8_t>()[32], 0);
  }
}

TEST(Quantise, what_is_not_finite_is_refused) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const Tensor x(DType::F32, {3, 40});
    x.as<float>()[2 * 40 + 37] = bad;
    const QuantisedTensor out(int8_g32, 3, 40);
    EXPECT_THROW(quantise(x, out), WeightsError);
  }
}

}  // namespace
}  // namespace testbed
