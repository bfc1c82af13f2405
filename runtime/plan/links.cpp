#include "runtime/plan/links.hpp"

#include "parallel/comm/wire_bytes.hpp"
#include "runtime/plan/training.hpp"

namespace testbed::plan {

namespace {

int64_t ring_wire_bytes(CommOp op, int64_t n_bytes, int n_devices) {
  constexpr int rank = 0;  // none sends more
  constexpr int64_t element_bytes = 1;
  return wire_bytes(op, CommAlgorithm::ring, n_bytes, element_bytes, rank, n_devices);
}

}  // namespace

int64_t all_gathers_of_layer(const ModelConfig& model, int64_t layer, bool experts_all_to_all) {
  const bool has_experts = model.layer(layer).has_experts;
  return has_experts && experts_all_to_all && model.moe->shared_d_ff == 0 ? 1 : 0;
}

int64_t all_reduces_of_layer(const ModelConfig& model, int64_t layer, bool experts_all_to_all) {
  const LayerShape shape = model.layer(layer);
  const int64_t side_by_side = shape.has_experts && shape.d_ff > 0 ? 1 : 0;
  return forward_all_reduces_per_layer + side_by_side -
         all_gathers_of_layer(model, layer, experts_all_to_all);
}

int64_t all_reduce_bytes_per_layer(const ModelConfig& model, int64_t n_tokens, DType dtype) {
  return forward_all_reduces_per_layer * dtype_bytes(dtype, n_tokens * model.d_model);
}

int64_t ring_all_reduce_wire_bytes(int64_t n_bytes, int n_devices) {
  return ring_wire_bytes(CommOp::all_reduce, n_bytes, n_devices);
}

int64_t ring_all_gather_wire_bytes(int64_t n_bytes, int n_devices) {
  return ring_wire_bytes(CommOp::all_gather, n_bytes, n_devices);
}

double ring_all_reduce_seconds(int64_t n_bytes, int n_devices, double bytes_per_s) {
  return static_cast<double>(ring_all_reduce_wire_bytes(n_bytes, n_devices)) / bytes_per_s;
}

}  // namespace testbed::plan
