#include "runtime/plan/links.hpp"

#include "parallel/comm/wire_bytes.hpp"
#include "runtime/plan/training.hpp"

namespace testbed::plan {

int64_t all_reduce_bytes_per_layer(const ModelConfig& model, int64_t n_tokens, DType dtype) {
  return forward_all_reduces_per_layer * dtype_bytes(dtype, n_tokens * model.d_model);
}

int64_t ring_all_reduce_wire_bytes(int64_t n_bytes, int n_devices) {
  constexpr int rank = 0;  // none sends more
  constexpr int64_t element_bytes = 1;
  return wire_bytes(
      CommOp::all_reduce, CommAlgorithm::ring, n_bytes, element_bytes, rank, n_devices);
}

double ring_all_reduce_seconds(int64_t n_bytes, int n_devices, double bytes_per_s) {
  return static_cast<double>(ring_all_reduce_wire_bytes(n_bytes, n_devices)) / bytes_per_s;
}

}  // namespace testbed::plan
