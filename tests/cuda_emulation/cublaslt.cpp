// Stand-in of cuBLASLt 13.0 at link level: what kernels/cuda/gemm.cpp calls, with the checks that
// the library's documentation states ("cublasLtMatmul"): types, layouts, alignments, workspace.
#include "tests/cuda_emulation/cublaslt_product.hpp"
#include "tests/cuda_emulation/cublaslt_state.hpp"
#include "tests/cuda_emulation/emulation.hpp"
#include "tests/cuda_emulation/state.hpp"

struct cublasLtContext {
  int compute_capability;
};

namespace emulation::blas {

namespace {

struct Matrices {
  Operation operation{};
  Layout a{};
  Layout b{};
  Layout c{};
  Layout d{};
};

bool describe(Matrices& to,
              cublasLtMatmulDesc_t operation,
              cublasLtMatrixLayout_t a,
              cublasLtMatrixLayout_t b,
              cublasLtMatrixLayout_t c,
              cublasLtMatrixLayout_t d) {
  return get(operation, to.operation) && get(a, to.a) && get(b, to.b) && get(c, to.c) &&
         get(d, to.d);
}

bool is_matrix(const Layout& layout) {
  return layout.rows > 0 && layout.cols > 0 && layout.ld >= static_cast<int64_t>(layout.rows);
}

// The rows of the documentation's table for CUBLAS_COMPUTE_32F with a scale of CUDA_R_32F that are
// of use here.
bool types_are_supported(const Matrices& m) {
  if (m.operation.compute != CUBLAS_COMPUTE_32F || m.operation.scale != CUDA_R_32F) return false;
  if (m.a.type != m.b.type || m.c.type != m.d.type) return false;
  if (m.a.type == CUDA_R_32F) return m.d.type == CUDA_R_32F;
  return (m.a.type == CUDA_R_16BF || m.a.type == CUDA_R_8F_E4M3) &&
         (m.d.type == CUDA_R_16BF || m.d.type == CUDA_R_32F);
}

// "To use FP8 kernels": TN, and dimensions and pointers that allow accesses of 16 bytes.
bool fp8_is_supported(const Matrices& m, int compute_capability) {
  const auto whole = [](const Layout& layout) {
    const auto n_bytes = static_cast<uint64_t>(element_bytes(layout.type));
    return layout.rows * n_bytes % 16 == 0 && static_cast<uint64_t>(layout.ld) * n_bytes % 16 == 0;
  };
  return compute_capability >= 89 && whole(m.a) && whole(m.b) && whole(m.d);
}

cublasStatus_t check(const Matrices& m, int compute_capability) {
  for (const Layout* layout : {&m.a, &m.b, &m.c, &m.d}) {
    if (!is_matrix(*layout)) return CUBLAS_STATUS_INVALID_VALUE;
  }
  // Other transpositions are legal there; nobody asks for them.
  if (m.operation.transposed != std::array<int32_t, 2>{CUBLAS_OP_T, CUBLAS_OP_N}) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool sizes_agree = m.a.rows == m.b.rows && m.d.rows == m.a.cols && m.d.cols == m.b.cols &&
                           m.c.rows == m.d.rows && m.c.cols == m.d.cols && m.c.ld == m.d.ld;
  if (!sizes_agree) return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_are_supported(m)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (m.a.type == CUDA_R_8F_E4M3 && !fp8_is_supported(m, compute_capability)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

uint32_t hash_of(const Matrices& m) {
  uint64_t hash = 1469598103934665603U;  // FNV-1a, by words
  const auto mix = [&](uint64_t word) { hash = (hash ^ word) * 1099511628211U; };
  for (const Layout* layout : {&m.a, &m.b, &m.c, &m.d}) {
    mix(static_cast<uint64_t>(layout->type));
    mix(layout->rows);
    mix(layout->cols);
    mix(static_cast<uint64_t>(layout->ld));
  }
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

bool is_on_device(const void* p, const Layout& layout) {
  const uint64_t n = (layout.cols - 1) * static_cast<uint64_t>(layout.ld) + layout.rows;
  return is_device_memory(p, n * static_cast<uint64_t>(element_bytes(layout.type)));
}

bool is_aligned(const void* p, uint64_t alignment) {
  return reinterpret_cast<uintptr_t>(p) % alignment == 0;
}

struct Addresses {
  const void* a;
  const void* b;
  const void* c;
  void* d;
  void* workspace;
  size_t n_workspace_bytes;
};

cublasStatus_t check(const Matrices& m, const Addresses& at, const Algorithm& algorithm) {
  if (algorithm.product != hash_of(m)) return CUBLAS_STATUS_INVALID_VALUE;
  if (at.n_workspace_bytes < algorithm.n_workspace_bytes || !is_aligned(at.workspace, 16)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const std::array<const void*, 4> operands{at.a, at.b, at.c, at.d};
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!is_aligned(operands[i], algorithm.alignment[i])) return CUBLAS_STATUS_INVALID_VALUE;
  }
  // The library would let the kernel fail.
  const bool on_device = is_on_device(at.a, m.a) && is_on_device(at.b, m.b) &&
                         is_on_device(at.c, m.c) && is_on_device(at.d, m.d) &&
                         is_device_memory(at.workspace, algorithm.n_workspace_bytes);
  return on_device ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t enqueue_product(const Matrices& m,
                               const Addresses& at,
                               const Algorithm& algorithm,
                               cudaStream_t stream) {
  const Product product{.a = at.a,
                        .b = at.b,
                        .d = at.d,
                        .lda = m.a.ld,
                        .ldb = m.b.ld,
                        .ldd = m.d.ld,
                        .m = static_cast<int64_t>(m.d.rows),
                        .n = static_cast<int64_t>(m.d.cols),
                        .k = static_cast<int64_t>(m.a.rows),
                        .operands = m.a.type,
                        .result = m.d.type,
                        .scale_a = m.operation.scales[0],
                        .scale_b = m.operation.scales[1]};
  const auto work = [product, workspace = at.workspace, n = algorithm.n_workspace_bytes] {
    std::memset(workspace, 0xff, n);  // whoever else relies on it finds NaN
    multiply(product);
    return true;
  };
  return enqueue(stream, work) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

}  // namespace emulation::blas

using namespace emulation::blas;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const cublasStatus_t fault = injected("cublasLtCreate");
  if (fault != CUBLAS_STATUS_SUCCESS) return fault;
  *handle = new cublasLtContext{emulation::compute_capability()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  const cublasStatus_t fault = injected("cublasLtDestroy");
  delete handle;
  return fault;
}

// The library's words.
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
    default:
      return "unrecognized status";
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference,
                                              int n_wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* n_found) {
  const cublasStatus_t fault = injected("cublasLtMatmulAlgoGetHeuristic");
  if (fault != CUBLAS_STATUS_SUCCESS) return fault;
  Matrices m;
  Preference wanted{};
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (n_wanted < 1 || !describe(m, operation, a, b, c, d) || !get(preference, wanted)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *n_found = 0;
  const cublasStatus_t status = check(m, handle->compute_capability);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const std::array<const Layout*, 4> layouts{&m.a, &m.b, &m.c, &m.d};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const int64_t least = m.a.type == CUDA_R_8F_E4M3 ? 16 : element_bytes(layouts[i]->type);
    if (wanted.alignment[i] < least) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  // Partial sums of a few splits along k, if they may be added in f32.
  constexpr uint64_t n_splits = 4;
  const bool may_split = (wanted.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
  const uint64_t n_split_bytes = n_splits * m.d.rows * m.d.cols * sizeof(float);
  const bool splits = may_split && n_split_bytes <= wanted.n_workspace_bytes;
  const uint64_t n_workspace_bytes = splits ? n_split_bytes : 0;
  results[0] = {};
  put(&results[0].algo,
      Algorithm{Algorithm::expected, hash_of(m), n_workspace_bytes, wanted.alignment});
  results[0].workspaceSize = n_workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1.0F;
  *n_found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t operation,
                              const void* alpha,
                              const void* a_data,
                              cublasLtMatrixLayout_t a,
                              const void* b_data,
                              cublasLtMatrixLayout_t b,
                              const void* beta,
                              const void* c_data,
                              cublasLtMatrixLayout_t c,
                              void* d_data,
                              cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo,
                              void* workspace,
                              size_t n_workspace_bytes,
                              cudaStream_t stream) {
  const cublasStatus_t fault = injected("cublasLtMatmul");
  if (fault != CUBLAS_STATUS_SUCCESS) return fault;
  Matrices m;
  Algorithm algorithm{};
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!describe(m, operation, a, b, c, d) || !get(algo, algorithm)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // The only factors in use here.
  if (*static_cast<const float*>(alpha) != 1.0F || *static_cast<const float*>(beta) != 0.0F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const Addresses at{a_data, b_data, c_data, d_data, workspace, n_workspace_bytes};
  cublasStatus_t status = check(m, handle->compute_capability);
  if (status == CUBLAS_STATUS_SUCCESS) status = check(m, at, algorithm);
  return status == CUBLAS_STATUS_SUCCESS ? enqueue_product(m, at, algorithm, stream) : status;
}
