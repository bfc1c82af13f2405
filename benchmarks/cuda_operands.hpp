// Operands of bench_cuda_kernels: several of each, taken in turn, so that large ones come from
// memory and not from a cache. Small ones stay in L2, as they do from op to op of a step.
#pragma once

#include <algorithm>
#include <memory>

#include "benchmarks/cuda_ops.hpp"

namespace testbed::bench {

class Rotation {
 public:
  Rotation(Device& device, DType dtype, Shape shape, int64_t n_bytes)
      : shape_(shape),
        n_(std::clamp<int64_t>(n_bytes / dtype_bytes(dtype, shape.n_elements()), 1, most)),
        all_(std::make_shared<Tensor>(device.allocate(dtype, {n_, shape.n_elements()}))) {
    device.fill_synthetic(*all_);
  }
  TensorView at(int64_t call) const { return all_->view().rows(call % n_, 1).reshaped(shape_); }

 private:
  static constexpr int64_t most = 256;  // calls of one timing
  Shape shape_;
  int64_t n_;
  std::shared_ptr<Tensor> all_;
};

inline Rotation activations(const RankBench& bench, Shape shape) {
  return {bench.device, bench.device.compute_dtype(), shape, bench.rotated_bytes};
}
inline Rotation floats(const RankBench& bench, Shape shape) {
  return {bench.device, DType::F32, shape, bench.rotated_bytes};
}

}  // namespace testbed::bench
