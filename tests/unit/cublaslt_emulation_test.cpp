// The stand-in of cuBLASLt refuses what the library's documentation forbids, so that a wrong call
// of kernels/cuda/gemm.cpp cannot pass its tests.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/cuda_linear_support.hpp"

namespace testbed::cuda {
namespace {

// A legal product of bf16: column-major D [8, 4] = A [16, 8]^T B [16, 4]. Tests change one thing.
struct Call {
  cublasLtHandle_t handle = nullptr;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int32_t transpose_a = CUBLAS_OP_T;
  cudaDataType_t operands = CUDA_R_16BF;
  cudaDataType_t result = CUDA_R_16BF;
  uint64_t m = 8;
  uint64_t n = 4;
  uint64_t k = 16;
  uint64_t k_of_b = 16;
  int64_t lda = 16;
  int64_t ldd = 8;
  uint32_t alignment = 16;
  uint64_t n_workspace_bytes = 4096;
  Tensor a = device_tensor(DType::I32, {256});
  Tensor b = device_tensor(DType::I32, {256});
  Tensor d = device_tensor(DType::I32, {256});
  Tensor workspace = device_tensor(DType::I32, {1024});
  int64_t a_offset = 0;  // bytes

  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t layout_a{};
  cublasLtMatrixLayoutOpaque_t layout_b{};
  cublasLtMatrixLayoutOpaque_t layout_d{};
  cublasLtMatmulHeuristicResult_t best{};

  Call() { EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS); }
  ~Call() { EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void describe() {
    cublasLtMatmulDescInit(&operation, compute, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(
        &operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof transpose_a);
    cublasLtMatrixLayoutInit(&layout_a, operands, k, m, lda);
    cublasLtMatrixLayoutInit(&layout_b, operands, k_of_b, n, static_cast<int64_t>(k_of_b));
    cublasLtMatrixLayoutInit(&layout_d, result, m, n, ldd);
  }
  cublasStatus_t choose() {
    describe();
    cublasLtMatmulPreferenceOpaque_t wanted{};
    cublasLtMatmulPreferenceInit(&wanted);
    cublasLtMatmulPreferenceSetAttribute(&wanted,
                                         CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &n_workspace_bytes,
                                         sizeof n_workspace_bytes);
    for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      cublasLtMatmulPreferenceSetAttribute(&wanted, operand, &alignment, sizeof alignment);
    }
    int n_found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle,
                                          &operation,
                                          &layout_a,
                                          &layout_b,
                                          &layout_d,
                                          &layout_d,
                                          &wanted,
                                          1,
                                          &best,
                                          &n_found);
  }
  cublasStatus_t multiply(Queue& queue) {
    const float one = 1.0F;
    const float zero = 0.0F;
    return cublasLtMatmul(handle,
                          &operation,
                          &one,
                          static_cast<const std::byte*>(a.data()) + a_offset,
                          &layout_a,
                          b.data(),
                          &layout_b,
                          &zero,
                          d.data(),
                          &layout_d,
                          d.data(),
                          &layout_d,
                          &best.algo,
                          workspace.data(),
                          n_workspace_bytes,
                          queue.stream());
  }
};

struct Change {
  const char* what;
  std::function<void(Call&)> make;
  cublasStatus_t status;
};

TEST(CublasLtEmulation, products_that_are_not_legal_have_no_algorithm) {
  for (const Change& change : std::vector<Change>{
           {"none", [](Call&) {}, CUBLAS_STATUS_SUCCESS},
           {"lda < rows", [](Call& c) { c.lda = 15; }, CUBLAS_STATUS_INVALID_VALUE},
           {"ldd < rows", [](Call& c) { c.ldd = 7; }, CUBLAS_STATUS_INVALID_VALUE},
           {"k differs", [](Call& c) { c.k_of_b = 8; }, CUBLAS_STATUS_INVALID_VALUE},
           {"no rows", [](Call& c) { c.n = 0; }, CUBLAS_STATUS_INVALID_VALUE},
           {"no transposition",
            [](Call& c) { c.transpose_a = CUBLAS_OP_N; },
            CUBLAS_STATUS_NOT_SUPPORTED},
           {"sums in f16",
            [](Call& c) { c.compute = CUBLAS_COMPUTE_16F; },
            CUBLAS_STATUS_NOT_SUPPORTED},
           {"f32 to bf16", [](Call& c) { c.operands = CUDA_R_32F; }, CUBLAS_STATUS_NOT_SUPPORTED},
           {"bf16 on odd bytes", [](Call& c) { c.alignment = 1; }, CUBLAS_STATUS_NOT_SUPPORTED},
           {"fp8 on 8 bytes",
            [](Call& c) {
              c.operands = CUDA_R_8F_E4M3;
              c.alignment = 8;
            },
            CUBLAS_STATUS_NOT_SUPPORTED},
           {"fp8 with k 24",
            [](Call& c) {
              c.operands = CUDA_R_8F_E4M3;
              c.k = c.k_of_b = 24;
              c.lda = 24;
            },
            CUBLAS_STATUS_NOT_SUPPORTED}}) {
    Call call;
    change.make(call);
    EXPECT_EQ(call.choose(), change.status) << change.what;
  }
}

TEST(CublasLtEmulation, products_must_be_those_of_their_algorithm) {
  for (const Change& change : std::vector<Change>{
           {"none", [](Call&) {}, CUBLAS_STATUS_SUCCESS},
           {"other sizes",
            [](Call& c) {
              c.n = 3;
              c.describe();
            },
            CUBLAS_STATUS_INVALID_VALUE},
           {"another type of results",
            [](Call& c) {
              c.result = CUDA_R_32F;
              c.describe();
            },
            CUBLAS_STATUS_INVALID_VALUE},
           {"worse alignment", [](Call& c) { c.a_offset = 8; }, CUBLAS_STATUS_INVALID_VALUE},
           {"too small a workspace",
            [](Call& c) { c.n_workspace_bytes = c.best.workspaceSize - 1; },
            CUBLAS_STATUS_INVALID_VALUE},
           {"a workspace that was freed",
            [](Call& c) { c.workspace = Tensor(DType::I32, {1024}); },
            CUBLAS_STATUS_EXECUTION_FAILED},
           {"an operand that ends early",
            [](Call& c) { c.a = device_tensor(DType::I32, {63}); },
            CUBLAS_STATUS_EXECUTION_FAILED},
           {"an algorithm that was not chosen",
            [](Call& c) { c.best.algo = {}; },
            CUBLAS_STATUS_INVALID_VALUE}}) {
    Queue queue;
    Call call;
    ASSERT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS);
    ASSERT_GT(call.best.workspaceSize, 0U);
    change.make(call);
    EXPECT_EQ(call.multiply(queue), change.status) << change.what;
    queue.synchronize();
  }
}

TEST(CublasLtEmulation, attributes_have_sizes) {
  cublasLtMatmulDescOpaque_t operation{};
  const int64_t wide = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(
                &operation, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof(int32_t)),
            CUBLAS_STATUS_INVALID_VALUE)
      << "not initialised";
  cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  EXPECT_EQ(
      cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide),
      CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(
                &operation, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof(int32_t)),
            CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace testbed::cuda
