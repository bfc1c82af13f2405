#include "kernels/cuda/runtime.hpp"

#include <fmt/format.h>

#include "kernels/base/complaint.hpp"
#include "kernels/base/errors.hpp"

namespace testbed::cuda {
namespace {

std::string failure(cudaError_t code, const char* call) {
  return fmt::format("{}: {} (code {}, {})",
                     call,
                     cudaGetErrorString(code),
                     static_cast<int>(code),
                     cudaGetErrorName(code));
}

void free_device(void* data) { check_quietly(cudaFree(data), "cudaFree"); }
void free_pinned(void* data) { check_quietly(cudaFreeHost(data), "cudaFreeHost"); }

size_t bytes_of(DType dtype, const Shape& shape) {
  return static_cast<size_t>(dtype_bytes(dtype, shape.n_elements()));
}

}  // namespace

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // an error that has been told is not told again by the next call
  throw DeviceError(failure(code, call));
}

void check_quietly(cudaError_t code, const char* call) noexcept {
  if (code == cudaSuccess) return;
  cudaGetLastError();                                // as in check()
  if (cudaPeekAtLastError() != cudaSuccess) return;  // it stays: whatever is called next throws it
  complain(failure(code, call));
}

Tensor device_tensor(DType dtype, Shape shape) {
  const size_t n_bytes = bytes_of(dtype, shape);
  if (n_bytes == 0) return {nullptr, dtype, shape};
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, n_bytes);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw DeviceError(failure(code, "cudaMalloc") + fmt::format(" for {} bytes", n_bytes));
  }
  check(code, "cudaMalloc");
  return {data, dtype, shape, &free_device};
}

Tensor pinned_tensor(DType dtype, Shape shape) {
  const size_t n_bytes = bytes_of(dtype, shape);
  if (n_bytes == 0) return {nullptr, dtype, shape};
  void* data = nullptr;
  check(cudaHostAlloc(&data, n_bytes, cudaHostAllocDefault), "cudaHostAlloc");
  return {data, dtype, shape, &free_pinned};
}

Stream::Stream(Priority priority) {
  int lowest = 0;
  int highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(
            &stream_, cudaStreamNonBlocking, priority == Priority::high ? highest : lowest),
        "cudaStreamCreateWithPriority");
}

Stream::~Stream() { check_quietly(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }

Event::Event(Kind kind) {
  check(cudaEventCreateWithFlags(&event_,
                                 kind == Kind::timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
}

Event::~Event() {
  if (event_ != nullptr) check_quietly(cudaEventDestroy(event_), "cudaEventDestroy");
}

}  // namespace testbed::cuda
