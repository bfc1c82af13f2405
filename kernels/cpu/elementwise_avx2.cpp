// The elementwise loops with AVX2. Intrinsics and functions of internal linkage only: nothing here
// may be merged with a function that runs on a lesser processor.
// The loops are over the Lanes before them, so the order counts.
// clang-format off
#include "kernels/cpu/lanes_avx2.hpp"
#include "kernels/cpu/elementwise_loops.hpp"
// clang-format on

namespace testbed::cpu {

const ElementwiseKernels& elementwise_avx2() { return kernels; }

}  // namespace testbed::cpu
