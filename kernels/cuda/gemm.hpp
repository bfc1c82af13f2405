// Matrix products: cuBLASLt for one matrix, our grouped kernel for many (expert_linear.cu).
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>

#include "kernels/cuda/queue.hpp"
#include "kernels/device.hpp"

namespace testbed::cuda {

// Throws DeviceError "call: text (code N)" if status is not CUBLAS_STATUS_SUCCESS.
void check_blas(cublasStatus_t status, const char* call);
// For destructors, which cannot throw: says it on standard error.
void check_blas_quietly(cublasStatus_t status, const char* call);

// y[m, n] = x[m, k] w[n, k]^T (+ bias), sums in f32. x and w BF16 or F32 alike; y F32 or x's dtype.
// F32 is computed in f32 (no TF32). Heuristics are asked once per (m, n, k, dtypes, alignment) and
// kept; the workspace has one size.
class Gemm {
 public:
  explicit Gemm(Queue& queue);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void linear(TensorView x, TensorView w, TensorView bias, TensorView y);
  // Into columns [first_col, first_col + rows of w) of a wider y [m, n].
  void linear_columns(TensorView x, TensorView w, TensorView y, int64_t first_col);

  // fp8 (e4m3) operands with per-tensor scales, y BF16 or F32: for devices from sm_89; throws
  // ConfigError on others. scales: F32 [1] on the device.
  struct Fp8Matrix {
    const void* data;
    int64_t n_rows;
    int64_t n_cols;
    const float* scale;
  };
  void linear_fp8(const Fp8Matrix& x, const Fp8Matrix& w, TensorView y);

 private:
  struct Product;  // operands, addresses and sizes of one call
  struct Plan;     // descriptors and algorithm
  struct Call;
  static void issue(const Call& call, cudaStream_t on);
  struct Key {
    int64_t m, n, k;
    int64_t y_stride;  // elements between rows
    cudaDataType_t operands, result;
    int alignment_x, alignment_w, alignment_y;  // bytes
    bool operator<(const Key& o) const;
  };
  Plan& plan(const Product& product);
  void multiply(const Product& product);

  Queue& queue_;
  int compute_capability_ = 0;  // 90: sm_90
  cublasLtHandle_t handle_ = nullptr;
  Tensor workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

// expert_linear.cu. Of each group's rows: y = x w[g]^T + biases[g], g = 0 .. n_groups - 1, rows
// [first_row[g], first_row[g + 1]) of x [n_rows, k] and y [n_rows, n]. first_row is read on the
// device, so that counts may be made there; n_rows bounds it. w: n_groups matrices [n, k] in x's
// dtype, each 16-byte aligned; those of groups without rows are not read. y F32 or BF16.
struct GroupedLinear {
  TensorView x;
  TensorView y;
  const int64_t* first_row;    // [n_groups + 1], device
  const void* const* weights;  // [n_groups], device array of device pointers
  DType weight_dtype;          // x's
  const float* biases;         // [n_groups, n], device, or nullptr
  int64_t n_groups;
  int64_t n;
  int64_t k;
};
void grouped_linear(Queue& queue, const GroupedLinear& call);
// y[:, h, :] = x[:, h, :] w[h]^T. x [m, heads, k], y [m, heads, n]; weights as above, [heads].
void head_linear(
    Queue& queue, TensorView x, const void* const* weights, DType weight_dtype, TensorView y);

}  // namespace testbed::cuda
