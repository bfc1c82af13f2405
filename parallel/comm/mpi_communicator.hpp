// Collectives of CPU ranks over MPI point-to-point messages. Not MPI_Allreduce: which algorithm
// that takes, and so what it sends, is not told, and it knows no bf16. Sums are taken in rank order
// and the two-shot's are handed on, so that all ranks hold the same bits.
#pragma once

#include <mpi.h>

#include <array>
#include <string>
#include <vector>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/mpi_wait.hpp"
#include "parallel/comm/reduce_pieces.hpp"

namespace testbed {

// Where the algorithms change over. Measured with benchmarks/all_reduce.cpp, 2 ranks on the 2 cores
// of a shared host, Open MPI 4.1.4 over shared memory; median us one-shot / two-shot of two runs at
// load 4 and 8: 16 KiB 1.4 / 2.1 and 3.6 / 6.2, 32 KiB 2.1 / 2.7 and 4.7 / 7.0, 64 KiB 3.6 / 3.8
// and 7.2 / 9.0, 128 KiB 6.8 / 6.5 and 12.5 / 13.3. So the limit of 2 ranks, who send as much in
// one exchange as in two, is twice one_shot_bytes. From 3 ranks on one-shot sends more: not
// measured with a core for each rank.
struct AllReduceSizes {
  int64_t one_shot_bytes = int64_t{32} << 10;  // up to this payload, and
  int one_shot_ranks = 8;                      // this many ranks, one exchange instead of two
  int64_t piece_bytes = int64_t{128} << 10;    // of a rank's part of a two-shot, in flight at once

  bool fuses_norm = true;  // up to there, where ranks share memory

  // The largest payload that goes in one exchange; -1: none.
  int64_t one_shot_limit(int size) const {
    if (size > one_shot_ranks) return -1;
    return (size == 2 ? 2 : 1) * one_shot_bytes;
  }
};

class MpiCommunicator final : public Communicator {
 public:
  struct Options {
    std::vector<std::string> hosts;  // [size]
    std::string transport;
    MpiWaiting waiting;
    AllReduceSizes sizes;
    int64_t largest_message = mpi_largest_message;
  };
  // The group's ranks call it together.
  MpiCommunicator(GroupInfo group, Options options, const Clock& clock = steady_clock());
  ~MpiCommunicator() override;
  void progress() override;
  std::string tune() override;
  std::string_view transport() const override { return options_.transport; }

 protected:
  CommAlgorithm all_reduce_algorithm(int64_t n_bytes) const override;

 private:
  class MpiWork;
  void do_all_reduce(TensorView x, CommAlgorithm algorithm) override;
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

  void one_shot(TensorView x);
  void two_shot(TensorView x);
  void post_contributions(const ReducePieces& shot, int64_t step);
  void sum_contributions(const ReducePieces& shot, int64_t step, std::byte* sum);
  void post_results(const ReducePieces& shot, int64_t step);
  std::byte* scratch(int64_t n_bytes);
  void wait(MpiRequests& requests, std::string_view op);

  Options options_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  // Kept between calls, so that a call allocates nothing.
  std::vector<std::byte> scratch_;
  std::vector<const void*> parts_;            // [size]
  std::array<MpiRequests, 2> contributions_;  // of even and odd steps
  std::array<MpiRequests, 2> results_;
};

}  // namespace testbed
