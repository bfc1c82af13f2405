// Names for stretches of the host's work, shown by a profiler (NVTX; Nsight Systems also lays them
// over the kernels enqueued within). Without a profiler each costs a comparison.
#pragma once

#include <cstdint>
#include <string_view>

struct nvtxDomainRegistration_st;

namespace testbed::cuda {

class Profiler {
 public:
  Profiler();
  // Stretches nest, by thread. "attention 3"; index < 0: the name alone.
  void begin(std::string_view name, int64_t index) const;
  void end() const;

 private:
  nvtxDomainRegistration_st* domain_;  // nullptr: no profiler
};

}  // namespace testbed::cuda
