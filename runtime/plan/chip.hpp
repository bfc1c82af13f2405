// What the 32 lanes of a warp move and use, and how much of a chip can be resident.
#pragma once

#include <cstdint>

#include "kernels/base/device_spec.hpp"

namespace testbed::plan {

inline constexpr int64_t warp_lanes = 32;
inline constexpr int64_t sector_bytes = 32;  // the unit in which memory is read

// Bytes that a warp's read moves when lane i reads element_bytes at i * stride_bytes, from an
// address on a sector boundary.
int64_t warp_read_bytes(int64_t element_bytes, int64_t stride_bytes);

// Share of the lanes that work when a warp takes every path of an n-way branch, one after another.
double divergence_efficiency(int64_t n_ways);

int64_t resident_threads(const ChipSpec& chip);
int64_t resident_warps(const ChipSpec& chip);
int64_t register_bytes(const ChipSpec& chip);

int64_t warps_of_block(int64_t n_threads);
int64_t idle_lanes_of_block(int64_t n_threads);

}  // namespace testbed::plan
