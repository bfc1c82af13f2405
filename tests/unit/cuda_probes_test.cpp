// The probes of a GPU on the emulation, at sizes of a moment: each kernel does what its formula
// counts, and what it does is looked at. The times are the emulation's, and only have to be there.
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <set>

#include "kernels/base/errors.hpp"
#include "kernels/probes/cuda/access.hpp"
#include "kernels/probes/cuda/bandwidth.hpp"
#include "kernels/probes/cuda/dequant.hpp"
#include "kernels/probes/cuda/fusion.hpp"
#include "kernels/probes/cuda/latency.hpp"
#include "kernels/probes/cuda/operands.hpp"
#include "kernels/probes/cuda/probe_gpu.hpp"
#include "kernels/probes/cuda/probe_support.hpp"

namespace testbed::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr Effort once{.least_s = 1e-9, .n_timings = 1, .most_calls = 1};

MATCHER(IsARate, "") { return std::isfinite(arg) && arg > 0.0; }

uint32_t* word_of(const Tensor& x) { return static_cast<uint32_t*>(x.data()); }

TEST(CudaProbePattern, SumsAreThoseOfTheWords) {
  for (const uint64_t n : {0U, 1U, 2U, 7U, 1000U}) {
    for (const uint64_t stride : {1U, 2U, 8U, 32U}) {
      uint32_t sum = 0;
      for (uint64_t i = 0; i < n; ++i) sum += pattern_word(i * stride);
      EXPECT_EQ(pattern_sum(n, stride), sum) << n << " by " << stride;
    }
  }
}

// Sizes that are and are not multiples of what a block takes.
TEST(CudaProbeBandwidth, EveryWordIsWrittenCopiedAndReadOnce) {
  Queue queue;
  for (const int64_t n_words : {4, 2044, 2048, 70004}) {
    const Tensor from = device_tensor(DType::I32, {n_words});
    const Tensor to = device_tensor(DType::I32, {n_words});
    const Tensor sum = device_tensor(DType::I32, {1});
    write_memory(queue, from, 2);
    copy_memory(queue, from, to, 2);
    clear(queue, sum);
    read_memory(queue, to, 3, word_of(sum));
    const auto words = values_of<uint32_t>(queue, to);
    for (size_t i = 0; i < words.size(); ++i) ASSERT_EQ(words[i], pattern_word(i)) << i;
    EXPECT_EQ(values_of<uint32_t>(queue, sum).front(),
              3 * pattern_sum(static_cast<uint64_t>(n_words)));
  }
}

TEST(CudaProbeBandwidth, ASampleReadsTheBufferForAWhile) {
  Queue queue;
  const Tensor buffer = device_tensor(DType::I32, {4 * 1024});
  clear(queue, buffer);
  EXPECT_THAT(read_bandwidth_sample(queue, buffer), IsARate());
  EXPECT_EQ(read_buffer_bytes(), 4 * l2_bytes());
  EXPECT_GT(l2_bytes(), 0);
}

TEST(CudaProbeBandwidth, LevelsHaveThreeRates) {
  Queue queue;
  for (const int64_t n_bytes : {32, 1 << 16}) {
    const MemoryLevel level = measure_level(queue, "l2", n_bytes, once);
    EXPECT_EQ(level.n_bytes, n_bytes);
    EXPECT_THAT(level.read_bytes_per_s, IsARate());
    EXPECT_THAT(level.write_bytes_per_s, IsARate());
    EXPECT_THAT(level.copy_bytes_per_s, IsARate());
  }
}

TEST(CudaProbeBandwidth, SharedMemoryIsReadByAllBlocks) {
  Queue queue;
  const SharedMemoryRate rate = measure_shared(queue, 2, 3, once);
  EXPECT_THAT(rate.bytes_per_s, IsARate());
  EXPECT_THAT(rate.bytes_per_sm_and_clock, IsARate());
}

// By hand: the sectors that the addresses of 32 loads fall into.
TEST(CudaProbeStrides, SectorsAreThoseOfTheAddresses) {
  for (const int64_t stride : {1, 2, 4, 8, 16, 32}) {
    std::set<int64_t> sectors;
    for (int64_t lane = 0; lane < 32; ++lane) sectors.insert(lane * stride * 4 / 32);
    EXPECT_EQ(sectors_per_warp(stride), static_cast<int64_t>(sectors.size())) << stride;
  }
  EXPECT_EQ(sectors_per_warp(8), 8 * sectors_per_warp(1));
  EXPECT_EQ(sectors_per_warp(32), 8 * sectors_per_warp(1));
}

// The words that are read tell their addresses: all of a buffer's others are 0.
TEST(CudaProbeStrides, ReadsEveryStridethWordOnce) {
  Queue queue;
  constexpr int64_t n_words = 5000;
  const Tensor buffer = device_tensor(DType::I32, {n_words});
  const Tensor sum = device_tensor(DType::I32, {1});
  for (const int64_t stride : {1, 3, 8, 32}) {
    std::vector<uint32_t> words(n_words, 0x1000000U);
    for (size_t i = 0; i < words.size(); i += static_cast<size_t>(stride)) words[i] = 1;
    copy_to_device(queue, words.data(), buffer);
    clear(queue, sum);
    const int64_t n_loads = read_strided(queue, buffer, stride, word_of(sum));
    EXPECT_EQ(n_loads, n_words / stride);
    EXPECT_EQ(values_of<uint32_t>(queue, sum).front(), n_loads) << stride;
  }
}

TEST(CudaProbeStrides, TrafficIsUsefulBytesTimesSectors) {
  Queue queue;
  const auto rates = measure_strides(queue, 1 << 14, once);
  ASSERT_EQ(rates.size(), 6U);
  for (const StrideRate& rate : rates) {
    EXPECT_THAT(rate.useful_bytes_per_s, IsARate());
    EXPECT_NEAR(rate.sector_bytes_per_s / rate.useful_bytes_per_s,
                static_cast<double>(std::min<int64_t>(rate.stride, 8)),
                1e-12);
  }
}

TEST(CudaProbeOccupancy, BlocksDoubleUpToTheThreadsOfAnSm) {
  Queue queue;
  const auto rates = measure_occupancy(
      queue,
      {.n_sms = 2, .threads_per_sm = 1024, .shared_bytes_per_sm = 228 << 10, .n_bytes = 1 << 14},
      once);
  ASSERT_EQ(rates.size(), 3U);
  EXPECT_EQ(rates[0].threads_per_sm, 256);
  EXPECT_EQ(rates[2].blocks_per_sm, 4);
  for (const OccupancyRate& rate : rates) EXPECT_THAT(rate.read_bytes_per_s, IsARate());
}

TEST(CudaProbeArithmetic, FlopsAreCountedByHand) {
  // 3 blocks x 256 threads x 5 rounds x 8 multiply-adds of two.
  EXPECT_EQ(arithmetic_flops({.n_blocks = 3, .n_rounds = 5}), 61440);
}

TEST(CudaProbeArithmetic, HasTheCudaCoresTypes) {
  Queue queue;
  const auto rates = measure_cuda_cores(queue, {.n_blocks = 1, .n_rounds = 64}, once);
  ASSERT_EQ(rates.size(), 3U);
  EXPECT_EQ(rates[2].type, MathType::f16);
  for (const MathRate& rate : rates) {
    EXPECT_THAT(rate.flops, IsARate());
    EXPECT_FALSE(rate.by_library);
  }
}

TEST(CudaProbeArithmetic, EveryLaneOfADivergingWarpComputes) {
  Queue queue;
  std::vector<int> ways;
  for (const auto& rate : measure_divergence(queue, {.n_blocks = 1, .n_rounds = 64}, once)) {
    ways.push_back(rate.n_ways);
    EXPECT_THAT(rate.flops, IsARate());
  }
  EXPECT_THAT(ways, ElementsAre(1, 2, 4, 8, 16, 32));
}

TEST(CudaProbeLatency, TheCycleVisitsEveryLine) {
  for (const int64_t n : {1, 2, 1000}) {
    const std::vector<uint32_t> next = chase_cycle(n);
    std::set<uint32_t> seen;
    uint32_t line = 0;
    for (int64_t i = 0; i < n; ++i) {
      seen.insert(line);
      line = next[line];
    }
    EXPECT_EQ(line, 0U);
    EXPECT_EQ(seen.size(), static_cast<size_t>(n));
  }
}

TEST(CudaProbeLatency, LoadsAndLaunchesTakeTime) {
  Queue queue;
  for (const int64_t n_bytes : {1, 1 << 14}) {
    const LoadLatency latency = measure_latency(queue, n_bytes, 10, once);
    EXPECT_EQ(latency.n_bytes, std::max<int64_t>(128, n_bytes));
    EXPECT_THAT(latency.seconds, IsARate());
    EXPECT_THAT(latency.clocks, IsARate());
  }
  const Overheads overheads = measure_overheads(queue, 4, once);
  EXPECT_THAT(overheads.eager_launch_s, IsARate());
  EXPECT_THAT(overheads.graph_node_s, IsARate());
  EXPECT_GE(overheads.event_s, 0.0);
  EXPECT_EQ(queue.stats().captures, 1);
  EXPECT_GE(queue.stats().replays, 1);
}

TEST(CudaProbeDequant, BytesOfGroupsOf32) {
  EXPECT_EQ(quantised_bytes(16, 64), 128);
  EXPECT_EQ(quantised_bytes(8, 64), 64 + 2 * 2);
  EXPECT_EQ(quantised_bytes(4, 64), 32 + 2 * 2);
}

// The measurement itself compares the device's conversions with the host's.
TEST(CudaProbeDequant, ConvertsAsTheHostDoes) {
  Queue queue;
  for (const int64_t n_weights : {32, 96, 1 << 14}) {
    const auto rates = measure_dequant(queue, n_weights, once);
    ASSERT_EQ(rates.size(), 3U);
    for (const DequantRate& rate : rates) {
      EXPECT_NEAR(rate.bytes_per_s / rate.weights_per_s,
                  static_cast<double>(quantised_bytes(rate.bits, 32)) / 32.0,
                  1e-12);
    }
  }
}

TEST(CudaProbeFusion, OnePassLess) {
  Queue queue;
  const FusionSaving saving = measure_fusion(queue, 3, 256, once);
  EXPECT_EQ(saving.apart_bytes, 5 * 3 * 256 * 2);
  EXPECT_EQ(saving.fused_bytes, 4 * 3 * 256 * 2);
  EXPECT_THAT(saving.apart_s, IsARate());
  EXPECT_THAT(saving.fused_s, IsARate());
}

TEST(CudaProbeOperands, AreOfBothSignsAndAboutOne) {
  for (const MathType type :
       {MathType::f32, MathType::tf32, MathType::f16, MathType::bf16, MathType::fp8}) {
    int n_negative = 0;
    for (int64_t i = 0; i < 1000; ++i) {
      const double x = operand_value(type, i);
      ASSERT_GE(std::abs(x), 0.5) << math_name(type) << " " << i;
      ASSERT_LT(std::abs(x), 1.0) << math_name(type) << " " << i;
      n_negative += x < 0 ? 1 : 0;
    }
    // 500 +- 4 standard deviations of 16.
    EXPECT_NEAR(n_negative, 500, 64) << math_name(type);
  }
}

// The library's stand-in has the types that models compute in; others are left out, not failed.
TEST(CudaProbeTensorCores, TypesThatTheLibraryHas) {
  Queue queue;
  Gemm gemm(queue);
  std::vector<MathType> types;
  for (const MathRate& rate : measure_tensor_cores(queue, gemm, 32, once)) {
    EXPECT_THAT(rate.flops, IsARate());
    types.push_back(rate.type);
  }
  EXPECT_THAT(types, ElementsAre(MathType::f32, MathType::bf16, MathType::fp8));
}

TEST(CudaProbeSupport, AWrongResultIsAnError) {
  Queue queue;
  const Tensor sum = device_tensor(DType::I32, {1});
  clear(queue, sum);
  EXPECT_NO_THROW(expect_sum(queue, sum, uint64_t{1} << 32, "nothing"));
  EXPECT_THROW(expect_sum(queue, sum, 1, "nothing"), DeviceError);
}

TEST(CudaProbe, AWholeGpuAtSmallSizes) {
  Queue queue;
  const DeviceCurves curves = probe_gpu(queue,
                                        {.memory_bytes = 1 << 14,
                                         .cached_bytes = 1 << 12,
                                         .shared_blocks = 1,
                                         .shared_rounds = 2,
                                         .arithmetic = {.n_blocks = 1, .n_rounds = 64},
                                         .product_side = 16,
                                         .gemm = {{.m = 2, .n = 16, .k = 32}},
                                         .rotated_bytes = 1 << 12,
                                         .n_launches = 2,
                                         .chased_bytes = {1 << 10, 1 << 12},
                                         .n_chased_loads = 4,
                                         .n_sms = 1,
                                         .threads_per_sm = 512,
                                         .shared_bytes_per_sm = 64 << 10,
                                         .fused_rows = {1, 2},
                                         .fused_width = 64,
                                         .n_weights = 64,
                                         .effort = once});
  EXPECT_EQ(curves.memory.size(), 2U);
  EXPECT_EQ(curves.math.size(), 6U);
  ASSERT_EQ(curves.gemm.size(), 1U);
  EXPECT_THAT(curves.gemm[0].seconds, IsARate());
  EXPECT_EQ(curves.latency.size(), 2U);
  EXPECT_EQ(curves.occupancy.size(), 2U);
  EXPECT_EQ(curves.strides.size(), 6U);
  EXPECT_EQ(curves.divergence.size(), 6U);
  EXPECT_EQ(curves.fusion.size(), 2U);
  EXPECT_EQ(curves.dequant.size(), 3U);
}

TEST(CudaProbe, SizesOfAChipGoBeyondItsCaches) {
  const ChipSpec chip{.architecture = "sm_90",
                      .boost_hz = 1.98e9,
                      .n_sm = 132,
                      .threads_per_sm = 2048,
                      .registers_per_sm = 65536,
                      .shared_bytes_per_sm = 228 << 10,
                      .l2_bytes = 50 << 20};
  const GpuProbeSizes sizes = sizes_for(chip);
  EXPECT_GE(sizes.memory_bytes, 4 * chip.l2_bytes);
  EXPECT_LT(sizes.cached_bytes, chip.l2_bytes);
  EXPECT_GE(sizes.rotated_bytes, 4 * chip.l2_bytes);
  EXPECT_EQ(sizes.gemm.size(), 120U);
  for (const GemmShape& shape : sizes.gemm) EXPECT_EQ(shape.k % 16, 0);
}

}  // namespace
}  // namespace testbed::cuda
