#include "kernels/cuda/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <tuple>
#include <type_traits>

#include "kernels/base/complaint.hpp"
#include "kernels/base/errors.hpp"
#include "kernels/cuda/rows.hpp"

namespace testbed::cuda {

namespace {

// What the cuBLAS library's documentation recommends ("cublasSetWorkspace"): 32 MiB for Hopper and
// Blackwell, 4 MiB for others (sm_120 would do with 12 MiB).
constexpr int64_t workspace_bytes(int compute_capability) {
  return compute_capability >= 90 ? int64_t{32} << 20 : int64_t{4} << 20;
}

constexpr int first_with_fp8 = 89;  // cuBLASLt: e4m3 from Ada (sm_89) on

int find_compute_capability() {
  int device = 0;
  int major = 0;
  int minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

cudaDataType_t blas_type(DType dtype) {
  CHECK(dtype == DType::F32 || dtype == DType::BF16);
  return dtype == DType::F32 ? CUDA_R_32F : CUDA_R_16BF;
}

// Algorithms ask for at most 16 bytes (the widest access of a thread, and TMA's), so addresses
// aligned to more are one class.
int alignment(const void* p) {
  constexpr int largest_log2 = 4;
  return 1 << std::min(largest_log2, std::countr_zero(reinterpret_cast<uintptr_t>(p)));
}

template <typename T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t what, T value) {
  check_blas(cublasLtMatmulDescSetAttribute(&operation, what, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
}

template <typename T>
void set(cublasLtMatmulPreferenceOpaque_t& preference,
         cublasLtMatmulPreferenceAttributes_t what,
         T value) {
  check_blas(cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof value),
             "cublasLtMatmulPreferenceSetAttribute");
}

// stride: elements between columns.
cublasLtMatrixLayoutOpaque_t layout(cudaDataType_t type,
                                    int64_t rows,
                                    int64_t cols,
                                    int64_t stride) {
  cublasLtMatrixLayoutOpaque_t made{};
  check_blas(cublasLtMatrixLayoutInit(
                 &made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), stride),
             "cublasLtMatrixLayoutInit");
  return made;
}

}  // namespace

namespace {

std::string failure(cublasStatus_t status, const char* call) {
  return fmt::format(
      "{}: {} (code {})", call, cublasLtGetStatusString(status), static_cast<int>(status));
}

}  // namespace

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw DeviceError(failure(status, call));
}

void check_blas_quietly(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) complain(failure(status, call));
}

bool Gemm::Key::operator<(const Key& o) const {
  const auto fields = [](const Key& key) {
    return std::tie(key.m,
                    key.n,
                    key.k,
                    key.y_stride,
                    key.operands,
                    key.result,
                    key.alignment_x,
                    key.alignment_w,
                    key.alignment_y);
  };
  return fields(*this) < fields(o);
}

struct Gemm::Product {
  const void* x;  // [m, k]
  const void* w;  // [n, k]
  void* y;        // [m, n]
  int64_t m, n, k;
  int64_t y_stride;
  cudaDataType_t operands, result;
  const float* x_scale = nullptr;  // fp8 only
  const float* w_scale = nullptr;
};

// cuBLASLt's matrices are column-major: what is row-major x [m, k] is its k x m, so that
// y^T (n x m) = w (n x k) x^T (k x m) is its "TN" product of A = w and B = x, without copies.
struct Gemm::Plan {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t w;
  cublasLtMatrixLayoutOpaque_t x;
  cublasLtMatrixLayoutOpaque_t y;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Plan(const Key& key)
      : w(layout(key.operands, key.k, key.n, key.k)),
        x(layout(key.operands, key.k, key.m, key.k)),
        y(layout(key.result, key.n, key.m, key.y_stride)) {
    // CUBLAS_COMPUTE_32F: f32 operands are multiplied in f32, TF32 is another compute type.
    check_blas(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescInit");
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, int32_t{CUBLAS_OP_T});
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, int32_t{CUBLAS_OP_N});
  }

  void set_scales(const float* of_w, const float* of_x) {
    set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_w);
    set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_x);
  }

  void choose_algorithm(cublasLtHandle_t handle, const Key& key, int64_t n_workspace_bytes) {
    cublasLtMatmulPreferenceOpaque_t wanted{};
    check_blas(cublasLtMatmulPreferenceInit(&wanted), "cublasLtMatmulPreferenceInit");
    set(wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(n_workspace_bytes));
    // Split sums are added in f32 and rounded once, never in y's dtype.
    set(wanted,
        CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    const auto align = [&](cublasLtMatmulPreferenceAttributes_t operand, int bytes) {
      set(wanted, operand, static_cast<uint32_t>(bytes));
    };
    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment_w);
    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment_x);
    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment_y);
    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment_y);
    cublasLtMatmulHeuristicResult_t best{};
    int n_found = 0;
    check_blas(cublasLtMatmulAlgoGetHeuristic(
                   handle, &operation, &w, &x, &y, &y, &wanted, 1, &best, &n_found),
               "cublasLtMatmulAlgoGetHeuristic");
    if (n_found == 0) best.state = CUBLAS_STATUS_NOT_SUPPORTED;
    check_blas(best.state, "cublasLtMatmulAlgoGetHeuristic");
    algorithm = best.algo;
  }
};

// A product on a stream. The plan's descriptors never change, but for the scales of fp8.
struct Gemm::Call {
  cublasLtHandle_t handle;
  Plan* plan;
  cublasLtMatmulAlgo_t algorithm;
  Product product;
  void* workspace;
  size_t n_workspace_bytes;
};

void Gemm::issue(const Call& call, cudaStream_t on) {
  static_assert(std::has_unique_object_representations_v<Call>);  // equal calls, equal bytes
  constexpr float one = 1.0F;
  constexpr float zero = 0.0F;
  Plan& plan = *call.plan;
  const Product& p = call.product;
  if (p.x_scale != nullptr) plan.set_scales(p.w_scale, p.x_scale);
  check_blas(cublasLtMatmul(call.handle,
                            &plan.operation,
                            &one,
                            p.w,
                            &plan.w,
                            p.x,
                            &plan.x,
                            &zero,
                            p.y,
                            &plan.y,
                            p.y,
                            &plan.y,
                            &call.algorithm,
                            call.workspace,
                            call.n_workspace_bytes,
                            on),
             "cublasLtMatmul");
}

Gemm::Gemm(Queue& queue)
    : queue_(queue),
      compute_capability_(find_compute_capability()),
      workspace_(device_tensor(DType::I32, {workspace_bytes(compute_capability_) / 4})) {
  check_blas(cublasLtCreate(&handle_), "cublasLtCreate");
}

Gemm::~Gemm() { check_blas_quietly(cublasLtDestroy(handle_), "cublasLtDestroy"); }

Gemm::Plan& Gemm::plan(const Product& product) {
  const Key key{.m = product.m,
                .n = product.n,
                .k = product.k,
                .y_stride = product.y_stride,
                .operands = product.operands,
                .result = product.result,
                .alignment_x = alignment(product.x),
                .alignment_w = alignment(product.w),
                .alignment_y = alignment(product.y)};
  const auto known = plans_.find(key);
  if (known != plans_.end()) return *known->second;
  auto made = std::make_unique<Plan>(key);
  if (product.x_scale != nullptr) made->set_scales(product.w_scale, product.x_scale);
  made->choose_algorithm(handle_, key, workspace_.n_bytes());
  return *plans_.emplace(key, std::move(made)).first->second;
}

void Gemm::multiply(const Product& product) {
  CHECK(product.k > 0);
  if (product.m == 0 || product.n == 0) return;
  Plan& chosen = plan(product);
  queue_.call(&issue,
              Call{.handle = handle_,
                   .plan = &chosen,
                   .algorithm = chosen.algorithm,
                   .product = product,
                   .workspace = workspace_.data(),
                   .n_workspace_bytes = static_cast<size_t>(workspace_.n_bytes())});
}

void Gemm::linear(TensorView x, TensorView w, TensorView bias, TensorView y) {
  const int64_t m = x.n_rows();
  const int64_t n = w.n_rows();
  CHECK(y.n_elements() == m * n);
  linear_columns(x, w, y.reshaped({m, n}), 0);
  if (!bias.empty() && m > 0) add_bias(queue_, y.reshaped({m, n}), bias);
}

void Gemm::linear_columns(TensorView x, TensorView w, TensorView y, int64_t first_col) {
  const int64_t m = x.n_rows();
  const int64_t n = w.n_rows();
  const int64_t k = w.row_elements();
  const int64_t y_stride = y.shape()[-1];
  CHECK(x.dtype() == w.dtype() && (y.dtype() == DType::F32 || y.dtype() == x.dtype()));
  CHECK(x.n_elements() == m * k && y.n_rows() == m && first_col + n <= y_stride);
  multiply({.x = x.data(),
            .w = w.data(),
            .y = static_cast<std::byte*>(y.data()) + dtype_bytes(y.dtype(), first_col),
            .m = m,
            .n = n,
            .k = k,
            .y_stride = y_stride,
            .operands = blas_type(x.dtype()),
            .result = blas_type(y.dtype())});
}

void Gemm::linear_fp8(const Fp8Matrix& x, const Fp8Matrix& w, TensorView y) {
  if (compute_capability_ < first_with_fp8) {
    throw ConfigError(
        fmt::format("fp8 needs a GPU of compute capability 8.9 or more; this one has {}.{}",
                    compute_capability_ / 10,
                    compute_capability_ % 10));
  }
  CHECK(x.n_cols == w.n_cols && x.scale != nullptr && w.scale != nullptr);
  CHECK(y.n_elements() == x.n_rows * w.n_rows);
  multiply({.x = x.data,
            .w = w.data,
            .y = y.data(),
            .m = x.n_rows,
            .n = w.n_rows,
            .k = x.n_cols,
            .y_stride = w.n_rows,
            .operands = CUDA_R_8F_E4M3,
            .result = blas_type(y.dtype()),
            .x_scale = x.scale,
            .w_scale = w.scale});
}

}  // namespace testbed::cuda
