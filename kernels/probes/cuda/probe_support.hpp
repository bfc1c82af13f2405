// What the probes share: the device's size, and results that are looked at.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/queue.hpp"

namespace testbed::cuda {

int n_sms();
int64_t l2_bytes();

// x = 0, in order on the stream.
void clear(Queue& queue, const Tensor& x);

// x = what is at `host`, in order on the stream; waits for it.
void copy_to_device(Queue& queue, const void* host, TensorView x);

// Waits for the device; x as it is then.
void copy_to_host(Queue& queue, TensorView x, void* host);
template <typename T>
std::vector<T> values_of(Queue& queue, TensorView x) {
  std::vector<T> values(static_cast<size_t>(x.n_bytes()) / sizeof(T));
  copy_to_host(queue, x, values.data());
  return values;
}
// Waits. sum: one 32-bit word. Throws DeviceError, naming the probe, if the device got another.
void expect_sum(Queue& queue, const Tensor& sum, uint64_t expected, const char* probe);
// The same of a value.
void expect_equal(double got, double expected, const char* probe);

}  // namespace testbed::cuda
