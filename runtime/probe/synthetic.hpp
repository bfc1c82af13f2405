// Reproducible values for probes: normal numbers of about 1, as activations are.
#pragma once

#include "kernels/base/tensor.hpp"

namespace testbed {

// F32 or BF16, values in [-1, 1).
Tensor synthetic_tensor(DType dtype, const Shape& shape);

}  // namespace testbed
