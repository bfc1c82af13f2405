#include "kernels/probes/cuda/library_product.hpp"

#include "kernels/cuda/gemm.hpp"

namespace testbed::cuda {
namespace {

struct LibraryType {
  MathType type;
  cudaDataType_t operands;
  cudaDataType_t result;
  cublasComputeType_t compute;
  cudaDataType_t scale;
};
constexpr LibraryType types[] = {
    {MathType::f16, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F},
    {MathType::tf32, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F},
    {MathType::int8, CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CUDA_R_32I}};

const LibraryType& library_type(MathType type) {
  for (const LibraryType& t : types) {
    if (t.type == type) return t;
  }
  CHECK(false);
  return types[0];
}

// Of cuBLASLt's column-major matrices; ours are their transposes (gemm.cpp).
void describe(cublasLtMatrixLayoutOpaque_t& layout,
              cudaDataType_t type,
              int64_t rows,
              int64_t cols) {
  check_blas(cublasLtMatrixLayoutInit(
                 &layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), rows),
             "cublasLtMatrixLayoutInit");
}

constexpr int64_t workspace_bytes = int64_t{32} << 20;  // as gemm.cpp has it for sm_90

}  // namespace

struct LibraryProduct::Call {
  LibraryProduct* product;
  const void* x;
  const void* w;
  void* y;
};

std::unique_ptr<LibraryProduct> LibraryProduct::find(
    Queue& queue, MathType type, int64_t m, int64_t n, int64_t k) {
  std::unique_ptr<LibraryProduct> product(new LibraryProduct(queue, type, m, n, k));
  if (!product->choose_algorithm()) return nullptr;
  return product;
}

LibraryProduct::LibraryProduct(Queue& queue, MathType type, int64_t m, int64_t n, int64_t k)
    : queue_(queue),
      integers_(type == MathType::int8),
      workspace_(device_tensor(DType::I32, {workspace_bytes / 4})) {
  const LibraryType& t = library_type(type);
  check_blas(cublasLtCreate(&handle_), "cublasLtCreate");
  check_blas(cublasLtMatmulDescInit(&operation_, t.compute, t.scale), "cublasLtMatmulDescInit");
  const int32_t transposed = CUBLAS_OP_T;
  check_blas(cublasLtMatmulDescSetAttribute(
                 &operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
             "cublasLtMatmulDescSetAttribute");
  describe(w_, t.operands, k, n);
  describe(x_, t.operands, k, m);
  describe(y_, t.result, n, m);
}

LibraryProduct::~LibraryProduct() {
  if (handle_ != nullptr) cuda::check_blas_quietly(cublasLtDestroy(handle_), "cublasLtDestroy");
}

bool LibraryProduct::choose_algorithm() {
  cublasLtMatmulPreferenceOpaque_t wanted{};
  check_blas(cublasLtMatmulPreferenceInit(&wanted), "cublasLtMatmulPreferenceInit");
  const auto most_bytes = static_cast<uint64_t>(workspace_bytes);
  check_blas(cublasLtMatmulPreferenceSetAttribute(
                 &wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most_bytes, sizeof most_bytes),
             "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t best{};
  int n_found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, &operation_, &w_, &x_, &y_, &y_, &wanted, 1, &best, &n_found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  algorithm_ = best.algo;
  return n_found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
}

void LibraryProduct::issue(const Call& call, cudaStream_t on) {
  constexpr float one = 1.0F;
  constexpr float zero = 0.0F;
  constexpr int32_t int_one = 1;
  constexpr int32_t int_zero = 0;
  LibraryProduct& p = *call.product;
  check_blas(cublasLtMatmul(p.handle_,
                            &p.operation_,
                            p.integers_ ? static_cast<const void*>(&int_one) : &one,
                            call.w,
                            &p.w_,
                            call.x,
                            &p.x_,
                            p.integers_ ? static_cast<const void*>(&int_zero) : &zero,
                            call.y,
                            &p.y_,
                            call.y,
                            &p.y_,
                            &p.algorithm_,
                            p.workspace_.data(),
                            static_cast<size_t>(workspace_bytes),
                            on),
             "cublasLtMatmul");
}

void LibraryProduct::multiply(const void* x, const void* w, void* y) {
  queue_.call(&issue, Call{.product = this, .x = x, .w = w, .y = y});
}

}  // namespace testbed::cuda
