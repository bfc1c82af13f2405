// Copies and fills. A range must lie within one allocation of the kind that is named. Those without
// a stream are the default stream's, which streams that do not block are not ordered with.
#include <cstring>

#include "tests/cuda_emulation/memory.hpp"
#include "tests/cuda_emulation/state.hpp"

namespace emulation {
namespace {

// Rows of width bytes, pitches apart.
struct Copy {
  std::byte* to;
  size_t to_pitch;
  const std::byte* from;
  size_t from_pitch;
  size_t width;
  size_t height;

  size_t to_bytes() const { return height == 0 ? 0 : (height - 1) * to_pitch + width; }
  size_t from_bytes() const { return height == 0 ? 0 : (height - 1) * from_pitch + width; }
  void run() const {
    for (size_t i = 0; i < height; ++i)
      std::memmove(to + i * to_pitch, from + i * from_pitch, width);
  }
};

bool on_device(const void* p, size_t n_bytes) { return is_device_memory(p, n_bytes); }
// No part of a device's allocation.
bool on_host(const void* p, size_t n_bytes) {
  return !on_device(p, 1) && !on_device(static_cast<const std::byte*>(p) + n_bytes - 1, 1);
}

cudaError_t check(const Copy& copy, cudaMemcpyKind kind) {
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (copy.to == nullptr || copy.from == nullptr) return cudaErrorInvalidValue;
  if (copy.height > 1 && (copy.width > copy.to_pitch || copy.width > copy.from_pitch)) {
    return cudaErrorInvalidPitchValue;
  }
  const size_t to = copy.to_bytes();
  const size_t from = copy.from_bytes();
  bool valid = false;
  switch (kind) {
    case cudaMemcpyHostToHost:
      valid = on_host(copy.to, to) && on_host(copy.from, from);
      break;
    case cudaMemcpyHostToDevice:
      valid = on_device(copy.to, to) && on_host(copy.from, from);
      break;
    case cudaMemcpyDeviceToHost:
      valid = on_host(copy.to, to) && on_device(copy.from, from);
      break;
    case cudaMemcpyDeviceToDevice:
      valid = on_device(copy.to, to) && on_device(copy.from, from);
      break;
    case cudaMemcpyDefault:
      valid = (on_device(copy.to, to) || on_host(copy.to, to)) &&
              (on_device(copy.from, from) || on_host(copy.from, from));
      break;
  }
  return valid ? cudaSuccess : cudaErrorInvalidValue;
}

// From pageable memory: the source is read now. To pageable memory: it is done when this returns.
cudaError_t copy_on_stream(const Copy& copy, cudaMemcpyKind kind, cudaStream_t handle) {
  Stream* stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t code = check(copy, kind); code != cudaSuccess) return code;
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  const bool capturing = stream->capture != nullptr;
  if (!capturing && !on_device(copy.from, 1) && is_pageable(copy.from, copy.from_bytes())) {
    auto staged =
        std::make_shared<std::vector<std::byte>>(copy.from, copy.from + copy.from_bytes());
    return enqueue_work(*stream, {Kind::copy, [copy, staged = std::move(staged)] {
                                    Copy late = copy;
                                    late.from = staged->data();
                                    late.run();
                                    return true;
                                  }});
  }
  const cudaError_t code = enqueue_work(*stream, {Kind::copy, [copy] {
                                                    copy.run();
                                                    return true;
                                                  }});
  if (code != cudaSuccess || capturing || on_device(copy.to, 1) ||
      !is_pageable(copy.to, copy.to_bytes())) {
    return code;
  }
  return wait_until(stream, [&] { return stream->queue.empty(); });
}

// The default stream comes after streams that were made without cudaStreamNonBlocking.
// What has been put on it comes first.
cudaError_t reach_default_stream() {
  run_default_stream();
  for (const auto& stream : state().all_streams) {
    if ((stream->flags & cudaStreamNonBlocking) != 0) continue;
    Stream* one = stream.get();
    const cudaError_t code = wait_until(one, [&] { return one->queue.empty(); });
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

// From pageable memory to a device: the source has been read when this returns, and no more. The
// others are done.
void copy_on_default_stream(const Copy& copy) {
  if (!on_device(copy.to, 1) || on_device(copy.from, 1) ||
      !is_pageable(copy.from, copy.from_bytes())) {
    copy.run();
    return;
  }
  auto staged = std::make_shared<std::vector<std::byte>>(copy.from, copy.from + copy.from_bytes());
  state().on_default_stream.emplace_back([copy, staged = std::move(staged)] {
    Copy late = copy;
    late.from = staged->data();
    late.run();
  });
}

Copy flat(void* to, const void* from, size_t n_bytes) {
  return {static_cast<std::byte*>(to),
          n_bytes,
          static_cast<const std::byte*>(from),
          n_bytes,
          n_bytes,
          1};
}

}  // namespace
}  // namespace emulation

using emulation::entry;
using emulation::WhileCapturing;

cudaError_t cudaMemcpy(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind) {
  return entry(
      "cudaMemcpy",
      [&] {
        const emulation::Copy copy = emulation::flat(to, from, n_bytes);
        if (const cudaError_t code = emulation::check(copy, kind); code != cudaSuccess) return code;
        if (const cudaError_t code = emulation::reach_default_stream(); code != cudaSuccess) {
          return code;
        }
        if (n_bytes > 0) emulation::copy_on_default_stream(copy);
        return cudaSuccess;
      },
      WhileCapturing::refused);
}

cudaError_t cudaMemset(void* p, int value, size_t n_bytes) {
  return entry(
      "cudaMemset",
      [&] {
        if (n_bytes == 0) return cudaSuccess;
        if (!emulation::on_device(p, n_bytes)) return cudaErrorInvalidValue;
        if (const cudaError_t code = emulation::reach_default_stream(); code != cudaSuccess) {
          return code;
        }
        emulation::state().on_default_stream.emplace_back(
            [p, value, n_bytes] { std::memset(p, value, n_bytes); });
        return cudaSuccess;
      },
      WhileCapturing::refused);
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return entry("cudaMemcpyAsync", [&] {
    return emulation::copy_on_stream(emulation::flat(to, from, n_bytes), kind, stream);
  });
}

cudaError_t cudaMemcpy2DAsync(void* to,
                              size_t to_pitch,
                              const void* from,
                              size_t from_pitch,
                              size_t width,
                              size_t height,
                              cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return entry("cudaMemcpy2DAsync", [&] {
    const emulation::Copy copy{static_cast<std::byte*>(to),
                               to_pitch,
                               static_cast<const std::byte*>(from),
                               from_pitch,
                               width,
                               height};
    return emulation::copy_on_stream(copy, kind, stream);
  });
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t n_bytes, cudaStream_t handle) {
  return entry("cudaMemsetAsync", [&] {
    emulation::Stream* stream = emulation::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (n_bytes == 0) return cudaSuccess;
    if (!emulation::on_device(p, n_bytes) && emulation::is_pageable(p, n_bytes)) {
      return cudaErrorInvalidValue;
    }
    return emulation::enqueue_work(*stream, {emulation::Kind::fill, [p, value, n_bytes] {
                                               std::memset(p, value, n_bytes);
                                               return true;
                                             }});
  });
}
