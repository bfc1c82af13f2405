// The readable version of the elementwise loops: a vector is one float.
#include <bit>
#include <cmath>

#include "kernels/cpu/elementwise_kernels.hpp"

namespace testbed::cpu {
namespace {

struct Lanes {
  using V = float;
  static constexpr int64_t width = 1;
  static V load(const float* p) { return *p; }
  static V load(const bf16* p) { return to_f32(*p); }
  static void store(float* p, V v) { *p = v; }
  static void store(bf16* p, V v) { *p = to_bf16(v); }
  static V set1(float v) { return v; }
  static V add(V a, V b) { return a + b; }
  static V sub(V a, V b) { return a - b; }
  static V mul(V a, V b) { return a * b; }
  static V div(V a, V b) { return a / b; }
  static V fma(V a, V b, V c) { return a * b + c; }
  static V max(V a, V b) { return a > b ? a : b; }
  static V min(V a, V b) { return a < b ? a : b; }
  static V round(V v) { return std::nearbyint(v); }
  static V power_of_two(V v) {
    if (v != v) return v;
    return std::bit_cast<float>((static_cast<uint32_t>(static_cast<int32_t>(v)) + 127U) << 23);
  }
};

}  // namespace
}  // namespace testbed::cpu

#include "kernels/cpu/elementwise_loops.hpp"

namespace testbed::cpu {

const ElementwiseKernels& elementwise_portable() { return kernels; }

}  // namespace testbed::cpu
