// The fits of a probe: points made by the model with known parameters must give these back.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention_cost.hpp"
#include "kernels/base/contiguous_sequence.hpp"
#include "kernels/cost.hpp"
#include "kernels/sim/op_time.hpp"
#include "runtime/probe/fit_device.hpp"
#include "runtime/probe/fit_link.hpp"
#include "runtime/probe/pattern_search.hpp"

namespace testbed {
namespace {

// The search ends at steps of 1e-5 of a parameter; the points hold each parameter apart.
constexpr double relative = 1e-2;
#define EXPECT_CLOSE(a, b) EXPECT_NEAR((a) / (b), 1.0, relative)

TEST(PatternSearch, FindsTheLeastValueOfAKinkedFunction) {
  // max(x/3, 5/x) + |log(y/7)| is least at x = sqrt(15), y = 7.
  const auto f = [](const std::vector<double>& x) {
    return std::max(x[0] / 3.0, 5.0 / x[0]) + std::abs(std::log(x[1] / 7.0));
  };
  const std::vector<double> x = least_value(
      f, {{.start = 1.0, .least = 1e-3, .most = 1e3}, {.start = 0.1, .least = 1e-3, .most = 1e3}});
  EXPECT_NEAR(x[0], std::sqrt(15.0), 1e-3);
  EXPECT_NEAR(x[1], 7.0, 1e-3);
}

TEST(PatternSearch, StaysInRange) {
  const std::vector<double> x = least_value([](const std::vector<double>& v) { return -v[0]; },
                                            {{.start = 1.0, .least = 0.5, .most = 2.0}});
  EXPECT_EQ(x[0], 2.0);
}

DeviceSpec known_device() {
  DeviceSpec device{.name = "known",
                    .memory_bytes = int64_t{1} << 34,
                    .memory_bytes_per_s = 30e9,
                    .peak_flops = {{MathType::bf16, 240e9}}};
  device.timing.linear = {.compute_efficiency = 0.9, .memory_efficiency = 0.95, .start_s = 4e-6};
  device.timing.attention_decode = {
      .compute_efficiency = 0.5, .memory_efficiency = 0.6, .start_s = 20e-6};
  device.timing.attention_prefill = {
      .compute_efficiency = 0.3, .memory_efficiency = 0.5, .start_s = 20e-6};
  device.timing.elementwise = {.memory_efficiency = 0.4, .start_s = 2e-6};
  return device;
}

MeasuredOp timed(const DeviceSpec& device, MeasuredOp op) {
  op.seconds = op_seconds(device, op.kind, op.cost, op.shape, MathType::bf16);
  return op;
}

std::vector<MeasuredOp> measured_on(const DeviceSpec& device) {
  std::vector<MeasuredOp> ops;
  for (const int64_t m : {1, 4, 64, 512}) {
    for (const int64_t n : {64, 4096}) {
      ops.push_back(timed(device,
                          {.kind = OpKind::linear,
                           .shape = {.m = m, .n = n, .k = 1024},
                           .cost = linear_cost(m, n, 1024, n, DType::BF16, DType::BF16),
                           .point = GemmPoint{.m = m, .n = n, .k = 1024}}));
    }
  }
  for (const int64_t context : {16, 512, 8192}) {
    for (const int64_t n_rows : {int64_t{1}, context}) {
      const ContiguousSequence contiguous(n_rows, context);
      const AttentionSequence sequence = contiguous.view();
      ops.push_back(timed(device,
                          {.kind = OpKind::attention,
                           .shape = {.n_sequences = 1,
                                     .n_query_rows = n_rows,
                                     .longest_context = context,
                                     .n_kv_heads = 8},
                           .cost = attention_cost({&sequence, 1}, 0, 8, {8, 128, 128}),
                           .point = AttentionPoint{.context = context}}));
    }
  }
  for (const int64_t rows : {1, 8, 512}) {
    for (const int64_t width : {4096, 14336}) {
      ops.push_back(timed(device,
                          {.kind = OpKind::norm,
                           .cost = norm_cost(rows, width, true, DType::BF16),
                           .point = ElementwisePoint{.rows = rows, .width = width}}));
    }
  }
  return ops;
}

TEST(FitDevice, GivesBackTheTimingThatMadeThePoints) {
  DeviceSpec device = known_device();
  const std::vector<MeasuredOp> ops = measured_on(device);
  const DeviceTiming& known = device.timing;
  const DeviceTiming fitted = fit_device_timing(device, ops, MathType::bf16);
  EXPECT_CLOSE(fitted.linear.compute_efficiency, known.linear.compute_efficiency);
  EXPECT_CLOSE(fitted.linear.memory_efficiency, known.linear.memory_efficiency);
  EXPECT_CLOSE(fitted.linear.start_s, known.linear.start_s);
  EXPECT_CLOSE(fitted.attention_decode.memory_efficiency, known.attention_decode.memory_efficiency);
  EXPECT_CLOSE(fitted.attention_prefill.compute_efficiency,
               known.attention_prefill.compute_efficiency);
  EXPECT_CLOSE(fitted.elementwise.memory_efficiency, known.elementwise.memory_efficiency);
  EXPECT_CLOSE(fitted.elementwise.start_s, known.elementwise.start_s);
  // 6 products, one attention, 6 small ops.
  EXPECT_CLOSE(fitted.layer_overhead_s, 6 * 4e-6 + 20e-6 + 6 * 2e-6);
  device.timing = fitted;
  for (const OpKind kind : {OpKind::linear, OpKind::attention, OpKind::norm})
    EXPECT_LT(mean_error(device, ops, kind, MathType::bf16), relative);
}

TEST(FitDevice, ErrorIsOfTheModelAgainstTheMeasurement) {
  const DeviceSpec device = known_device();
  std::vector<MeasuredOp> ops = measured_on(device);
  for (MeasuredOp& op : ops) op.seconds *= op.kind == OpKind::linear ? 2.0 : 1.0;
  EXPECT_DOUBLE_EQ(mean_error(device, ops, OpKind::linear, MathType::bf16), 0.5);
  EXPECT_DOUBLE_EQ(mean_error(device, ops, OpKind::attention, MathType::bf16), 0.0);
}

// start + sent / (rate (2/n)^sharing), in two ranges of payload per rank.
double known_us(int n, int64_t bytes, double sent) {
  const double start_s = bytes / n <= 4096 ? 2e-6 : 9e-6;
  const double rate = bytes / n <= 4096 ? 1e9 : 4e9;
  return 1e6 * (start_s + sent / (rate * std::pow(2.0 / n, 0.5)));
}

std::vector<CollectivePoint> known_collectives(const std::vector<int>& sizes) {
  std::vector<CollectivePoint> points;
  for (const int n : sizes) {
    for (int64_t bytes = 512; bytes <= int64_t{1} << 26; bytes *= 2) {
      // Sent per rank: two-shot 2 (n-1)/n S.
      const double sent = 2.0 * static_cast<double>(n - 1) / n * static_cast<double>(bytes);
      points.push_back({.op = CommOp::all_reduce,
                        .n = n,
                        .bytes = bytes,
                        .algorithm = CommAlgorithm::two_shot,
                        .us = known_us(n, bytes, sent)});
    }
  }
  return points;
}

TEST(FitLink, GivesBackTheTimingThatMadeThePoints) {
  const std::vector<CollectivePoint> points = known_collectives({2, 4, 8});
  const LinkTiming timing = fit_link_timing(points);
  const std::vector<ProtocolTiming>& protocols = timing.of.at("all_reduce/two-shot");
  ASSERT_EQ(protocols.size(), 4U);
  EXPECT_EQ(protocols.front().max_bytes, 4096);
  EXPECT_EQ(protocols.back().max_bytes, 0);
  EXPECT_CLOSE(protocols.front().start_s, 2e-6);
  EXPECT_CLOSE(protocols.front().bytes_per_s, 1e9);
  EXPECT_CLOSE(protocols[1].start_s, 9e-6);
  EXPECT_CLOSE(protocols.back().bytes_per_s, 4e9);
  EXPECT_CLOSE(protocols.back().sharing, 0.5);
  for (const CollectivePoint& point : points) EXPECT_CLOSE(modelled_us(timing, point), point.us);
  EXPECT_CLOSE(highest_rate(timing), 4e9);
}

TEST(FitLink, OneGroupSizeSaysNothingOfSharing) {
  for (const auto& [key, protocols] : fit_link_timing(known_collectives({2})).of) {
    for (const ProtocolTiming& protocol : protocols) EXPECT_EQ(protocol.sharing, 0.0);
  }
}

TEST(FitLink, TheLastRangeThatHasPointsHasNoEnd) {
  std::vector<CollectivePoint> points = known_collectives({2});
  points.resize(3);  // 512 to 2048 bytes
  const std::vector<ProtocolTiming> protocols =
      fit_link_timing(points).of.at("all_reduce/two-shot");
  ASSERT_EQ(protocols.size(), 1U);
  EXPECT_EQ(protocols.front().max_bytes, 0);
}

// Where a library has an algorithm only up to some payload, so does the simulated link.
TEST(FitLink, AnAlgorithmIsOfferedUpToThePayloadThatItTakes) {
  std::vector<CollectivePoint> points = known_collectives({2});
  EXPECT_EQ(fit_link_timing(points).of.at("all_reduce/two-shot").back().most_payload_bytes, 0);
  std::erase_if(points, [](const CollectivePoint& point) { return point.bytes > 4096; });
  for (CollectivePoint& point : points) point.most_bytes = 65536;
  const std::vector<ProtocolTiming> protocols =
      fit_link_timing(points).of.at("all_reduce/two-shot");
  EXPECT_EQ(protocols.back().max_bytes, 0);
  EXPECT_EQ(protocols.back().most_payload_bytes, 65536);
}

}  // namespace
}  // namespace testbed
