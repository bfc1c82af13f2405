#include "kernels/probes/cuda/probe_support.hpp"

#include <fmt/format.h>

#include "kernels/base/errors.hpp"

namespace testbed::cuda {
namespace {

int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

int n_sms() { return attribute(cudaDevAttrMultiProcessorCount); }
int64_t l2_bytes() { return attribute(cudaDevAttrL2CacheSize); }

void clear(Queue& queue, const Tensor& x) {
  check(cudaMemsetAsync(x.data(), 0, static_cast<size_t>(x.n_bytes()), queue.stream()),
        "cudaMemsetAsync");
}

// On the queue's stream: it does not wait for the default one.
void copy_to_device(Queue& queue, const void* host, TensorView x) {
  const auto n_bytes = static_cast<size_t>(x.n_bytes());
  check(cudaMemcpyAsync(x.data(), host, n_bytes, cudaMemcpyHostToDevice, queue.stream()),
        "cudaMemcpyAsync");
  queue.synchronize();
}

void copy_to_host(Queue& queue, TensorView x, void* host) {
  queue.synchronize();
  check(cudaMemcpy(host, x.data(), static_cast<size_t>(x.n_bytes()), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
}

void expect_sum(Queue& queue, const Tensor& sum, uint64_t expected, const char* probe) {
  expect_equal(values_of<uint32_t>(queue, sum).front(), static_cast<uint32_t>(expected), probe);
}

void expect_equal(double got, double expected, const char* probe) {
  if (got == expected) return;
  throw DeviceError(
      fmt::format("probe of {}: the device computed {}, not {}", probe, got, expected));
}

}  // namespace testbed::cuda
