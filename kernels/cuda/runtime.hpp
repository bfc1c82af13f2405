// The CUDA runtime as this program uses it: errors as exceptions, handles that free themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/base/tensor.hpp"

namespace testbed::cuda {

// Throws DeviceError "call: text (code N, cudaErrorName)" if code is not cudaSuccess.
void check(cudaError_t code, const char* call);
// For destructors, which cannot throw: says it once on standard error.
void check_quietly(cudaError_t code, const char* call) noexcept;

// cudaMalloc'd, 256-byte aligned; not initialised. Throws DeviceError naming the bytes asked for.
Tensor device_tensor(DType dtype, Shape shape);
// Host memory that devices read and write directly (cudaHostAlloc).
Tensor pinned_tensor(DType dtype, Shape shape);

class Stream {
 public:
  enum class Priority : uint8_t { normal, high };
  explicit Stream(Priority priority = Priority::normal);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  enum class Kind : uint8_t { order, timing };  // order: cheaper, has no time
  explicit Event(Kind kind = Kind::order);
  ~Event();
  Event(Event&& o) noexcept : event_(std::exchange(o.event_, nullptr)) {}
  Event& operator=(Event&& o) noexcept {
    std::swap(event_, o.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace testbed::cuda
