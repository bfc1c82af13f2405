// DeviceTiming: how close real kernels come to a device's peaks: calibration, with where it is
// from. kernels/sim/op_time.hpp reads it; docs/calibration.md states the model and its errors.
#pragma once

#include <string>

namespace testbed {

struct OpTiming {
  double compute_efficiency = 1.0;  // of the dense peak, in (0, 1]
  double memory_efficiency = 1.0;   // of the peak read bandwidth, in (0, 1]
  double start_s = 0.0;             // of a stand-alone kernel: launch, ramp and drain
  bool operator==(const OpTiming&) const = default;
};

// The defaults are the ideal device: every op at the roofline, nothing else.
struct DeviceTiming {
  OpTiming linear;      // 16-bit operands and wider
  OpTiming linear_fp8;  // 8-bit operands and narrower
  OpTiming attention_decode;
  OpTiming attention_prefill;
  OpTiming elementwise;  // everything else

  // What filling the pipeline of an output tile costs, in columns of K. Above 0, matrix products
  // are counted in whole output tiles and waves of ChipSpec::n_sm; 0: by FLOPs alone.
  double tile_fill_k = 0.0;
  // Decode attention: one (sequence, KV head) pair per SM; and one doubling of the context, which
  // is split over SMs whose results are combined.
  double decode_unit_s = 0.0;
  double decode_split_s = 0.0;

  // Once per layer and pass: launches and small kernels. Stands for the start_s of the layer's ops,
  // which overlap when they run back to back.
  double layer_overhead_s = 0.0;

  std::string source;  // table and fit error; "none" for the ideal device
  bool operator==(const DeviceTiming&) const = default;
};

}  // namespace testbed
