// The sum behind every all-reduce: in rank order and in f32, so that it has the same bits wherever
// it is taken.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace testbed {

// out[i] = parts[0][i] + parts[1][i] + ..., in that order, in f32, rounded once. F32 or BF16; at
// least two parts; out may be one of them.
void sum_in_order(const std::vector<const void*>& parts, void* out, int64_t n, DType dtype);

// The same, not rounded: out F32.
void sum_in_order_f32(const std::vector<const void*>& parts, float* out, int64_t n, DType dtype);

// The versions that this processor can run, the one that sum_in_order takes first. For tests: all
// give the same bits.
using SumInOrder = void (*)(const std::vector<const void*>&, void*, int64_t, DType);
std::vector<SumInOrder> sum_in_order_versions();

}  // namespace testbed
