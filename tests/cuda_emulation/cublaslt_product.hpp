// The arithmetic of the stand-in of cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace emulation::blas {

// Column-major D [m, n] = scale_a scale_b A [k, m]^T B [k, n]; sums in f32.
struct Product {
  const void* a;
  const void* b;
  void* d;
  int64_t lda, ldb, ldd;
  int64_t m, n, k;
  cudaDataType_t operands;  // CUDA_R_32F, CUDA_R_16BF, CUDA_R_8F_E4M3
  cudaDataType_t result;    // CUDA_R_32F, CUDA_R_16BF
  const float* scale_a;     // or nullptr
  const float* scale_b;
};
void multiply(const Product& product);

int64_t element_bytes(cudaDataType_t type);  // 0: the stand-in does not know the type

}  // namespace emulation::blas
