// What a GPU's own kernels measure of it, piece by piece. Plain data: seconds, bytes/s, FLOP/s.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/device_spec.hpp"

namespace testbed {

// A level of the memory, by loops over buffers of its size.
struct MemoryLevel {
  std::string name;  // "hbm", "l2"
  int64_t n_bytes = 0;
  double read_bytes_per_s = 0.0;
  double write_bytes_per_s = 0.0;
  double copy_bytes_per_s = 0.0;  // bytes read and bytes written, together
};

struct SharedMemoryRate {
  double bytes_per_s = 0.0;             // read, all SMs
  double bytes_per_sm_and_clock = 0.0;  // by the SM's own clock
};

// A multiply-add is two FLOP (for int8: two operations). By square products of the library, which
// runs them on tensor cores where it has them for the type, or by multiply-adds in registers.
struct MathRate {
  MathType type = MathType::bf16;
  bool by_library = true;
  double flops = 0.0;
};

// y [m, n] = x [m, k] W[n, k]^T by the library, W from beyond the caches.
struct LibraryGemm {
  MathType type = MathType::bf16;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  double seconds = 0.0;
};

struct Overheads {
  double eager_launch_s = 0.0;  // of one of many empty kernels, back to back
  double graph_node_s = 0.0;    // the same in a CUDA graph
  double event_s = 0.0;         // what an event between two of them adds
};

// One thread follows pointers through n_bytes: each load's address is what the last one read.
struct LoadLatency {
  int64_t n_bytes = 0;
  double seconds = 0.0;
  double clocks = 0.0;  // of the SM
};

// Reads with one access per thread on its way, by the threads that an SM holds.
struct OccupancyRate {
  int blocks_per_sm = 0;
  int64_t threads_per_sm = 0;
  double read_bytes_per_s = 0.0;
};

// Neighbouring threads read 4 bytes, `stride` elements apart.
struct StrideRate {
  int64_t stride = 1;
  int64_t sectors_per_warp = 0;     // of 32 bytes, for 32 loads: 4 .. 32
  double useful_bytes_per_s = 0.0;  // 4 bytes a load
  double sector_bytes_per_s = 0.0;  // 32 bytes a sector
};

// The lanes of a warp take n_ways branches of equal work: 1 / n_ways of the rate.
struct DivergenceRate {
  int n_ways = 1;
  double flops = 0.0;
};

// Residual + RMSNorm of bf16 [n_rows, width]: two kernels, or one.
struct FusionSaving {
  int64_t n_rows = 0;
  int64_t width = 0;
  int64_t apart_bytes = 0;
  int64_t fused_bytes = 0;
  double apart_s = 0.0;
  double fused_s = 0.0;
};

// Groups of 32 weights with a bf16 scale, made bf16 in registers: the bytes as they are read.
struct DequantRate {
  int bits = 16;  // 16: plain bf16, as the others are held against
  double bytes_per_s = 0.0;
  double weights_per_s = 0.0;
};

struct DeviceCurves {
  std::vector<MemoryLevel> memory;
  SharedMemoryRate shared;
  std::vector<MathRate> math;  // types that the device has
  std::vector<LibraryGemm> gemm;
  Overheads overheads;
  std::vector<LoadLatency> latency;
  std::vector<OccupancyRate> occupancy;
  std::vector<StrideRate> strides;
  std::vector<DivergenceRate> divergence;
  std::vector<FusionSaving> fusion;
  std::vector<DequantRate> dequant;
};

}  // namespace testbed
