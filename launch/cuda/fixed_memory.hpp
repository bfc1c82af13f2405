// What a rank holds on its GPU whatever the model is: counted in its plan, beside weights and KV.
#pragma once

#include <cstdint>

#include "parallel/comm/nccl_communicator.hpp"
#include "parallel/mesh.hpp"

namespace testbed {

// Buffers of NCCL's for the messages of a group of `size`: for each lane (an NCCL communicator) one
// each way. NCCL_BUFFSIZE by default; with more channels there are more, and collectives have
// theirs: none of these is known before.
constexpr int64_t message_buffer_bytes(int size) {
  constexpr int64_t nccl_buffer_bytes = int64_t{4} << 20;
  return size == 1 ? 0 : int64_t{2} * nccl_message_lanes(size) * nccl_buffer_bytes;
}

// read_buffer_bytes: what the read loop of the peaks goes through.
inline int64_t fixed_gpu_bytes(const Mesh& mesh, int64_t read_buffer_bytes) {
  constexpr int64_t library_bytes = int64_t{32} << 20;   // cuBLASLt's workspace
  constexpr int64_t expanded_bytes = int64_t{32} << 20;  // strips of quantised matrices, in bf16
  const int64_t peer_bytes =
      mesh.tp == 1 ? 0 : cuda::peer_allocation_bytes(PeerAllReduce::Options{}.capacity_bytes);
  return library_bytes + expanded_bytes + read_buffer_bytes + peer_bytes +
         message_buffer_bytes(mesh.cp) + message_buffer_bytes(mesh.pp);
}

}  // namespace testbed
