// All-reduce of small payloads by kernels that read the other ranks' memory (CUDA IPC over NVLink):
// one launch per call, no rendezvous of hosts. All ranks launch the same calls with the same shapes
// in the same order on one stream each; all hold the same bits afterwards: sums in rank order, in
// f32, rounded once.
//
// Every rank has a region [2, capacity_bytes], written by itself and read by all, and flags that
// the others write. Call k uses half k % 2. That is enough: a rank writes its half for call k after
// its call k-1 has seen a flag of every peer's call k-1, which the peer's stream starts after all
// of its reads of call k-2.
//
// Blocks of one launch do not wait for each other: block b of a rank waits for the blocks b of its
// peers, which hold the same pieces. All blocks of a launch must be on the device at once, beside
// kernels of other streams that themselves wait for peers: NCCL's, of a block or two per channel. A
// block may need an SM to itself (512 threads of up to 128 registers; a fused norm up to 160 KiB of
// shared memory), and one that lacks its place would wait for a kernel that waits for it. So at
// most half of the SMs are taken (peer_blocks), which leaves the others to those kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/index_range.hpp"
#include "kernels/base/tensor.hpp"
#include "kernels/cuda/queue.hpp"

namespace testbed::cuda {

constexpr int max_peers = 8;
constexpr int max_peer_blocks = 64;
// Most blocks of a launch on a GPU, or a slice of one, with so many SMs.
constexpr int64_t peer_blocks(int64_t n_multiprocessors) {
  const int64_t half = n_multiprocessors / 2;
  return half < 1 ? 1 : half < max_peer_blocks ? half : max_peer_blocks;
}
constexpr int64_t peer_piece = 8;  // elements: what a thread takes at a time, of F32 32 bytes

// What a device keeps about its calls, so that the calls of a graph need no number from the host.
struct PeerState {
  uint32_t calls[max_peer_blocks];  // so far; all equal between launches
  uint32_t given_up;                // a peer did not come: later calls do not wait
};

// The memory behind the calls, as mapped into this rank's address space. An argument of kernels:
// no padding.
struct PeerMemory {
  std::byte* regions[max_peers] = {};  // [size][2, capacity_bytes]
  uint32_t* flags[max_peers] = {};     // [size][2 rounds, max_peer_blocks, max_peers]
  PeerState* state = nullptr;          // on this device
  uint32_t* missing = nullptr;         // [max_peers], pinned: 1 for who did not come
  int64_t capacity_bytes = 0;          // a multiple of 32
  int64_t deadline_ns = 0;             // by the global timer: an SM's clock falls when it idles
  int32_t rank = 0;
  int32_t size = 1;
  int64_t max_blocks = max_peer_blocks;  // equal on all ranks; a launch's blocks are all resident
};
static_assert(std::has_unique_object_representations_v<PeerMemory>);

// Of one rank's allocation: the region, then the flags.
constexpr int64_t peer_flag_bytes =
    int64_t{2} * max_peer_blocks * max_peers * static_cast<int64_t>(sizeof(uint32_t));
constexpr int64_t peer_allocation_bytes(int64_t capacity_bytes) {
  return 2 * capacity_bytes + peer_flag_bytes;
}

// Which of n_pieces a rank sums in a two-shot: sizes differ by one at most.
constexpr IndexRange peer_slice(int64_t n_pieces, int size, int rank) {
  const int64_t each = n_pieces / size;
  const int64_t more = n_pieces % size;  // ranks with one piece more
  const int64_t begin = each * rank + (rank < more ? rank : more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

// In place, x F32 or BF16 of at most capacity_bytes, S bytes over n ranks.
// One round of flags, then everyone reads everything: (n-1) S over links. Aim: launch + flag +
// read, each about 2 us over NVLink: 5-8 us.
void one_shot_all_reduce(Queue& queue, const PeerMemory& memory, TensorView x);
// Everyone sums its slice, a second round of flags, then reads the other sums: 2 (n-1)/n S. A flag
// and a read more than one-shot, so for payloads whose bytes take longer than that.
void two_shot_all_reduce(Queue& queue, const PeerMemory& memory, TensorView x);

// Whether the fused norm takes rows of x [m, d]: whole pieces, which a block's registers hold, and
// its shared memory all ranks' parts of. 70b at TP 8 in BF16: 8 x 16 KiB.
constexpr int64_t peer_norm_columns = 16384;
constexpr int64_t peer_norm_bytes = int64_t{160} << 10;
inline bool peer_norm_fits(TensorView x, int size) {
  const int64_t d = x.shape()[-1];
  return d % peer_piece == 0 && d <= peer_norm_columns &&
         size * dtype_bytes(x.dtype(), d) <= peer_norm_bytes;
}
// One-shot, then residual += the sum, out = rms_norm(residual): the bits of one_shot_all_reduce and
// add_rms_norm (rows.hpp), without the sum's way through memory and without a launch. All [m, d],
// 16-byte aligned. partial is left as it was.
void one_shot_add_rms_norm(Queue& queue,
                           const PeerMemory& memory,
                           TensorView partial,
                           TensorView residual,
                           TensorView weight,
                           float eps,
                           TensorView out);

}  // namespace testbed::cuda
