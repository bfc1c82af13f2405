// What an op costs, as exact integers, and who is told. The formulas are in kernels/cost.hpp.
#pragma once

#include <cstdint>
#include <string_view>

namespace testbed {

struct OpCost {
  int64_t flops = 0;        // executed on this device; a multiply-add is two
  int64_t model_flops = 0;  // the share of flops that counts for MFU: replicas and padding excluded
  int64_t weight_bytes = 0;      // true elements in the dtype that is read, padding excluded
  int64_t expansion_ops = 0;     // to turn quantised weights into numbers, once (kernels/cost.hpp)
  int64_t kv_bytes = 0;          // cached keys and values read
  int64_t kv_write_bytes = 0;    // keys and values written
  int64_t activation_bytes = 0;  // activations read and written

  // All that it moves to and from memory.
  int64_t memory_bytes() const {
    return weight_bytes + kv_bytes + kv_write_bytes + activation_bytes;
  }

  OpCost& operator+=(const OpCost& o) {
    flops += o.flops;
    model_flops += o.model_flops;
    weight_bytes += o.weight_bytes;
    expansion_ops += o.expansion_ops;
    kv_bytes += o.kv_bytes;
    kv_write_bytes += o.kv_write_bytes;
    activation_bytes += o.activation_bytes;
    return *this;
  }
  bool operator==(const OpCost&) const = default;
};

// What the time of an op depends on beyond its cost (kernels/sim/op_time.hpp). A device op fills
// the part that is its own; the rest stays 0.
struct OpShape {
  // Matrix products: y[m, n] = x[m, k] W[n, k]^T. n_matrices > 1 of them share the m rows: a
  // matrix per head, or the experts that have rows.
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t n_matrices = 1;
  // attention
  int64_t n_sequences = 0;
  int64_t n_query_rows = 0;     // of all sequences; equal to n_sequences when every one decodes
  int64_t longest_context = 0;  // visible tokens of the longest sequence
  int64_t n_kv_heads = 0;       // on this device
  bool partial = false;         // the result is merged with others; another op of the layer ends it
  bool operator==(const OpShape&) const = default;
};

enum class OpKind : uint8_t {
  embed,
  norm,
  linear,
  rope,
  kv_write,
  attention,
  activation,
  sample,
  copy,
  merge,  // of partial attention results, and what ends them
  router,
  expert_linear,
  combine,  // weighted sums of the experts' rows
};
constexpr std::string_view op_name(OpKind kind) {
  constexpr std::string_view names[] = {"embed",
                                        "norm",
                                        "linear",
                                        "rope",
                                        "kv_write",
                                        "attention",
                                        "activation",
                                        "sample",
                                        "copy",
                                        "merge",
                                        "router",
                                        "expert_linear",
                                        "combine"};
  return names[static_cast<int>(kind)];
}

struct OpRecord {
  OpKind kind = OpKind::copy;
  OpCost cost;
  int64_t begin_ns = 0;  // host monotonic clock
  int64_t end_ns = 0;
};

// Told of every op of a device, once it is done. A device without a sink neither counts nor reads a
// clock: the timed pass runs so.
class CostSink {
 public:
  virtual ~CostSink() = default;
  virtual void on_op(const OpRecord& record) = 0;
};

}  // namespace testbed
