// What this machine can do: the read loop that MBU is held against, the arithmetic peak of MFU, the
// caches.
#pragma once

#include <cstdint>

#include "kernels/base/tensor.hpp"
#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace testbed::cpu {

// Reads the buffer round and round on all threads for about duration_s and sums it: bytes/s. The
// buffer should be at least four times the last-level cache.
double read_bandwidth(TensorView buffer, double duration_s, ThreadPool& pool, Isa isa);

// Dense FLOP/s of all threads from registers alone: vdpbf16ps for BF16 where the processor has it,
// else f32 FMA (for the portable level: whatever the compiler makes of it). I8: of products of
// int8, as quantised weights are multiplied: vpdpbusd, or vpmaddubsw and vpmaddwd. The best of
// several rounds within duration_s.
double peak_flops(DType operands, double duration_s, ThreadPool& pool, Isa isa);

// Bytes of all last-level caches of the machine, whatever cores the process is bound to: they are
// the memory domain's, which all ranks of a host share. 0 if unknown.
int64_t last_level_cache_bytes();

}  // namespace testbed::cpu
