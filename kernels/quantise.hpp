// Rows of quantised matrices in host memory, and the arithmetic between them and f32: the one
// definition that loading, kernels and tests agree on (docs/quantisation.md; the conventions of
// shared/fixtures/units/quant.json). f32 throughout, halves to even, division by the scale.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/tensor.hpp"
#include "kernels/base/weight_format.hpp"

namespace testbed {

// n rows of n_cols codes, one code a byte: int8 as it is, int4 0 ... 15, fp8 its bits.
struct QuantisedRows {
  WeightFormat format;
  TensorView codes;    // I8 [n, n_cols]
  TensorView scales;   // format.scale_dtype [n, n_groups]
  TensorView offsets;  // zero points I8, or minima F16 [n, n_groups]; empty without

  int64_t n_rows() const { return codes.n_rows(); }
  int64_t n_cols() const { return codes.shape()[1]; }
  QuantisedRows rows(int64_t begin, int64_t count) const;
};

// The same, owned. Zeros.
struct QuantisedTensor {
  QuantisedTensor() = default;
  QuantisedTensor(const WeightFormat& wanted, int64_t n_rows, int64_t n_cols);
  QuantisedRows view() const { return {format, codes, scales, offsets}; }
  operator QuantisedRows() const { return view(); }  // NOLINT(google-explicit-constructor)

  WeightFormat format;
  Tensor codes;
  Tensor scales;
  Tensor offsets;
};

// rows F32 [n, n_cols] into out. Row 0 and column 0 begin a group of rows and of columns; rows that
// end early are a group's rest. tensor_amax: the largest magnitude of the whole tensor, of a
// format in which all rows share a scale; else not used.
//   int8: scale = amax / 127 (1 if that is 0, in scale_dtype), code = clamp(rint(w / scale), +-127)
//   int4: lo = min(0, w), hi = max(0, w), scale = f16((hi - lo) / 15) (1 if that is 0), zero =
//         clamp(rint(-lo / scale), 0, 15), code = clamp(rint(w / scale) + zero, 0, 15)
//   fp8:  scale = amax / 448 (1 if 0), code = e4m3(clamp(w / scale, +-448)), to nearest even
// A scale that f16 cannot hold is its largest finite number. q4_0, q4_1: not here, they come from
// files. Throws WeightsError for a weight that is not finite.
void quantise(TensorView rows,
              const QuantisedRows& out,
              std::optional<float> tensor_amax = std::nullopt);

// Of F32 values; NaN or infinity if one of them is.
float largest_magnitude(TensorView values);

// What the codes stand for, F32 [n, n_cols]: the reference.
void dequantise(const QuantisedRows& rows, TensorView out);

// The bits of the nearest e4m3 number, halves to even; beyond +-448 the largest, NaN stays one.
uint8_t to_e4m3(float x);
float from_e4m3(uint8_t bits);

}  // namespace testbed
