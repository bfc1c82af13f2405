// From measured ops to DeviceTiming: the parameters with which kernels/sim/op_time.hpp gives the
// measured times back.
#pragma once

#include <span>

#include "kernels/base/device_spec.hpp"
#include "runtime/probe/probe_op.hpp"

namespace testbed {

// The device has its peaks; its timing is replaced. layer_overhead_s is what the ops of one
// llama-like layer cost at start together.
DeviceTiming fit_device_timing(DeviceSpec device, std::span<const MeasuredOp> ops, MathType math);

// Mean of |model / measured - 1| over the ops of a kind.
double mean_error(const DeviceSpec& device,
                  std::span<const MeasuredOp> ops,
                  OpKind kind,
                  MathType math);

}  // namespace testbed
