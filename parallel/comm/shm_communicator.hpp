// Collectives and messages of CPU ranks of one host through memory that they share. A rank copies
// what others need into its buffer once; they read it there, and sums land in the caller's tensor.
// All-reduces are one-shot or two-shot (reduce_pieces.hpp), in pieces that stay in the caches, with
// the bits of MpiCommunicator: in f32, in rank order, rounded once. Wire bytes are those that other
// ranks read of this one's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/mpi_communicator.hpp"
#include "parallel/comm/reduce_pieces.hpp"
#include "parallel/comm/shm_channel.hpp"
#include "parallel/comm/shm_heap.hpp"
#include "parallel/comm/shm_segment.hpp"
#include "parallel/comm/shm_team.hpp"

namespace testbed {

class ShmCommunicator;

// The groups of this process whose messages may need its help to move on. Every wait of the process
// and every progress() moves all of them, and MPI's: a rank that waits for one thing must not hold
// up another.
class ShmProgress {
 public:
  void add(ShmCommunicator* group) { groups_.push_back(group); }
  void remove(ShmCommunicator* group) { std::erase(groups_, group); }
  void move_messages();
  void move_all();  // MPI's too

 private:
  std::vector<ShmCommunicator*> groups_;
};

class ShmCommunicator final : public Communicator {
 public:
  struct Options {
    std::vector<std::string> hosts;  // [size]
    MpiWaiting waiting;
    AllReduceSizes sizes;
    bool may_fetch = true;  // large messages may be read from the sender's memory
  };
  // What the groups of a process have in common.
  struct Shared {
    ShmProgress progress;
    ShmHeap heap;
  };
  // messages: the same ranks, by MPI; only used meanwhile. nullptr, with the
  // same reason on all ranks, where their memory cannot be shared.
  struct Made {
    std::unique_ptr<ShmCommunicator> group;
    std::string why_not;
  };
  static Made make(Communicator& messages, std::shared_ptr<Shared> shared, Options options);
  ~ShmCommunicator() override;

  void progress() override;
  std::string_view transport() const override { return "shm"; }
  std::string tune() override;
  std::optional<Tensor> allocate(DType dtype, Shape shape) override {
    return shared_->heap.allocate(dtype, shape);
  }
  void move_messages();

  // The two halves of an all-reduce of which something else does the middle. x is cut into n_parts;
  // rank r gets the sum of part r in f32, in rank order, and ranks beyond them none. Then the parts
  // that are in x at their owners come to all.
  void reduce_parts(TensorView x, int n_parts, float* sums);
  void gather_parts(TensorView x, int n_parts);

  struct TwoTimes {
    int64_t n_bytes = 0;
    int64_t first_ns = 0;
    int64_t second_ns = 0;
    int64_t spent_ns = 0;  // measuring, so far
  };
  // The largest of the measured payloads (ascending) that should go the first way; 0: none.
  static int64_t changeover(std::span<const TwoTimes> times);

  // Of what ranks [size] have put where others can read it, the bytes that this rank has read.
  std::vector<int64_t> bytes_read() const;
  // All-reduces, fused with the norm or not, that took the ranks' sums where they lay: from tensors
  // that all share, without a copy into a buffer.
  int64_t n_in_place() const { return n_in_place_; }

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t n_bytes) const override;

 private:
  class Message;
  struct Step {
    int buffer = 0;
    uint64_t count = 0;  // of its publication
  };
  ShmCommunicator(GroupInfo group,
                  std::shared_ptr<Shared> shared,
                  Options options,
                  std::unique_ptr<ShmSegment> segment,
                  const std::vector<int>& pids,
                  bool receiver_fetches);
  void do_all_reduce(TensorView x, CommAlgorithm algorithm) override;
  bool fuses_add_norm(TensorView partial) const override;
  void do_all_reduce_add_norm(TensorView partial,
                              TensorView residual,
                              TensorView weight,
                              float eps,
                              TensorView out) override;
  void do_all_gather(TensorView local, TensorView out) override;
  void do_reduce_scatter(TensorView x, TensorView out) override;
  RowsSent do_all_to_all(TensorView send,
                         std::span<const int64_t> send_rows,
                         TensorView recv,
                         std::span<const int64_t> recv_rows,
                         const RowExchange& exchange) override;
  void do_broadcast(TensorView x, int root) override;
  void do_barrier() override;
  std::unique_ptr<Pending::Work> do_send(TensorView x, int target) override;
  std::unique_ptr<Pending::Work> do_recv(TensorView x, int source) override;

  // The ranks each put n_bytes, a buffer's worth at a time; use(begin, end, buffer) sees every
  // rank's bytes [begin, end).
  template <typename Use>
  void exchange(
      const void* mine, int64_t n_bytes, int64_t step_bytes, std::string_view op, const Use& use);
  void one_shot(TensorView x);
  void two_shot(TensorView x);
  bool two_shot_in_place(TensorView x);
  bool find_everyones(TensorView x);
  ReducePieces in_pieces(TensorView x, int n_parts) const;
  Step contribute(const ReducePieces& pieces, int64_t step, std::string_view op);
  template <typename Sum>
  void reduce(const ReducePieces& pieces, std::string_view op, const Sum& sum);
  const std::vector<const void*>& parts_of(const ReducePieces& pieces, int64_t step, int buffer);
  void copy_from(int rank, void* to, const std::byte* from, int64_t n_bytes);
  std::vector<TwoTimes> measure(const std::function<void(int64_t)>& first,
                                const std::function<void(int64_t)>& second);
  int64_t time_ns(const std::function<void(int64_t)>& call, int64_t n_bytes);

  std::shared_ptr<Shared> shared_;
  Options options_;
  std::unique_ptr<ShmSegment> segment_;
  ShmTeam team_;
  int64_t buffer_bytes_;
  std::vector<ShmSender> senders_;      // [size], to each
  std::vector<ShmReceiver> receivers_;  // [size], from each
  cpu::Isa isa_;
  cpu::ThreadPool alone_{1, false};
  ShmPeerHeaps peer_heaps_;
  std::vector<std::byte*> everyones_;  // [size], where the ranks' tensors are mapped here
  int looks_again_in_ = 0;             // two-shots until it is asked again whether they are shared
  int64_t one_shot_bytes_;             // the largest payload that takes it
  int64_t fused_bytes_;                // that takes one-shot+norm
  Tensor row_sum_;
  std::vector<const void*> parts_;   // [size], kept between calls
  std::vector<int64_t> bytes_read_;  // [size]
  int64_t n_in_place_ = 0;
};

}  // namespace testbed
