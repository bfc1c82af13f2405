// Arguments: arrays that the host gives to kernels, in device memory whose addresses stay the same
// from step to step. An array has room up to the next power of two, so that a growing block table
// does not move what comes after it. Equal arrays of a section are uploaded once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/runtime.hpp"

namespace testbed::cuda {

class Arguments {
 public:
  // wait: until an event of the stream has come, or it is certain that it will not (throws).
  Arguments(cudaStream_t stream, std::function<void(cudaEvent_t)> wait)
      : stream_(stream), wait_(std::move(wait)) {}
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  // Where the device finds a copy of the values, 256-byte aligned, valid for calls on the compute
  // stream until the section ends (outside sections: for the next calls). An empty span gives an
  // address that may not be read.
  template <typename T>
  const T* put(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<const T*>(put_bytes(std::as_bytes(values)));
  }
  template <typename T>
  const T* put(const std::vector<T>& values) {
    return put(std::span<const T>(values));
  }

  // deferred: what is put is uploaded by upload(), not at once.
  void begin_section(bool deferred);
  void upload();
  void end_section();
  bool in_section() const { return in_section_; }

 private:
  static constexpr int n_copies = 4;  // sections that the host may be ahead of the device
  struct Chunk {
    Tensor device;
    std::array<Tensor, n_copies> pinned;
    int64_t used = 0;
  };
  struct Piece {
    size_t chunk;
    int64_t offset;
    int64_t n_bytes;
  };
  const void* put_bytes(std::span<const std::byte> bytes);
  Piece place(int64_t n_bytes);
  void rotate();

  cudaStream_t stream_;
  std::function<void(cudaEvent_t)> wait_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;
  int copy_ = 0;  // of the pinned buffers
  std::array<Event, n_copies> released_;
  std::unordered_multimap<uint64_t, Piece> known_;  // by content
  bool in_section_ = false;
  bool deferred_ = false;
};

}  // namespace testbed::cuda
