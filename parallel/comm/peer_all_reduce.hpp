// PeerAllReduce: a group's all-reduces of small payloads by kernels over the peers' memory
// (kernels/cuda/peer_reduce.hpp), where its GPUs can map each other. It runs on the compute stream:
// what follows a row-parallel layer needs the sum, so that there is nothing to overlap with.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/peer_memory.hpp"
#include "parallel/comm/peer_sizes.hpp"

namespace testbed {

class PeerAllReduce {
 public:
  struct Options {
    std::vector<std::string> hosts;             // [size], for messages
    int64_t capacity_bytes = int64_t{4} << 20;  // the largest payload; twice that is allocated
    double deadline_s = 120.0;                  // for a peer to come
    std::optional<PeerSizes> sizes = {};        // given: nothing is measured
  };
  // The ranks of the group make it together, after which sums have been found right, and destroy it
  // together. host: the group's twin between the hosts; outlives it. nullptr, with the same reason
  // on all ranks, where it cannot be had.
  struct Made {
    std::unique_ptr<PeerAllReduce> peers;
    std::string why_not;
  };
  static Made make(cuda::Queue& queue, Communicator& host, const Options& options);
  ~PeerAllReduce();
  PeerAllReduce(const PeerAllReduce&) = delete;
  PeerAllReduce& operator=(const PeerAllReduce&) = delete;

  // Measures where the algorithms change over, unless sizes were given; until then none is taken.
  // All ranks together; all take the same sizes.
  void tune(const std::function<void(TensorView)>& nccl_all_reduce, PeerTuning tuning = {});
  // "one-shot to 64 KiB, two-shot to 512 KiB, NCCL above (measured)".
  std::string description() const;
  // As measured, for the record; empty if sizes were given.
  const std::vector<AllReduceTimes>& times() const { return times_; }

  static constexpr bool has(CommAlgorithm algorithm) {
    return algorithm == CommAlgorithm::one_shot || algorithm == CommAlgorithm::two_shot;
  }
  // nullopt: NCCL's.
  std::optional<CommAlgorithm> algorithm_for(int64_t n_bytes) const;
  // What the other ranks read from this one. A two-shot's slices are of whole pieces:
  // Communicator's own count where the payload divides into them evenly.
  int64_t wire_bytes(CommAlgorithm algorithm, int64_t n_bytes, int64_t element_bytes) const;
  // Of a payload that algorithm_for has an answer for. Communicator::all_reduce's contract.
  void all_reduce(TensorView x, CommAlgorithm algorithm);
  // Whether all_reduce_add_norm takes a partial sum of this shape [m, d]: it is one-shot.
  bool takes_add_norm(TensorView partial) const;
  // residual += sum over the ranks of partial; out = rms_norm(residual). The bits of all_reduce and
  // Device::add_rms_norm; partial is left as it was.
  void all_reduce_add_norm(
      TensorView partial, TensorView residual, TensorView weight, float eps, TensorView out);
  // Throws CommError naming the ranks that a call has waited for in vain. Every wait for the
  // queue's work asks.
  void check() const;

 private:
  PeerAllReduce(cuda::Queue& queue, Communicator& host, const Options& options);
  std::string wrong_sum();
  std::string wrong_sum_of(CommAlgorithm algorithm, DType dtype, int64_t n);

  cuda::Queue& queue_;
  Communicator& host_;
  Options options_;
  MappedPeers mapped_;
  PeerSizes sizes_;
  std::vector<AllReduceTimes> times_;
  int watcher_ = -1;
};

}  // namespace testbed
