// Memory of what lives long and is read whole, again and again: weights, the cache.
#pragma once

#include "kernels/base/tensor.hpp"

namespace testbed {

// Zeroed, and laid end to end with others in huge pages, which a tensor of less than one has no
// other way to. (A decode step of a model of 135 M parameters, whose matrices are 0.2-3.5 MB, takes
// a sixth less time: the rest went into walking tables of 4 KiB pages.) Its pages are given back
// when all tensors are gone that share its 64 MiB; untouched ones take no memory. Any thread may
// call it. Without huge pages it is only slower.
Tensor in_huge_pages(DType dtype, Shape shape);

}  // namespace testbed
