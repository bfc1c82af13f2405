// A device's rate of matrix products, all ranks at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/accept/context.hpp"

namespace testbed {

class GemmRate {
 public:
  // All ranks together: square products of a size that keeps the fastest of the devices busy for
  // 2 ms (up to 8192), as many of them that a sample lasts sample_s there. The context outlives it.
  GemmRate(const AcceptContext& context, double sample_s);

  double sample();                  // FLOP/s of this rank's device, now
  std::string description() const;  // of the products
  // As long as a sample; look is called meanwhile, once, where the device works by itself.
  void load(const std::function<void()>& look);

 private:
  void resize(int64_t width);
  double seconds_per_call(int64_t n_calls);

  const AcceptContext& context_;
  int64_t width_ = 0;
  int64_t n_calls_ = 1;
  Tensor x_;  // [width, width]
  Tensor y_;  // the same
  WeightMatrix weight_;
};

}  // namespace testbed
