// All of a GPU's own measurements.
#pragma once

#include "kernels/probes/cuda/arithmetic.hpp"
#include "kernels/probes/cuda/tensor_cores.hpp"
#include "kernels/probes/device_curves.hpp"

namespace testbed::cuda {

struct GpuProbeSizes {
  int64_t memory_bytes = 0;  // beyond the caches
  int64_t cached_bytes = 0;  // within L2
  int shared_blocks = 0;
  int shared_rounds = 0;
  ArithmeticSize arithmetic;
  int64_t product_side = 0;
  std::vector<GemmShape> gemm;
  int64_t rotated_bytes = 0;  // of gemm's weights
  int n_launches = 0;
  std::vector<int64_t> chased_bytes;
  int n_chased_loads = 0;
  int n_sms = 0;
  int64_t threads_per_sm = 0;
  int64_t shared_bytes_per_sm = 0;
  std::vector<int64_t> fused_rows;
  int64_t fused_width = 0;
  int64_t n_weights = 0;
  Effort effort;
};
// For a whole chip: a minute or less, and 4 GiB of its memory at most.
GpuProbeSizes sizes_for(const ChipSpec& chip);

// On the current device, by itself. Throws DeviceError, also where a kernel's result is wrong.
DeviceCurves probe_gpu(Queue& queue, const GpuProbeSizes& sizes);

}  // namespace testbed::cuda
