// How long a simulated device takes for an op: its OpCost against the device's peaks, bent by the
// device's DeviceTiming. Pure arithmetic; model, fit and errors are in docs/calibration.md.
#pragma once

#include "kernels/base/device_spec.hpp"
#include "kernels/base/op_cost.hpp"

namespace testbed {

// Inside a forward pass: without the op's start, which overlaps the op before it. The op that ends
// a layer's attention (the attention itself, or the last merge of partial results) carries
// layer_overhead_s instead: a layer has exactly one per pass. `math` is what the products
// are done in; the device must have a peak for it. An infinite memory bandwidth or peak drops the
// term that it bounds (what if). Throws ConfigError for quantised weights if the device's chip has
// no number of SMs or clock.
double pass_op_seconds(
    const DeviceSpec& device, OpKind kind, const OpCost& cost, const OpShape& shape, MathType math);

// The same op as a stand-alone kernel, as the tables of benchmarks/measured/ time it: start_s for
// the overhead.
double op_seconds(
    const DeviceSpec& device, OpKind kind, const OpCost& cost, const OpShape& shape, MathType math);

// The calibration for a device without tables, from a calibrated one. Peaks, bandwidth and SM count
// come from the device's own datasheet; carried are fractions of the peaks, and times, which are
// cycles: they scale with the boost clock. docs/calibration.md says from whom, and what it costs.
DeviceTiming carried_timing(const DeviceSpec& from, const DeviceSpec& to);

}  // namespace testbed
