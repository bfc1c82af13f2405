// ShmTeam: how the ranks of one host take turns at the memory they share: what a rank has put into
// its buffers is published by a count, and a buffer is written again when all have read it. The
// ranks call the same functions in the same order, so each knows every other's counts.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/mpi_wait.hpp"
#include "parallel/comm/shm_heap.hpp"

namespace testbed {

class ShmTeam {
 public:
  static constexpr int n_buffers = 3;
  // Each of a rank's buffers.
  static int64_t buffer_bytes(int size);
  static int64_t segment_bytes(int size);

  // group and waiting outlive it; hosts [size]; memory: segment_bytes of zeros, the same on all
  // ranks.
  ShmTeam(const GroupInfo& group,
          const std::vector<std::string>& hosts,
          const MpiWaiting& waiting,
          std::byte* memory);

  // The next buffer to put something into, once nobody reads it any more: the same on all ranks.
  int take(std::string_view op);
  std::byte* buffer(int rank, int index) const;
  // What this rank has written is there for all; returns its count.
  uint64_t publish();
  // The same, and where this rank's tensor is; read by others until the next wait for all.
  uint64_t publish(const ShmHeap::Place& place);
  const ShmHeap::Place& place(int rank) const { return flags_[rank].place; }
  void wait_for_all(uint64_t count, std::string_view op);
  void wait_for(int rank, uint64_t count, std::string_view op);
  // This rank, and at this point of the sequence every rank, has read what it wants of everyone's
  // buffer.
  void release(int index) { free_at_[static_cast<size_t>(index)] = count_ + 1; }

 private:
  struct alignas(128) Flag {  // two lines: the next one is fetched along
    std::atomic<uint64_t> count;
    ShmHeap::Place place;
  };
  bool has_come(int rank, uint64_t count) const {
    return flags_[rank].count.load(std::memory_order_acquire) >= count;
  }
  std::string missing(uint64_t count, std::string_view op) const;

  const GroupInfo& group_;
  const std::vector<std::string>& hosts_;
  const MpiWaiting& waiting_;
  Flag* flags_;         // [size], shared
  std::byte* buffers_;  // [size, n_buffers, buffer_bytes], shared
  int64_t buffer_bytes_;
  uint64_t count_ = 0;
  int next_ = 0;
  std::array<uint64_t, n_buffers> free_at_{};
};

}  // namespace testbed
