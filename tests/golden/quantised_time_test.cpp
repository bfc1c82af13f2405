// Simulated products with quantised weights: exact times worked out by hand, and what they gain and
// lose on a calibrated device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/errors.hpp"
#include "kernels/sim/sim_device.hpp"
#include "runtime/config/device_config.hpp"

namespace testbed {
namespace {

using ::testing::HasSubstr;

// 100 TFLOP/s, 1 TB/s, and 100 SMs of 128 lanes at 1 GHz: 12.8e12 instructions of lanes a second.
DeviceSpec ideal() {
  DeviceSpec device{.name = "ideal", .memory_bytes_per_s = 1e12};
  device.peak_flops[MathType::bf16] = 1e14;
  device.chip.n_sm = 100;
  device.chip.boost_hz = 1e9;
  return device;
}

double linear_s(
    const DeviceSpec& spec, const WeightFormat& format, int64_t m, int64_t n, int64_t k) {
  SimClock clock;
  SimDevice device(spec, clock, DType::BF16, 1);
  const WeightMatrix weight = device.allocate_weight(n, k, format);
  device.linear(
      device.allocate(DType::BF16, {m, k}), weight, {}, device.allocate(DType::BF16, {m, n}));
  return clock.now_s();
}

double experts_s(const WeightFormat& format, const std::vector<int64_t>& first_row) {
  constexpr int64_t side = 1024;
  const DeviceSpec spec = ideal();
  SimClock clock;
  SimDevice device(spec, clock, DType::BF16, 1);
  const std::vector<WeightMatrix> weights(first_row.size() - 1,
                                          device.allocate_weight(side, side, format));
  const int64_t m = first_row.back();
  const Tensor x = device.allocate(DType::BF16, {m, side});
  device.expert_linear(x, {first_row}, weights, {}, device.allocate(DType::BF16, {m, side}), m);
  return clock.now_s();
}

// n = k = 1024: 524,288 bytes of codes, 1024 rows x 8 groups x (2 + 1) bytes of scales and zero
// points: 548,864. Activations: m x 2048 x 2 bytes. Expanding: 1024 x 1024 x 242 / 64 = 3,964,928
// instructions, 0.30976 us. Product: m x 2,097,152 FLOPs, 0.02097152 us a row.
TEST(QuantisedTime, an_int4_product_by_hand) {
  const auto time_s = [](int64_t m) {
    return linear_s(ideal(), weight_formats::int4_g128, m, 1024, 1024);
  };
  // One row: memory, 548,864 + 4,096 bytes; 0.33 us of arithmetic overlap it.
  EXPECT_NEAR(time_s(1), 0.55296e-6, 1e-15);
  // 64 rows: expanding and multiplying, 0.30976 + 64 x 0.02097152; memory 0.811008 overlaps.
  EXPECT_NEAR(time_s(64), 1.65193728e-6, 1e-15);
  // 128 rows: first the weights are expanded, as fast as they are read, 0.548864; then the product,
  // 128 x 0.02097152.
  EXPECT_NEAR(time_s(128), (0.548864 + 2.68435456) * 1e-6, 1e-15);
}

TEST(QuantisedTime, experts_are_expanded_for_every_64_rows) {
  // Two experts, 2 x 0.30976 us to expand; 128 rows are 2.68435456 us of product.
  constexpr double once = 2 * 0.30976e-6;
  constexpr double product = 2.68435456e-6;
  EXPECT_NEAR(experts_s(weight_formats::int4_g128, {0, 64, 128}), once + product, 1e-15);
  EXPECT_NEAR(experts_s(weight_formats::int4_g128, {0, 64, 192}), 2 * once + 1.5 * product, 1e-15);
}

TEST(QuantisedTime, embedded_rows_are_expanded) {
  const DeviceSpec spec = [] {
    DeviceSpec fast = ideal();
    fast.memory_bytes_per_s = 1e15;
    return fast;
  }();
  SimClock clock;
  SimDevice device(spec, clock, DType::BF16, 1);
  const WeightMatrix table = device.allocate_weight(100, 64, weight_formats::int8_row);
  const std::vector<int32_t> ids = {3, 200, 7};  // 200: not here
  device.embed(ids, table, 0, device.allocate(DType::BF16, {3, 64}));
  EXPECT_NEAR(clock.now_s(), 2 * 392 / 12.8e12, 1e-18);
}

// Of the bytes, 0.516 of bf16's 2: what cannot be gained is x, y and the instructions. Large
// products gain nothing.
TEST(QuantisedTime, on_an_h100_decode_gains_less_than_the_bytes_and_prefill_loses) {
  constexpr int64_t side = 8192;
  const DeviceSpec h100 = read_device("h100-sxm");
  for (const WeightFormat& format : {weight_formats::int4_g128, weight_formats::int8_row}) {
    const double of_bytes = static_cast<double>(WeightFormat(DType::BF16).n_bytes(side, side)) /
                            static_cast<double>(format.n_bytes(side, side));
    const double gain =
        linear_s(h100, DType::BF16, 1, side, side) / linear_s(h100, format, 1, side, side);
    EXPECT_LT(gain, of_bytes);
    EXPECT_GT(gain, 0.6 * of_bytes);
    EXPECT_GT(linear_s(h100, format, 8192, side, side),
              linear_s(h100, DType::BF16, 8192, side, side));
  }
}

TEST(QuantisedTime, a_chip_that_is_not_described_is_refused) {
  DeviceSpec device = ideal();
  device.chip.boost_hz = 0.0;
  EXPECT_GT(linear_s(device, DType::BF16, 1, 64, 64), 0.0);
  try {
    linear_s(device, weight_formats::int8_row, 1, 64, 64);
    FAIL() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("device ideal"));
    EXPECT_THAT(error.what(), HasSubstr("boost_mhz"));
  }
}

}  // namespace
}  // namespace testbed
