// ShmHeap: tensors of this process that other ranks of its host can map, so that an all-reduce
// works on them where they are. Each is an anonymous file of its own, which peers open through
// /proc when they first meet it; nothing is left behind (ShmSegment).
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/base/tensor.hpp"

namespace testbed {

class ShmHeap {
 public:
  // Outlives its tensors. Zeros; ordinary memory where none can be shared.
  Tensor allocate(DType dtype, Shape shape);

  // Where others find an address of this process.
  struct Place {
    uint64_t number = 0;  // of the allocation, never used again; 0: not of this heap
    int32_t fd = -1;
    int64_t offset = 0;  // bytes
  };
  Place find(const void* data) const;

 private:
  struct Allocation {
    ShmHeap* heap;
    int64_t n_bytes;  // of the file
    uint64_t number;
    int fd;
  };
  static void free(void* data);

  std::map<const std::byte*, Allocation> allocations_;  // by their first byte
  uint64_t n_allocated_ = 0;
};

// The other ranks' allocations, as far as they have been met.
class ShmPeerHeaps {
 public:
  explicit ShmPeerHeaps(std::vector<int> pids) : pids_(std::move(pids)) {}
  ~ShmPeerHeaps();
  ShmPeerHeaps(const ShmPeerHeaps&) = delete;
  ShmPeerHeaps& operator=(const ShmPeerHeaps&) = delete;
  // Throws CommError if it cannot be mapped.
  std::byte* at(int rank, const ShmHeap::Place& place);

 private:
  struct Mapped {
    std::byte* data = nullptr;
    size_t n_bytes = 0;
  };
  std::vector<int> pids_;
  std::map<std::pair<int, uint64_t>, Mapped> mapped_;  // by rank and number
};

}  // namespace testbed
