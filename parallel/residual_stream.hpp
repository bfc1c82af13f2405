// ResidualStream: the one place where a row-parallel partial sum meets the residual: the all-reduce
// over tp, the addition and the next norm. Fusion and sequence parallelism change this type and
// nothing above it.
#pragma once

#include "kernels/device.hpp"
#include "parallel/comm/communicator.hpp"

namespace testbed {

struct NormWeight {
  Tensor weight;  // F32 [d]
  float eps = 0.0F;
};

class ResidualStream {
 public:
  // residual, normed: [m, d_model] in the compute dtype.
  ResidualStream(Device& device, Communicator& tp, TensorView residual, TensorView normed)
      : device_(device), tp_(tp), residual_(residual), normed_(normed) {}

  TensorView residual() const { return residual_; }
  TensorView normed() const { return normed_; }

  // normed = norm(residual): at the start of a pipeline chunk.
  void norm(const NormWeight& next) { device_.rms_norm(residual_, next.weight, next.eps, normed_); }
  // residual += sum over tp of partial; normed = next_norm(residual), or left alone when no norm
  // follows in this chunk. One all-reduce of [m, d_model] per call.
  void reduce_add_norm(TensorView partial, const NormWeight* next_norm) {
    tp_.all_reduce(partial);
    if (next_norm != nullptr) {
      device_.add_rms_norm(residual_, partial, next_norm->weight, next_norm->eps, normed_);
    } else {
      device_.add(residual_, partial);
    }
  }

 private:
  Device& device_;
  Communicator& tp_;
  TensorView residual_;
  TensorView normed_;
};

}  // namespace testbed
