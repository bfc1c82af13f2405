// Reproducible values for probes: normal numbers of about 1, as activations are.
#pragma once

#include "kernels/device.hpp"

namespace testbed {

// F32 or BF16, values in [-1, 1), in host memory and on a device.
Tensor synthetic_tensor(DType dtype, const Shape& shape);
Tensor synthetic_tensor(Device& device, DType dtype, const Shape& shape);

}  // namespace testbed
