// One matrix product of cuBLASLt in the types that models here do not compute in: f16, tf32, int8.
// The others are cuda::Gemm's.
#pragma once

#include <cublasLt.h>

#include <optional>

#include "kernels/base/device_spec.hpp"
#include "kernels/cuda/queue.hpp"

namespace testbed::cuda {

class LibraryProduct {
 public:
  // y [m, n] = x [m, k] w [n, k]^T. nullptr if this device or library does not do it.
  static std::unique_ptr<LibraryProduct> find(
      Queue& queue, MathType type, int64_t m, int64_t n, int64_t k);
  ~LibraryProduct();
  LibraryProduct(const LibraryProduct&) = delete;
  LibraryProduct& operator=(const LibraryProduct&) = delete;

  void multiply(const void* x, const void* w, void* y);

 private:
  struct Call;
  static void issue(const Call& call, cudaStream_t on);
  LibraryProduct(Queue& queue, MathType type, int64_t m, int64_t n, int64_t k);
  bool choose_algorithm();

  Queue& queue_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_{};
  cublasLtMatrixLayoutOpaque_t x_{};
  cublasLtMatrixLayoutOpaque_t w_{};
  cublasLtMatrixLayoutOpaque_t y_{};
  cublasLtMatmulAlgo_t algorithm_{};
  bool integers_ = false;
  Tensor workspace_;
};

}  // namespace testbed::cuda
