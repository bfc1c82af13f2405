// Read, write and copy bandwidth of a level of the memory: the same kernels over buffers of its
// size. And shared memory's.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/queue.hpp"
#include "kernels/probes/cuda/pattern.hpp"
#include "kernels/probes/cuda/stopwatch.hpp"
#include "kernels/probes/device_curves.hpp"

namespace testbed::cuda {

// Bytes/s of a read loop over the buffer for some 10 ms, by the device's events: the peak that MBU
// is held against. The buffer is on the device, and should have read_buffer_bytes() or more: else a
// part of it is read from L2. What it holds does not matter. Only in idle moments: waits for the
// device.
double read_bandwidth_sample(Queue& queue, TensorView buffer);
// Four times the L2 cache of the current device.
int64_t read_buffer_bytes();

// Of buffers that are multiples of 16 bytes. Passes: the buffers are gone through so many times in
// one launch, which so shows neither in short buffers nor in long ones.
// Reads n_bytes; *sum (device) is the sum of its 32-bit words, once per pass.
void read_memory(Queue& queue, TensorView from, int n_passes, uint32_t* sum);
// Writes n_bytes: word i = pattern_word(i).
void write_memory(Queue& queue, TensorView to, int n_passes);
// Reads n_bytes and writes n_bytes.
void copy_memory(Queue& queue, TensorView from, TensorView to, int n_passes);

// One buffer of n_bytes for reads and writes, its halves for copies: all stay within a cache that
// holds n_bytes. Throws DeviceError if what was read is not what was copied and written.
MemoryLevel measure_level(Queue& queue, std::string name, int64_t n_bytes, const Effort& effort);

// Every thread reads 16 bytes at a time without bank conflicts, one block of 1024 threads per SM.
SharedMemoryRate measure_shared(Queue& queue, int n_blocks, int n_rounds, const Effort& effort);

}  // namespace testbed::cuda
