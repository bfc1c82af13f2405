#include "kernels/probes/cuda/probe_gpu.hpp"

#include <algorithm>

#include "kernels/probes/cuda/access.hpp"
#include "kernels/probes/cuda/bandwidth.hpp"
#include "kernels/probes/cuda/dequant.hpp"
#include "kernels/probes/cuda/fusion.hpp"
#include "kernels/probes/cuda/latency.hpp"

namespace testbed::cuda {
namespace {

// Of benchmarks/measured/gemm.csv: all widths, at rows of decode, of a ridge and of prefill.
constexpr int64_t widths[][2] = {{2048, 8192},  {4096, 4096},  {4096, 8192},  {4096, 16384},
                                 {5120, 8192},  {6144, 4096},  {7168, 8192},  {8192, 1024},
                                 {8192, 2048},  {8192, 3584},  {8192, 4096},  {8192, 7168},
                                 {8192, 8192},  {8192, 12288}, {8192, 16384}, {10240, 8192},
                                 {12288, 8192}, {16384, 4096}, {16384, 8192}, {65536, 8192}};
constexpr int64_t rows[] = {1, 8, 64, 256, 1024, 4096};

}  // namespace

GpuProbeSizes sizes_for(const ChipSpec& chip) {
  constexpr int64_t mib = int64_t{1} << 20;
  GpuProbeSizes sizes;
  // At 8 TB/s a GiB takes 0.1 ms: 50 times what starting and ending a kernel takes.
  sizes.memory_bytes = std::max(1024 * mib, 4 * chip.l2_bytes);
  sizes.cached_bytes = chip.l2_bytes / 2;
  sizes.n_sms = static_cast<int>(chip.n_sm);
  sizes.threads_per_sm = chip.threads_per_sm;
  sizes.shared_bytes_per_sm = chip.shared_bytes_per_sm;
  sizes.shared_blocks = sizes.n_sms;
  sizes.shared_rounds = 1 << 14;
  sizes.arithmetic = {.n_blocks = 8 * sizes.n_sms, .n_rounds = 1 << 12};
  sizes.product_side = 8192;
  sizes.gemm.reserve(std::size(widths) * std::size(rows));
  for (const auto& [n, k] : widths) {
    for (const int64_t m : rows) sizes.gemm.push_back({.m = m, .n = n, .k = k});
  }
  sizes.rotated_bytes = std::max(256 * mib, 4 * chip.l2_bytes);
  sizes.n_launches = 256;
  sizes.chased_bytes = {mib / 64, chip.l2_bytes / 4, std::max(256 * mib, 4 * chip.l2_bytes)};
  sizes.n_chased_loads = 1 << 14;
  sizes.fused_rows = {1, 64, 16384};
  sizes.fused_width = 8192;
  sizes.n_weights = 512 * mib;
  return sizes;
}

DeviceCurves probe_gpu(Queue& queue, const GpuProbeSizes& s) {
  const Effort& effort = s.effort;
  Gemm gemm(queue);
  DeviceCurves curves;
  curves.memory = {measure_level(queue, "hbm", s.memory_bytes, effort),
                   measure_level(queue, "l2", s.cached_bytes, effort)};
  curves.shared = measure_shared(queue, s.shared_blocks, s.shared_rounds, effort);
  curves.math = measure_tensor_cores(queue, gemm, s.product_side, effort);
  const std::vector<MathRate> cores = measure_cuda_cores(queue, s.arithmetic, effort);
  curves.math.insert(curves.math.end(), cores.begin(), cores.end());
  curves.gemm = measure_gemm(queue, gemm, s.gemm, s.rotated_bytes, effort);
  curves.overheads = measure_overheads(queue, s.n_launches, effort);
  curves.latency.reserve(s.chased_bytes.size());
  for (const int64_t n_bytes : s.chased_bytes) {
    curves.latency.push_back(measure_latency(queue, n_bytes, s.n_chased_loads, effort));
  }
  curves.occupancy = measure_occupancy(queue,
                                       {.n_sms = s.n_sms,
                                        .threads_per_sm = s.threads_per_sm,
                                        .shared_bytes_per_sm = s.shared_bytes_per_sm,
                                        .n_bytes = s.memory_bytes},
                                       effort);
  curves.strides = measure_strides(queue, s.memory_bytes, effort);
  curves.divergence = measure_divergence(queue, s.arithmetic, effort);
  curves.fusion.reserve(s.fused_rows.size());
  for (const int64_t n_rows : s.fused_rows) {
    curves.fusion.push_back(measure_fusion(queue, n_rows, s.fused_width, effort));
  }
  curves.dequant = measure_dequant(queue, s.n_weights, effort);
  return curves;
}

}  // namespace testbed::cuda
