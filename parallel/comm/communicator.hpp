// Communicator: the ranks of one group (one axis of the mesh). Public operations are non-virtual:
// each states its payload, algorithm and wire bytes, stamps when this rank arrived and left, tells
// the CommSink, and calls the private virtual that does the work. Wait and wire are told apart
// afterwards from all ranks' stamps (runtime/measure/analysis.hpp): wait = last arrival - mine,
// wire = end - last arrival.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.hpp"
#include "kernels/base/tensor.hpp"
#include "parallel/comm/op_row.hpp"
#include "parallel/mesh.hpp"

namespace testbed {

enum class CommOp : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  barrier,
  send,
  recv
};
constexpr std::string_view comm_op_name(CommOp op) {
  constexpr std::string_view names[] = {"all_reduce",
                                        "all_gather",
                                        "reduce_scatter",
                                        "all_to_all",
                                        "broadcast",
                                        "barrier",
                                        "send",
                                        "recv"};
  return names[static_cast<int>(op)];
}

// S is the payload, n the ranks; bytes are those sent per rank.
// direct: one message per pair. one_shot: every rank sends its whole payload to every other and
// sums all, (n-1) S. two_shot: reduce-scatter then all-gather by direct exchange, 2(n-1)/n S. ring:
// parts travel from neighbour to neighbour, 2(n-1)/n S for an all-reduce. tree: double binary tree.
// nvls: the switch sums and multicasts, S + S/n. nvls_tree: nvls in each node, trees across.
// collnet: rings in each node, the network's switches sum across. pat: parallel aggregated trees of
// NCCL, for all-gathers and reduce-scatters, (n-1)/n S. hierarchical: reduce-scatter in each node,
// all-reduce across nodes, all-gather in each node; of rows (all_to_all): once to each node, handed
// on within it. low_latency: rows written straight to each rank. one_shot_norm: with the norm that
// follows. nccl: what NCCL chose, not known. none: a group of one.
enum class CommAlgorithm : uint8_t {
  none,
  direct,
  one_shot,
  two_shot,
  ring,
  tree,
  nvls,
  hierarchical,
  low_latency,
  nvls_tree,
  collnet,
  pat,
  nccl,
  one_shot_norm
};
constexpr std::string_view algorithm_names[] = {"none",
                                                "direct",
                                                "one-shot",
                                                "two-shot",
                                                "ring",
                                                "tree",
                                                "nvls",
                                                "hierarchical",
                                                "low-latency",
                                                "nvls-tree",
                                                "collnet",
                                                "pat",
                                                "nccl",
                                                "one-shot+norm"};
constexpr std::string_view algorithm_name(CommAlgorithm a) {
  return algorithm_names[static_cast<int>(a)];
}
// nullopt: no algorithm is called that.
std::optional<CommAlgorithm> algorithm_by_name(std::string_view name);

// One operation as this rank saw it, by its clock. Blocking operations have wait_begin ==
// wait_end == post_end.
struct CommRecord {
  CommOp op = CommOp::barrier;
  Axis axis = Axis::world;
  CommAlgorithm algorithm = CommAlgorithm::none;
  int32_t group_size = 1;
  bool host = false;     // on the group's communicator of host tensors (GroupInfo::host)
  int32_t peer = -1;     // rank within the group, send and recv only
  int64_t group_id = 0;  // world rank of the group's rank 0
  int64_t sequence =
      0;  // counts the group's collectives; for send/recv the messages of this (source, target)
  int64_t payload_bytes = 0;  // of the tensor, as nccl-tests counts them
  int64_t wire_bytes = 0;     // sent by this device
  int64_t post_begin_ns = 0;  // this rank arrived
  int64_t post_end_ns = 0;    // the call returned
  int64_t wait_begin_ns = 0;  // Pending::wait was entered
  int64_t wait_end_ns = 0;    // Pending::wait returned: for a recv the data is here
  int64_t arrived_ns = 0;     // recv: when the data came, if the transport can tell; else 0
};

class CommSink {
 public:
  virtual ~CommSink() = default;
  virtual void on_comm(const CommRecord& record) = 0;
};

// A send or receive on its way. wait() returns when the buffer may be reused (send) or read (recv).
// Destroying an unfinished Pending waits for it. Movable.
class Pending {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;  // throws CommError on the deadline, naming the peer
    // After wait: when the message had arrived, by this rank's clock; 0 if that is not known.
    virtual int64_t arrived_ns() const { return 0; }
  };
  Pending() = default;
  // Where others see that this rank waits for it; row may be nullptr.
  struct Shown {
    OpRow* row = nullptr;
    OpRow::Operation operation = {};
  };
  Pending(std::unique_ptr<Work> work,
          CommSink* sink,
          const Shown& shown,
          const Clock& clock,
          const CommRecord& record);
  Pending(Pending&&) noexcept = default;
  // Waits for what it held: may throw.
  Pending& operator=(Pending&&);  // NOLINT(performance-noexcept-move-constructor)
  ~Pending() noexcept(false);
  void wait();

 private:
  std::unique_ptr<Work> work_;
  CommSink* sink_ = nullptr;
  Shown shown_;
  const Clock* clock_ = nullptr;
  CommRecord record_;
};

struct GroupInfo {
  Axis axis = Axis::world;
  int rank = 0;  // within the group
  int size = 1;
  std::vector<int> world_ranks;  // [size]
  // Carries host tensors, beside another communicator of the same ranks for the device's.
  bool host = false;
  // [size], node of each rank, numbered from 0 by first appearance; empty: all on one.
  std::vector<int> node_of;

  int node(int r) const { return node_of.empty() ? 0 : node_of[static_cast<size_t>(r)]; }
  int n_nodes() const;
};

// Around each operation of a communicator, on the rank's own thread: where faults are injected
// (inject.hpp). Not of groups of one, nor of nothing.
class CommHooks {
 public:
  virtual ~CommHooks() = default;
  // Before the rank's arrival is stamped.
  virtual void before(const CommRecord& /*record*/, const GroupInfo& /*group*/) {}
  // Of a collective, once it is done: what it gave this rank, if that is one tensor.
  virtual void after(const CommRecord& /*record*/,
                     const GroupInfo& /*group*/,
                     TensorView /*result*/) {}
  // False: the message is not sent, and its sender told nothing.
  virtual bool lets_pass(const CommRecord& /*record*/, const GroupInfo& /*group*/) { return true; }
};

// How the rows of an all_to_all belong together, for links on which a row may cross to a node once.
// It changes no result and, over MPI, nothing at all.
struct RowExchange {
  // dispatch: rows for several ranks are copies of one. combine: what comes from several ranks will
  // be summed, so that a node may send one sum.
  enum class Kind : uint8_t { rows, dispatch, combine };
  Kind kind = Kind::rows;
  // [n_nodes] of this rank, the same for a dispatch and its combine: rows that are distinct among
  // those which go to (dispatch) or come from (combine) the ranks of a node. Empty: all are.
  std::span<const int64_t> node_rows = {};
};

// Of one of the rows x [n, k...], n = 0 included.
int64_t row_bytes(TensorView x);

class Communicator {
 public:
  explicit Communicator(GroupInfo group, const Clock& clock = steady_clock());
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const GroupInfo& group() const { return group_; }
  int rank() const { return group_.rank; }
  int size() const { return group_.size; }
  virtual std::string_view transport()
      const = 0;  // "shm", "tcp", "mixed": what the messages travel over

  // A group of one does nothing and reports nothing.
  // Sums x over the ranks, in place; F32 or BF16: the same bits on every rank and in every run.
  // Over MPI summed in f32, in rank order, rounded once. Over NCCL in the order of the algorithm
  // and channels it takes, which are the same in every run of one layout on one machine, and BF16
  // is rounded at every hop.
  void all_reduce(TensorView x);
  // all_reduce(partial), then residual += the sum and out = rms_norm(residual), in one go where the
  // group has that for the shape; false: nothing was done. Recorded as an all-reduce by
  // "one-shot+norm", whose wire time holds the norm's. partial is used up.
  bool all_reduce_add_norm(
      TensorView partial, TensorView residual, TensorView weight, float eps, TensorView out);
  // local [k...] from every rank, to out [size, k...] in rank order, on every rank.
  void all_gather(TensorView local, TensorView out);
  // x [size * n, k...] of equal shape on every rank; out [n, k...] = rank()'s part of the sum over
  // the ranks. F32 or BF16, summed as all_reduce does. out may be that part of x.
  void reduce_scatter(TensorView x, TensorView out);
  // Rows for each rank, in rank order: send [sum of send_rows, k], of which send_rows[r] go to rank
  // r; recv [sum of recv_rows, k] from each. Every rank knows what comes. Its payload is what the
  // rank sends, its own rows included.
  void all_to_all(TensorView send,
                  std::span<const int64_t> send_rows,
                  TensorView recv,
                  std::span<const int64_t> recv_rows,
                  const RowExchange& exchange = {});
  void broadcast(TensorView x, int root);
  void barrier();
  // Messages between one pair arrive in the order sent. n_bytes may exceed 2^31 (D23).
  Pending send(TensorView x, int target);
  Pending recv(TensorView x, int source);

  // Lets messages that are on their way move on: called between ops, for transports whose messages
  // do not move while the sender computes.
  virtual void progress() {}

  // Host memory on which its all-reduces work in place; the communicator outlives it. nullopt: they
  // do on any, or on none.
  virtual std::optional<Tensor> allocate(DType /*dtype*/, Shape /*shape*/) { return std::nullopt; }

  // Measures here which algorithm all-reduces should take by size, where that is known only then;
  // all ranks together, and all take the same. Says for the record how they are done.
  virtual std::string tune() { return ""; }

  // Who is told of each operation; nullptr (the default) stamps nothing.
  void set_sink(CommSink* sink) { sink_ = sink; }
  // Behind those it has. Of a communicator that another one uses, only the outer one's are called.
  void add_hooks(std::shared_ptr<CommHooks> hooks) { hooks_.push_back(std::move(hooks)); }
  // Where others see what this rank is at; outlives the communicator. nullptr (the default): they
  // do not.
  void set_row(OpRow* row) {
    row_ = row;
    if (row_ != nullptr) row_->has_given_none();
  }

 protected:
  virtual CommAlgorithm all_reduce_algorithm(int64_t n_bytes) const = 0;
  virtual CommAlgorithm all_gather_algorithm(int64_t /*n_bytes*/) const {
    return CommAlgorithm::direct;
  }
  virtual CommAlgorithm reduce_scatter_algorithm(int64_t /*n_bytes*/) const {
    return CommAlgorithm::direct;
  }
  // What an all_to_all took and sent from this rank: known when all ranks' rows are.
  struct RowsSent {
    CommAlgorithm algorithm = CommAlgorithm::none;
    int64_t wire_bytes = 0;
  };
  // What this rank sends; of ranks on several nodes it depends on where they sit.
  virtual int64_t wire_bytes_of(CommOp op,
                                CommAlgorithm algorithm,
                                int64_t n_bytes,
                                int64_t element_bytes) const;

 private:
  virtual void do_all_reduce(TensorView x, CommAlgorithm algorithm) = 0;
  // By shapes alone: the same on all ranks.
  virtual bool fuses_add_norm(TensorView /*partial*/) const { return false; }
  virtual void do_all_reduce_add_norm(TensorView /*partial*/,
                                      TensorView /*residual*/,
                                      TensorView /*weight*/,
                                      float /*eps*/,
                                      TensorView /*out*/) {}
  virtual void do_all_gather(TensorView local, TensorView out) = 0;
  virtual void do_reduce_scatter(TensorView x, TensorView out) = 0;
  virtual RowsSent do_all_to_all(TensorView send,
                                 std::span<const int64_t> send_rows,
                                 TensorView recv,
                                 std::span<const int64_t> recv_rows,
                                 const RowExchange& exchange) = 0;
  virtual void do_broadcast(TensorView x, int root) = 0;
  virtual void do_barrier() = 0;
  virtual std::unique_ptr<Pending::Work> do_send(TensorView x, int target) = 0;
  virtual std::unique_ptr<Pending::Work> do_recv(TensorView x, int source) = 0;

  CommRecord record(CommOp op) const;
  // work(CommRecord&) may fill in what is known only after it. result: what it gives this rank, or
  // empty.
  template <typename Do>
  void collective(CommRecord record, TensorView result, Do&& work);
  template <typename Do>
  void stamped(CommRecord& record, Do&& work);
  template <typename Post>
  Pending message(CommRecord record, TensorView x, int peer, Post&& post);

  GroupInfo group_;
  const Clock& clock_;
  CommSink* sink_ = nullptr;
  OpRow* row_ = nullptr;
  std::vector<std::shared_ptr<CommHooks>> hooks_;
  int64_t next_collective_ = 0;
  std::vector<int64_t> next_send_;  // [size]
  std::vector<int64_t> next_recv_;  // [size]
};

}  // namespace testbed
