// From an activation's dtype and an instruction set to the loops of elementwise_kernels.hpp.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/base/check.hpp"
#include "kernels/cpu/elementwise_kernels.hpp"
#include "kernels/cpu/isa.hpp"

namespace testbed::cpu {

// A thread is worth waking for this many elements.
constexpr int64_t thread_elements = int64_t{16} << 10;

inline int64_t granule_rows(int64_t row_elements) {
  return std::max<int64_t>(1, thread_elements / std::max<int64_t>(1, row_elements));
}

inline const ElementwiseKernels& kernels_for(Isa isa) {
  CHECK(isa <= best_isa());
  if (isa >= Isa::avx512) return elementwise_avx512();
  return isa == Isa::avx2 ? elementwise_avx2() : elementwise_portable();
}

template <typename T>
const ActivationKernels<T>& kernels_of(Isa isa) {
  if constexpr (std::is_same_v<T, float>) {
    return kernels_for(isa).f32;
  } else {
    return kernels_for(isa).bf;
  }
}

// Calls run with a null pointer of the activations' element type.
template <typename Run>
void with_type(DType dtype, const Run& run) {
  CHECK(dtype == DType::F32 || dtype == DType::BF16);
  if (dtype == DType::F32) {
    run(static_cast<float*>(nullptr));
  } else {
    run(static_cast<bf16*>(nullptr));
  }
}

}  // namespace testbed::cpu
