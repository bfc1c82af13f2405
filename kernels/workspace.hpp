// Workspace: scratch tensors of a step, taken from device memory that is kept between steps. A
// Frame gives back what was taken during its life.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/device.hpp"

namespace testbed {

class Workspace {
 public:
  // Chunks come from allocate(dtype, shape): by default the device's.
  using Allocate = std::function<Tensor(DType, Shape)>;
  explicit Workspace(Device& device)
      : allocate_([&device](DType dtype, Shape shape) { return device.allocate(dtype, shape); }) {}
  explicit Workspace(Allocate allocate) : allocate_(std::move(allocate)) {}

  // An uninitialised tensor, 64-byte aligned, valid until the enclosing Frame ends.
  TensorView take(DType dtype, Shape shape);
  int64_t allocated_bytes() const;

  class Frame {
   public:
    explicit Frame(Workspace& workspace)
        : workspace_(workspace), chunk_(workspace.chunk_), offset_(workspace.offset_) {}
    ~Frame() {
      workspace_.chunk_ = chunk_;
      workspace_.offset_ = offset_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Workspace& workspace_;
    size_t chunk_;
    int64_t offset_;
  };

 private:
  Allocate allocate_;
  std::vector<Tensor> chunks_;  // byte buffers; earlier views stay valid when one is added
  size_t chunk_ = 0;
  int64_t offset_ = 0;  // bytes used of chunks_[chunk_]
};

}  // namespace testbed
