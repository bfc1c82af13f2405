// MappedPeers: the memory that the GPUs of a group share for its small all-reduces: each rank's
// allocation, mapped into the others by CUDA IPC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/peer_reduce.hpp"
#include "parallel/comm/communicator.hpp"

namespace testbed {

class MappedPeers {
 public:
  // The ranks of the group make it together, and destroy it together while `host`, the group's twin
  // between the hosts, is there. Where the memory cannot be mapped why_not() says so, the same on
  // all ranks.
  MappedPeers(cuda::Queue& queue, Communicator& host, int64_t capacity_bytes);
  ~MappedPeers();
  MappedPeers(const MappedPeers&) = delete;
  MappedPeers& operator=(const MappedPeers&) = delete;

  const std::string& why_not() const { return why_not_; }  // "": mapped
  const cuda::PeerMemory& memory() const { return memory_; }
  // How long calls made from now on wait for a peer.
  void set_deadline(double seconds);
  // Ranks of the group that a call has waited for in vain.
  std::vector<int> missing() const;

 private:
  std::string group_reason();
  void allocate(int64_t capacity_bytes);
  void open(const std::vector<cudaIpcMemHandle_t>& handles);
  void point_at(int rank, std::byte* allocation);

  cuda::Queue& queue_;
  Communicator& host_;
  std::string why_not_;
  Tensor own_;            // peer_allocation_bytes
  Tensor state_;          // PeerState
  Tensor missing_;        // pinned [max_peers]
  bool offered_ = false;  // on all ranks: some may have mapped it
  std::vector<void*> opened_;
  cuda::PeerMemory memory_;
};

}  // namespace testbed
