// One op at one shape, ready to be timed on a real device: what it costs, and how to run it on
// memory that no cache holds.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/device.hpp"
#include "runtime/probe/probe_record.hpp"

namespace testbed {

// Weights and KV caches of a probe are rotated through this much memory: beyond any cache.
constexpr int64_t rotated_bytes = int64_t{256} << 20;

struct ProbeOp {
  OpKind kind = OpKind::linear;
  OpShape shape;
  OpCost cost;
  std::variant<GemmPoint, AttentionPoint, ElementwisePoint> point;  // as reported, without its time
  // The call-th run: successive ones read different memory, equal ones do the same.
  std::function<void(int64_t call)> run;
};

struct MeasuredOp {
  OpKind kind = OpKind::linear;
  OpShape shape;
  OpCost cost;
  std::variant<GemmPoint, AttentionPoint, ElementwisePoint> point;
  double seconds = 0.0;  // median
};

// The ops of a transformer layer with llama3-8b's widths, each at decode and prefill sizes. The
// device must outlive them.
std::vector<ProbeOp> linear_ops(Device& device);
std::vector<ProbeOp> attention_ops(Device& device);
std::vector<ProbeOp> elementwise_ops(Device& device);
// One row against matrices beyond the caches: how a decode step reads its weights.
ProbeOp weight_reading_op(Device& device);

}  // namespace testbed
