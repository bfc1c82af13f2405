// The op-time model's own properties: the ideal device is the roofline, infinities drop terms,
// whole tiles quantise.
#include "kernels/sim/op_time.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "kernels/cost.hpp"

namespace testbed {
namespace {

// 100 TFLOP/s and 1 TB/s: ridge at 100 FLOP a byte.
DeviceSpec ideal() {
  DeviceSpec device{.name = "ideal", .memory_bytes_per_s = 1e12};
  device.peak_flops[MathType::bf16] = 1e14;
  device.chip.n_sm = 100;
  return device;
}

double linear_s(const DeviceSpec& device, int64_t m, int64_t n, int64_t k) {
  return pass_op_seconds(device,
                         OpKind::linear,
                         linear_cost(m, n, k, n, DType::BF16, DType::BF16),
                         {.m = m, .n = n, .k = k},
                         MathType::bf16);
}

TEST(OpTime, ideal_linear_is_the_roofline) {
  EXPECT_DOUBLE_EQ(linear_s(ideal(), 1, 1000, 1000), (2e6 + 2e3 + 2e3) / 1e12);
  EXPECT_DOUBLE_EQ(linear_s(ideal(), 4096, 4096, 4096), 2.0 * std::pow(4096.0, 3) / 1e14);
}

TEST(OpTime, whole_tiles_cost_whole_waves) {
  constexpr int64_t side = 64;  // of a tile
  DeviceSpec device = ideal();
  device.timing.tile_fill_k = 4096.0;  // so much that splitting K never pays
  device.memory_bytes_per_s = std::numeric_limits<double>::infinity();
  // One row costs the 16 of a whole tile; 100 SMs take 100 tiles in the time of one.
  EXPECT_DOUBLE_EQ(linear_s(device, 1, 128, side), linear_s(device, 16, 128, side));
  const double full_wave_s = linear_s(device, side, 100 * side, side);
  EXPECT_DOUBLE_EQ(linear_s(device, side, 51 * side, side), full_wave_s);
  EXPECT_GT(linear_s(device, side, 101 * side, side), 1.4 * full_wave_s);
  // Large products reach the peak but for the pipeline fill and the last wave.
  device.timing.tile_fill_k = 1.0;
  const double ideal_s = linear_s(ideal(), 12800, 12800, 8192);
  EXPECT_GE(linear_s(device, 12800, 12800, 8192), ideal_s);
  EXPECT_LT(linear_s(device, 12800, 12800, 8192), 1.05 * ideal_s);
}

TEST(OpTime, experts_are_one_grouped_product) {
  constexpr int64_t side = 64;  // of a tile
  DeviceSpec device = ideal();
  device.timing.tile_fill_k = 4096.0;  // so much that splitting K never pays
  device.memory_bytes_per_s = std::numeric_limits<double>::infinity();
  const auto experts_s = [&](int64_t m, int64_t n_experts, int64_t n) {
    return pass_op_seconds(device,
                           OpKind::expert_linear,
                           grouped_linear_cost(m, n_experts, n, side, DType::BF16, DType::BF16),
                           {.m = m, .n = n, .k = side, .n_matrices = n_experts},
                           MathType::bf16);
  };
  // The experts' tiles share the SMs: 10 experts of 10 tiles are 100 tiles, one wave.
  EXPECT_DOUBLE_EQ(experts_s(10 * side, 10, 10 * side), linear_s(device, side, 100 * side, side));
  // One row of each costs as much as the 16 of a whole tile.
  EXPECT_DOUBLE_EQ(experts_s(10, 10, 10 * side), experts_s(160, 10, 10 * side));
  EXPECT_DOUBLE_EQ(experts_s(side, 1, 100 * side), linear_s(device, side, 100 * side, side));
  // A product per expert with all rows in one would need fewer tiles.
  EXPECT_GT(experts_s(100, 100, 10 * side), 2 * linear_s(device, 100, 10 * side, side));
}

TEST(OpTime, the_op_that_ends_attention_carries_the_layers_overhead) {
  DeviceSpec device = ideal();
  device.timing.layer_overhead_s = 1e-5;
  const auto time_s = [&](OpKind kind, bool partial) {
    return pass_op_seconds(device,
                           kind,
                           {},
                           {.n_sequences = 1, .n_query_rows = 1, .partial = partial},
                           MathType::bf16);
  };
  EXPECT_DOUBLE_EQ(time_s(OpKind::attention, false), 1e-5);
  EXPECT_DOUBLE_EQ(time_s(OpKind::attention, true), 0.0);
  EXPECT_DOUBLE_EQ(time_s(OpKind::merge, true), 0.0);
  EXPECT_DOUBLE_EQ(time_s(OpKind::merge, false), 1e-5);
}

TEST(OpTime, infinite_bandwidth_leaves_finite_compute_and_overhead) {
  DeviceSpec device = ideal();
  device.memory_bytes_per_s = 1e11;
  device.timing.tile_fill_k = 256.0;
  device.timing.layer_overhead_s = 1e-5;
  const double real_s = linear_s(device, 16, 4096, 4096);
  const DeviceSpec slow = device;
  device.memory_bytes_per_s = std::numeric_limits<double>::infinity();
  const double free_s = linear_s(device, 16, 4096, 4096);
  EXPECT_GT(free_s, 0.0);
  EXPECT_LT(free_s, 0.5 * real_s);
  device.peak_flops[MathType::bf16] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(linear_s(device, 16, 4096, 4096), 0.0);
  EXPECT_EQ(pass_op_seconds(
                device, OpKind::norm, norm_cost(8, 4096, true, DType::BF16), {}, MathType::bf16),
            0.0);
  const ContiguousSequence decode(1, 1000);
  const AttentionSequence sequence = decode.view();
  const OpCost cost = attention_cost({&sequence, 1}, 0, 32, {8, 128, 128});
  const OpShape shape{
      .n_sequences = 1, .n_query_rows = 1, .longest_context = 1000, .n_kv_heads = 8};
  EXPECT_DOUBLE_EQ(pass_op_seconds(device, OpKind::attention, cost, shape, MathType::bf16), 1e-5);
  EXPECT_GT(pass_op_seconds(slow, OpKind::attention, cost, shape, MathType::bf16), 1e-5);
}

TEST(OpTime, a_pass_pays_the_layer_overhead_a_kernel_its_start) {
  DeviceSpec device = ideal();
  device.timing.layer_overhead_s = 7e-6;
  device.timing.linear.start_s = 3e-6;
  device.timing.attention_prefill.start_s = 5e-6;
  const OpCost product = linear_cost(8, 64, 64, 64, DType::BF16, DType::BF16);
  const OpShape product_shape{.m = 8, .n = 64, .k = 64};
  EXPECT_NEAR(op_seconds(device, OpKind::linear, product, product_shape, MathType::bf16) -
                  pass_op_seconds(device, OpKind::linear, product, product_shape, MathType::bf16),
              3e-6,
              1e-18);
  const ContiguousSequence prefill(64, 64);
  const AttentionSequence chunk = prefill.view();
  const OpCost cost = attention_cost({&chunk, 1}, 0, 4, {2, 64, 64});
  const OpShape shape{.n_sequences = 1, .n_query_rows = 64, .longest_context = 64, .n_kv_heads = 2};
  EXPECT_NEAR(pass_op_seconds(device, OpKind::attention, cost, shape, MathType::bf16) -
                  op_seconds(device, OpKind::attention, cost, shape, MathType::bf16),
              2e-6,
              1e-18);
}

TEST(OpTime, carried_timing_keeps_fractions_and_cycles) {
  DeviceSpec from = ideal();
  from.name = "measured";
  from.timing.tile_fill_k = 256.0;
  from.timing.decode_unit_s = 4e-6;
  from.timing.linear = {.compute_efficiency = 0.8, .memory_efficiency = 0.7, .start_s = 3e-6};
  from.timing.source = "a table";
  from.chip.boost_hz = 1e9;
  DeviceSpec to = ideal();
  to.chip.architecture = "sm_90";
  to.chip.n_sm = 50;
  EXPECT_EQ(carried_timing(from, to).linear, from.timing.linear);  // its clock is not known
  to.chip.boost_hz = 2e9;
  const DeviceTiming carried = carried_timing(from, to);
  EXPECT_EQ(carried.linear,
            (OpTiming{.compute_efficiency = 0.8, .memory_efficiency = 0.7, .start_s = 1.5e-6}));
  EXPECT_EQ(carried.decode_unit_s, 2e-6);
  EXPECT_EQ(carried.tile_fill_k, 256.0);
  EXPECT_EQ(carried.source,
            "carried from measured: a table; carrying adds 8 to 16 % (docs/calibration.md)");
  to.chip.architecture = "sm_60";  // no tensor cores, no tiles to fill
  EXPECT_EQ(carried_timing(from, to).tile_fill_k, 0.0);
  to.chip.architecture = "sm_90";
  to.chip.n_sm = 0;  // not known
  EXPECT_EQ(carried_timing(from, to).tile_fill_k, 0.0);
  EXPECT_EQ(carried_timing(from, to).decode_unit_s, 2e-6 / 100);
}

}  // namespace
}  // namespace testbed
