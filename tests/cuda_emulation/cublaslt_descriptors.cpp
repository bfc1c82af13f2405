// Stand-in of cuBLASLt 13.0: descriptors. Attributes that kernels/cuda/gemm.cpp does not set are
// refused.
#include "tests/cuda_emulation/cublaslt_state.hpp"
#include "tests/cuda_emulation/emulation.hpp"

namespace emulation::blas {

cublasStatus_t injected(const char* name) {
  const auto fault = inject(name, CUBLAS_STATUS_INTERNAL_ERROR);
  return fault ? static_cast<cublasStatus_t>(*fault) : CUBLAS_STATUS_SUCCESS;
}

namespace {

// Sizes must be those of the attribute, as in the library.
template <typename T>
cublasStatus_t assign(T& to, const void* from, size_t n_bytes) {
  if (from == nullptr || n_bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set(Operation& operation,
                   cublasLtMatmulDescAttributes_t what,
                   const void* from,
                   size_t n_bytes) {
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(operation.transposed[0], from, n_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(operation.transposed[1], from, n_bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return assign(operation.scales[0], from, n_bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return assign(operation.scales[1], from, n_bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t set(Preference& preference,
                   cublasLtMatmulPreferenceAttributes_t what,
                   const void* from,
                   size_t n_bytes) {
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(preference.n_workspace_bytes, from, n_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(preference.reductions, from, n_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return assign(preference.alignment[0], from, n_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return assign(preference.alignment[1], from, n_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return assign(preference.alignment[2], from, n_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(preference.alignment[3], from, n_bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

template <typename State, typename Opaque, typename Attribute>
cublasStatus_t set_attribute(Opaque* opaque, Attribute what, const void* from, size_t n_bytes) {
  State state{};
  if (!get(opaque, state)) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasStatus_t status = set(state, what, from, n_bytes);
  put(opaque, state);
  return status;
}

}  // namespace

}  // namespace emulation::blas

using namespace emulation::blas;

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout,
                                                 size_t size,
                                                 cudaDataType type,
                                                 uint64_t rows,
                                                 uint64_t cols,
                                                 int64_t ld) {
  const cublasStatus_t fault = injected("cublasLtMatrixLayoutInit");
  if (fault != CUBLAS_STATUS_SUCCESS) return fault;
  if (layout == nullptr || size != sizeof *layout) return CUBLAS_STATUS_ALLOC_FAILED;
  put(layout, Layout{Layout::expected, type, rows, cols, ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation,
                                               size_t size,
                                               cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  const cublasStatus_t fault = injected("cublasLtMatmulDescInit");
  if (fault != CUBLAS_STATUS_SUCCESS) return fault;
  if (operation == nullptr || size != sizeof *operation) return CUBLAS_STATUS_ALLOC_FAILED;
  put(operation, Operation{Operation::expected, compute, scale, {CUBLAS_OP_N, CUBLAS_OP_N}, {}});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void* from,
                                              size_t n_bytes) {
  const cublasStatus_t fault = injected("cublasLtMatmulDescSetAttribute");
  if (fault != CUBLAS_STATUS_SUCCESS) return fault;
  return set_attribute<Operation>(operation, what, from, n_bytes);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t size) {
  const cublasStatus_t fault = injected("cublasLtMatmulPreferenceInit");
  if (fault != CUBLAS_STATUS_SUCCESS) return fault;
  if (preference == nullptr || size != sizeof *preference) return CUBLAS_STATUS_ALLOC_FAILED;
  // The library's defaults (cublasLt.h): no workspace, every reduction, 256 bytes.
  put(preference,
      Preference{Preference::expected, CUBLASLT_REDUCTION_SCHEME_MASK, 0, {256, 256, 256, 256}});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* from,
                                                    size_t n_bytes) {
  const cublasStatus_t fault = injected("cublasLtMatmulPreferenceSetAttribute");
  if (fault != CUBLAS_STATUS_SUCCESS) return fault;
  return set_attribute<Preference>(preference, what, from, n_bytes);
}
