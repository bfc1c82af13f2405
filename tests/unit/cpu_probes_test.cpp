// The probes of the machine: every byte is read, every figure is plausible and ordered as the
// hardware is.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/base/tensor.hpp"
#include "kernels/cpu/probe_kernels.hpp"
#include "kernels/cpu/probes.hpp"

namespace testbed::cpu {
namespace {

struct Level {
  Isa isa;
  ReadLoop read;
  FlopLoop flops;
};
std::vector<Level> levels() {
  std::vector<Level> all = {{Isa::portable, read_portable, flops_portable()},
                            {Isa::avx2, read_avx2, flops_avx2()},
                            {Isa::avx512, read_avx512, flops_avx512()}};
  std::erase_if(all, [](const Level& level) { return level.isa > best_isa(); });
  return all;
}

TEST(CpuProbes, read_loop_reads_every_word) {
  const int64_t n_words = 1024;
  Tensor buffer(DType::F32, {2 * n_words});
  auto* words = static_cast<uint64_t*>(buffer.data());
  for (int64_t i = 0; i < n_words; ++i) words[i] = static_cast<uint64_t>(i * i + 1);
  const uint64_t sum = std::accumulate(words, words + n_words, uint64_t{0});
  for (const Level& level : levels()) {
    EXPECT_EQ(level.read(static_cast<const std::byte*>(buffer.data()), 8 * n_words), sum)
        << isa_name(level.isa);
  }
}

// x = x / 2 + 1 from 1 tends to 2: the loop did its steps and lost no register.
TEST(CpuProbes, flop_loops_compute) {
  for (const Level& level : levels()) {
    const float total = level.flops.run(200);
    EXPECT_GT(level.flops.flops_per_step, 0);
    EXPECT_EQ(total - static_cast<float>(static_cast<int>(total)), 0.0F) << isa_name(level.isa);
    EXPECT_GE(total, 24.0F);
  }
  if (best_isa() >= Isa::avx512_bf16) {
    EXPECT_EQ(flops_avx512_bf16().run(200), 24.0F);  // + 1 - 1 in every step
  }
  // 2 pairs of -1 a step in each of 8 or 16 numbers, of which one or all are returned.
  if (best_isa() >= Isa::avx2) {
    EXPECT_EQ(int8_avx2().run(200), -4.0F * 12 * 200);
  }
  if (best_isa() >= Isa::avx512) {
    EXPECT_EQ(int8_avx512().run(200), -4.0F * 16 * 24 * 200);
  }
  if (best_isa() >= Isa::avx512_vnni) {
    EXPECT_EQ(int8_avx512_vnni().run(200), 0.0F);  // 1, -1
  }
}

// Wide bounds: they catch a wrong unit (factors of 10^3) on any machine, under sanitizers too.
TEST(CpuProbes, figures_are_of_this_world) {
  ThreadPool pool(1, false);
  Tensor buffer(DType::F32, {int64_t{8} << 20});
  for (const Level& level : levels()) {
    const double bandwidth = read_bandwidth(buffer, 0.01, pool, level.isa);
    EXPECT_GT(bandwidth, 1e6);
    EXPECT_LT(bandwidth, 1e13);
    for (const DType operands : {DType::F32, DType::I8}) {
      const double flops = peak_flops(operands, 0.005, pool, level.isa);
      EXPECT_GT(flops, 1e6) << dtype_name(operands);
      EXPECT_LT(flops, 1e14) << dtype_name(operands);
    }
  }
}

TEST(CpuProbes, cache_size_is_a_cache_size) {
  const int64_t n_bytes = last_level_cache_bytes();
  EXPECT_TRUE(n_bytes == 0 || (n_bytes >= (int64_t{64} << 10) && n_bytes < (int64_t{1} << 40)))
      << n_bytes;
}

}  // namespace
}  // namespace testbed::cpu
