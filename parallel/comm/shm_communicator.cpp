#include "parallel/comm/shm_communicator.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/base/clock.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "parallel/comm/gather_values.hpp"
#include "parallel/comm/missing_ranks.hpp"
#include "parallel/comm/ordered_sum.hpp"
#include "parallel/comm/shm_wait.hpp"

namespace testbed {
namespace {

constexpr int64_t line_bytes = 64;

int64_t whole_lines(int64_t n_bytes) {
  return (n_bytes + line_bytes - 1) / line_bytes * line_bytes;
}

// Where in its send tensor a rank's rows for each rank begin, and its end: [size + 1] bytes. At the
// begin of its buffer.
int64_t table_bytes(int size) {
  return whole_lines(static_cast<int64_t>(sizeof(int64_t)) * (size + 1));
}

std::byte* offset(const void* data, int64_t n_bytes) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + n_bytes;
}

constexpr int64_t tuned_bytes = int64_t{512} << 10;  // the largest payload that is measured

std::string kib_text(int64_t n_bytes) { return fmt::format("{} KiB", n_bytes / 1024); }

void copy_bytes(void* to, const void* from, int64_t n_bytes) {
  if (n_bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(n_bytes));
}

}  // namespace

void ShmProgress::move_messages() {
  for (ShmCommunicator* group : groups_) group->move_messages();
}

void ShmProgress::move_all() {
  move_messages();
  int found = 0;  // not wanted: any call into MPI moves all of its messages
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE),
            "MPI_Iprobe");
}

class ShmCommunicator::Message final : public Pending::Work {
 public:
  // channel: the sender's or the receiver's end.
  template <typename Channel>
  Message(ShmCommunicator& group, Channel& channel, std::shared_ptr<ShmMessage> message, int peer)
      : group_(group), message_(std::move(message)) {
    constexpr bool sends = std::is_same_v<Channel, ShmSender>;
    is_done_ = [&channel, m = message_.get()] {
      if (!m->done) channel.progress();
      if constexpr (sends) return channel.is_done(*m);
      return m->done;
    };
    abandon_ = [&channel] { channel.abandon(); };
    constexpr std::string_view op = sends ? "send" : "recv";
    missing_ = [this, &group, peer, op]() -> std::string {
      if (is_done_()) return "";  // this process was itself stopped meanwhile
      const MpiWaiting& waiting = group.options_.waiting;
      return missing_ranks(
          group.group(), group.options_.hosts, op, {peer}, waiting.deadline_s, waiting.whereabouts);
    };
  }
  ~Message() override {
    // Waited for, or an error unwinds: nothing may be written to the buffer any more.
    if (!waited_) abandon_();
  }
  void wait() override {
    wait_until(group_.options_.waiting, is_done_, missing_);
    waited_ = true;
  }

 private:
  ShmCommunicator& group_;
  std::shared_ptr<ShmMessage> message_;
  std::function<bool()> is_done_;
  std::function<void()> abandon_;
  std::function<std::string()> missing_;
  bool waited_ = false;
};

ShmCommunicator::Made ShmCommunicator::make(Communicator& messages,
                                            std::shared_ptr<Shared> shared,
                                            Options options) {
  const int size = messages.size();
  const int64_t n_bytes =
      ShmTeam::segment_bytes(size) + int64_t{size} * size * ShmRing::ring_bytes(size);
  ShmSegment::Made made = ShmSegment::make(messages, n_bytes);
  if (made.segment == nullptr) return {nullptr, std::move(made.why_not)};
  // Each looks whether it may read every other's memory; all or none do.
  struct Word {
    uint64_t address;
    uint64_t value;
    int32_t pid;
    int32_t unused;
  };
  constexpr uint64_t value = 0x7465737462656421;
  volatile uint64_t there = value;
  const Word mine{reinterpret_cast<uint64_t>(&there), value, getpid(), 0};
  std::vector<int> pids;
  pids.reserve(static_cast<size_t>(size));
  std::string no_fetch = options.may_fetch ? "" : "not wanted";
  for (const Word& word : gather_values(messages, mine)) {
    pids.push_back(word.pid);
    if (no_fetch.empty() && !can_fetch(word.pid, word.address, word.value)) no_fetch = "refused";
  }
  const bool fetches = agreed_reason(messages, no_fetch).empty();
  return {std::unique_ptr<ShmCommunicator>(new ShmCommunicator(messages.group(),
                                                               std::move(shared),
                                                               std::move(options),
                                                               std::move(made.segment),
                                                               pids,
                                                               fetches)),
          ""};
}

ShmCommunicator::ShmCommunicator(GroupInfo info,
                                 std::shared_ptr<Shared> shared,
                                 Options options,
                                 std::unique_ptr<ShmSegment> segment,
                                 const std::vector<int>& pids,
                                 bool receiver_fetches)
    : Communicator(std::move(info)),
      shared_(std::move(shared)),
      options_(std::move(options)),
      segment_(std::move(segment)),
      team_(group(), options_.hosts, options_.waiting, segment_->data()),
      buffer_bytes_(ShmTeam::buffer_bytes(size())),
      isa_(cpu::choose_isa()),
      peer_heaps_(pids),
      everyones_(static_cast<size_t>(size())),
      one_shot_bytes_(options_.sizes.one_shot_limit(size())),
      fused_bytes_(options_.sizes.fuses_norm ? one_shot_bytes_ : 0),
      parts_(static_cast<size_t>(size())),
      bytes_read_(static_cast<size_t>(size())) {
  CHECK(table_bytes(size()) < buffer_bytes_ / 2);
  options_.waiting.progress = [p = &shared_->progress] { p->move_all(); };
  std::byte* const rings = segment_->data() + ShmTeam::segment_bytes(size());
  const auto ring = [&](int source, int target) {
    const int64_t number = int64_t{source} * size() + target;
    return ShmRing(rings + number * ShmRing::ring_bytes(size()), size());
  };
  senders_.reserve(parts_.size());
  receivers_.reserve(parts_.size());
  for (int r = 0; r < size(); ++r) {
    senders_.emplace_back(ring(rank(), r), receiver_fetches);
    receivers_.emplace_back(ring(r, rank()), pids[static_cast<size_t>(r)]);
  }
  shared_->progress.add(this);
}

ShmCommunicator::~ShmCommunicator() { shared_->progress.remove(this); }

void ShmCommunicator::move_messages() {
  for (ShmSender& sender : senders_) {
    if (!sender.is_idle()) sender.progress();
  }
  for (ShmReceiver& receiver : receivers_) {
    if (!receiver.is_idle()) receiver.progress();
  }
}

void ShmCommunicator::progress() { shared_->progress.move_all(); }

CommAlgorithm ShmCommunicator::all_reduce_algorithm(int64_t n_bytes) const {
  return n_bytes <= one_shot_bytes_ ? CommAlgorithm::one_shot : CommAlgorithm::two_shot;
}

std::string ShmCommunicator::tune() {
  // As the ranks' workspaces are; zeros stay zeros.
  const Tensor x = shared_->heap.allocate(DType::F32, {tuned_bytes / 4});
  one_shot_bytes_ = changeover(measure(
      [&](int64_t n_bytes) {
        one_shot({x.data(), DType::F32, {n_bytes / 4}});
      },
      [&](int64_t n_bytes) {
        two_shot({x.data(), DType::F32, {n_bytes / 4}});
      }));
  // Rows of some usual width.
  constexpr int64_t most_columns = 2048;
  const Tensor residual(DType::F32, {tuned_bytes / 4});
  const Tensor out(DType::F32, {tuned_bytes / 4});
  const Tensor weight(DType::F32, {most_columns});
  const auto rows_of = [&](const Tensor& t, int64_t n_bytes) {
    const int64_t n_columns = std::min(n_bytes / 4, most_columns);
    return TensorView(t.data(), DType::F32, {n_bytes / 4 / n_columns, n_columns});
  };
  const auto weight_of = [&](TensorView rows) { return weight.view().rows(0, rows.shape()[1]); };
  constexpr float eps = 1e-5F;
  fused_bytes_ = changeover(measure(
      [&](int64_t n_bytes) {
        const TensorView rows = rows_of(x, n_bytes);
        do_all_reduce_add_norm(
            rows, rows_of(residual, n_bytes), weight_of(rows), eps, rows_of(out, n_bytes));
      },
      [&](int64_t n_bytes) {
        const TensorView rows = rows_of(x, n_bytes);
        do_all_reduce(rows, all_reduce_algorithm(n_bytes));
        cpu::add_rms_norm(rows_of(residual, n_bytes),
                          rows,
                          weight_of(rows),
                          eps,
                          rows_of(out, n_bytes),
                          alone_,
                          isa_);
      }));
  return fmt::format(
      "by shared memory: one-shot to {}, two-shot above, one-shot+norm to {} (measured)",
      kib_text(one_shot_bytes_),
      kib_text(fused_bytes_));
}

// Times by payload of two ways, the slowest rank's: equal on all.
std::vector<ShmCommunicator::TwoTimes> ShmCommunicator::measure(
    const std::function<void(int64_t)>& first, const std::function<void(int64_t)>& second) {
  constexpr int64_t first_bytes = int64_t{1} << 10;
  constexpr int64_t budget_ns = 5'000'000;  // no further size once this is spent
  // Ranks that give their cores away take tens of microseconds a call.
  const int64_t factor = options_.waiting.may_spin ? 2 : 4;
  std::vector<TwoTimes> times;
  times.reserve(16);
  const int64_t begin_ns = now_ns();
  int64_t spent_ns = 0;
  for (int64_t n_bytes = first_bytes; n_bytes <= tuned_bytes && spent_ns < budget_ns;
       n_bytes *= factor) {
    TwoTimes mine{.n_bytes = n_bytes,
                  .first_ns = time_ns(first, n_bytes),
                  .second_ns = time_ns(second, n_bytes),
                  .spent_ns = now_ns() - begin_ns};
    for (const TwoTimes& theirs : gather_values(*this, mine)) {
      mine.first_ns = std::max(mine.first_ns, theirs.first_ns);
      mine.second_ns = std::max(mine.second_ns, theirs.second_ns);
      mine.spent_ns = std::max(mine.spent_ns, theirs.spent_ns);
    }
    spent_ns = mine.spent_ns;
    times.push_back(mine);
  }
  return times;
}

// Of one call: the median of some batches.
int64_t ShmCommunicator::time_ns(const std::function<void(int64_t)>& call, int64_t n_bytes) {
  const int n_calls = options_.waiting.may_spin ? 4 : 1;
  std::array<int64_t, 5> ns{};
  call(n_bytes);
  for (int64_t& time : ns) {
    do_barrier();
    const int64_t begin_ns = now_ns();
    for (int i = 0; i < n_calls; ++i) call(n_bytes);
    time = (now_ns() - begin_ns) / n_calls;
  }
  const auto middle = ns.begin() + ns.size() / 2;
  std::nth_element(ns.begin(), middle, ns.end());
  return *middle;
}

// The changeover that costs least: least sum over the sizes of the time taken against the better
// one, so that one noisy point does not decide.
int64_t ShmCommunicator::changeover(std::span<const TwoTimes> times) {
  int64_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t n_first = 0; n_first <= times.size(); ++n_first) {
    double cost = 0.0;
    for (size_t i = 0; i < times.size(); ++i) {
      const TwoTimes& t = times[i];
      const int64_t taken = i < n_first ? t.first_ns : t.second_ns;
      const int64_t better = std::max<int64_t>(1, std::min(t.first_ns, t.second_ns));
      cost += static_cast<double>(taken) / static_cast<double>(better);
    }
    if (cost >= least) continue;
    least = cost;
    best = n_first == 0 ? 0 : times[n_first - 1].n_bytes;
  }
  return best;
}

std::vector<int64_t> ShmCommunicator::bytes_read() const {
  std::vector<int64_t> read = bytes_read_;
  for (size_t r = 0; r < read.size(); ++r) read[r] += receivers_[r].n_bytes_read();
  return read;
}

void ShmCommunicator::copy_from(int rank, void* to, const std::byte* from, int64_t n_bytes) {
  copy_bytes(to, from, n_bytes);
  bytes_read_[static_cast<size_t>(rank)] += n_bytes;
}

template <typename Use>
void ShmCommunicator::exchange(
    const void* mine, int64_t n_bytes, int64_t step_bytes, std::string_view op, const Use& use) {
  const auto put = [&](int64_t begin) {
    const int buffer = team_.take(op);
    copy_bytes(
        team_.buffer(rank(), buffer), offset(mine, begin), std::min(step_bytes, n_bytes - begin));
    return Step{buffer, team_.publish()};
  };
  Step step = put(0);
  for (int64_t begin = 0; begin < n_bytes; begin += step_bytes) {
    const int64_t end = std::min(n_bytes, begin + step_bytes);
    const Step next = end < n_bytes ? put(end) : Step{};
    team_.wait_for_all(step.count, op);
    use(begin, end, step.buffer);
    team_.release(step.buffer);
    step = next;
  }
}

void ShmCommunicator::do_all_reduce(TensorView x, CommAlgorithm algorithm) {
  if (algorithm == CommAlgorithm::one_shot) one_shot(x);
  if (algorithm == CommAlgorithm::two_shot) two_shot(x);
}

void ShmCommunicator::one_shot(TensorView x) {
  const int64_t element_bytes = dtype_bytes(x.dtype(), 1);
  exchange(x.data(),
           x.n_bytes(),
           buffer_bytes_,
           "all_reduce",
           [&](int64_t begin, int64_t end, int buffer) {
             std::byte* const mine = offset(x.data(), begin);
             for (int r = 0; r < size(); ++r) {
               parts_[static_cast<size_t>(r)] = r == rank() ? mine : team_.buffer(r, buffer);
               if (r != rank()) bytes_read_[static_cast<size_t>(r)] += end - begin;
             }
             sum_in_order(parts_, mine, (end - begin) / element_bytes, x.dtype());
           });
}

bool ShmCommunicator::fuses_add_norm(TensorView partial) const {
  const int64_t row = row_bytes(partial);
  return partial.shape().rank() == 2 && row <= buffer_bytes_ && partial.n_bytes() <= fused_bytes_;
}

// A row at a time, so that its sum is still in the first-level cache when it is added and normed.
void ShmCommunicator::do_all_reduce_add_norm(
    TensorView partial, TensorView residual, TensorView weight, float eps, TensorView out) {
  const int64_t row = row_bytes(partial);
  const auto finish_row = [&](int64_t i, TensorView sum) {
    for (size_t r = 0; r < parts_.size(); ++r) bytes_read_[r] += row;
    sum_in_order(parts_, sum.data(), sum.n_elements(), sum.dtype());
    cpu::add_rms_norm(residual.rows(i, 1), sum, weight, eps, out.rows(i, 1), alone_, isa_);
  };
  if (find_everyones(partial)) {
    if (row_sum_.n_bytes() < row) row_sum_ = Tensor(DType::F32, {(row + 3) / 4});
    const TensorView sum(row_sum_.data(), partial.dtype(), {1, partial.shape()[1]});
    for (int64_t i = 0; i < partial.n_rows(); ++i) {
      for (size_t r = 0; r < parts_.size(); ++r) parts_[r] = everyones_[r] + i * row;
      finish_row(i, sum);
    }
    team_.wait_for_all(team_.publish(), "all_reduce");  // then it may be written again
    return;
  }
  const int64_t step_bytes = buffer_bytes_ / row * row;
  const auto add_rows = [&](int64_t begin, int64_t end, int buffer) {
    for (int64_t at = begin; at < end; at += row) {
      const TensorView sum = partial.rows(at / row, 1);
      for (int r = 0; r < size(); ++r) {
        parts_[static_cast<size_t>(r)] =
            r == rank() ? sum.data() : team_.buffer(r, buffer) + (at - begin);
      }
      finish_row(at / row, sum);
    }
  };
  exchange(partial.data(), partial.n_bytes(), step_bytes, "all_reduce", add_rows);
}

ReducePieces ShmCommunicator::in_pieces(TensorView x, int n_parts) const {
  const int64_t share = buffer_bytes_ / n_parts / line_bytes * line_bytes;
  return ReducePieces::of(x, n_parts, std::min(options_.sizes.piece_bytes, share));
}

// Everyone's share of my piece comes to me, and mine of theirs goes to them. The place of my own in
// my buffer is left for its sum.
ShmCommunicator::Step ShmCommunicator::contribute(const ReducePieces& pieces,
                                                  int64_t step,
                                                  std::string_view op) {
  const int buffer = team_.take(op);
  std::byte* const mine = team_.buffer(rank(), buffer);
  for (int i = 1; i < size(); ++i) {
    const int r = (rank() + i) % size();
    const IndexRange theirs = pieces.piece(r, step);
    if (theirs.size() == 0) continue;
    copy_bytes(mine + r * pieces.slot_bytes(), pieces.at(theirs), pieces.n_bytes(theirs));
  }
  return {buffer, team_.publish()};
}

const std::vector<const void*>& ShmCommunicator::parts_of(const ReducePieces& pieces,
                                                          int64_t step,
                                                          int buffer) {
  const IndexRange mine = pieces.piece(rank(), step);
  for (int r = 0; r < size(); ++r) {
    const auto part = static_cast<size_t>(r);
    parts_[part] =
        r == rank() ? pieces.at(mine) : team_.buffer(r, buffer) + rank() * pieces.slot_bytes();
    if (r != rank()) bytes_read_[part] += pieces.n_bytes(mine);
  }
  return parts_;
}

// sum(step, buffer) when everyone's share of my piece is there. Two steps are on their way at once.
template <typename Sum>
void ShmCommunicator::reduce(const ReducePieces& pieces, std::string_view op, const Sum& sum) {
  const int64_t n_steps = pieces.n_steps();
  Step step = contribute(pieces, 0, op);
  Step next = n_steps > 1 ? contribute(pieces, 1, op) : Step{};
  for (int64_t i = 0; i < n_steps; ++i) {
    team_.wait_for_all(step.count, op);
    sum(i, step.buffer);
    team_.release(step.buffer);
    step = next;
    if (i + 2 < n_steps) next = contribute(pieces, i + 2, op);
  }
}

// Whether all ranks have x where all can write it; one exchange of where. Where they have not, it
// is not asked for each time.
bool ShmCommunicator::find_everyones(TensorView x) {
  if (looks_again_in_-- > 0) return false;
  constexpr int calls_between_looks = 64;
  team_.wait_for_all(team_.publish(shared_->heap.find(x.data())), "all_reduce");
  for (int r = 0; r < size(); ++r) {
    if (team_.place(r).number != 0) continue;
    looks_again_in_ = calls_between_looks;
    return false;
  }
  looks_again_in_ = 0;
  for (int r = 0; r < size(); ++r) {
    everyones_[static_cast<size_t>(r)] =
        r == rank() ? static_cast<std::byte*>(x.data()) : peer_heaps_.at(r, team_.place(r));
  }
  ++n_in_place_;
  return true;
}

bool ShmCommunicator::two_shot_in_place(TensorView x) {
  if (!find_everyones(x)) return false;
  constexpr int64_t block_bytes = int64_t{4} << 10;  // its sum stays in the first-level cache
  const IndexRange part = split_range(x.n_elements(), size(), rank());
  const int64_t element_bytes = dtype_bytes(x.dtype(), 1);
  const int64_t end = part.end * element_bytes;
  for (int64_t begin = part.begin * element_bytes; begin < end; begin += block_bytes) {
    const int64_t n_bytes = std::min(block_bytes, end - begin);
    for (size_t r = 0; r < parts_.size(); ++r) parts_[r] = everyones_[r] + begin;
    std::byte* const sum = offset(x.data(), begin);
    sum_in_order(parts_, sum, n_bytes / element_bytes, x.dtype());
    for (size_t r = 0; r < parts_.size(); ++r) copy_bytes(everyones_[r] + begin, sum, n_bytes);
  }
  for (size_t r = 0; r < parts_.size(); ++r) {
    const IndexRange theirs = split_range(x.n_elements(), size(), static_cast<int>(r));
    bytes_read_[r] += (part.size() + theirs.size()) * element_bytes;  // what it wrote here, too
  }
  team_.wait_for_all(team_.publish(), "all_reduce");
  return true;
}

void ShmCommunicator::two_shot(TensorView x) {
  if (two_shot_in_place(x)) return;
  const ReducePieces pieces = in_pieces(x, size());
  reduce(pieces, "all_reduce", [&](int64_t step, int buffer) {
    const IndexRange mine = pieces.piece(rank(), step);
    std::byte* const sum = team_.buffer(rank(), buffer) + rank() * pieces.slot_bytes();
    sum_in_order(parts_of(pieces, step, buffer), sum, mine.size(), x.dtype());
    const uint64_t summed = team_.publish();
    copy_bytes(pieces.at(mine), sum, pieces.n_bytes(mine));
    team_.wait_for_all(summed, "all_reduce");
    for (int i = 1; i < size(); ++i) {
      const int r = (rank() + i) % size();
      const IndexRange theirs = pieces.piece(r, step);
      copy_from(r,
                pieces.at(theirs),
                team_.buffer(r, buffer) + r * pieces.slot_bytes(),
                pieces.n_bytes(theirs));
    }
  });
}

// The first half of a two-shot all-reduce: the same sums in the same pieces.
void ShmCommunicator::do_reduce_scatter(TensorView x, TensorView out) {
  const ReducePieces pieces = in_pieces(x, size());
  auto* sum = static_cast<std::byte*>(out.data());
  reduce(pieces, "reduce_scatter", [&](int64_t step, int buffer) {
    const IndexRange mine = pieces.piece(rank(), step);
    sum_in_order(parts_of(pieces, step, buffer), sum, mine.size(), x.dtype());
    sum += pieces.n_bytes(mine);
  });
}

void ShmCommunicator::reduce_parts(TensorView x, int n_parts, float* sums) {
  const ReducePieces pieces = in_pieces(x, n_parts);
  reduce(pieces, "all_reduce", [&](int64_t step, int buffer) {
    const IndexRange mine = pieces.piece(rank(), step);
    if (mine.size() > 0) {
      sum_in_order_f32(parts_of(pieces, step, buffer), sums, mine.size(), x.dtype());
    }
    sums += mine.size();
  });
}

void ShmCommunicator::gather_parts(TensorView x, int n_parts) {
  const ReducePieces pieces = in_pieces(x, n_parts);
  for (int64_t step = 0; step < pieces.n_steps(); ++step) {
    const int buffer = team_.take("all_reduce");
    const IndexRange mine = pieces.piece(rank(), step);
    copy_bytes(team_.buffer(rank(), buffer), pieces.at(mine), pieces.n_bytes(mine));
    team_.wait_for_all(team_.publish(), "all_reduce");
    for (int r = 0; r < n_parts; ++r) {
      if (r == rank()) continue;
      const IndexRange theirs = pieces.piece(r, step);
      copy_from(r, pieces.at(theirs), team_.buffer(r, buffer), pieces.n_bytes(theirs));
    }
    team_.release(buffer);
  }
}

void ShmCommunicator::do_all_gather(TensorView local, TensorView out) {
  const int64_t n_bytes = local.n_bytes();
  exchange(
      local.data(),
      n_bytes,
      buffer_bytes_,
      "all_gather",
      [&](int64_t begin, int64_t end, int buffer) {
        for (int i = 1; i < size(); ++i) {
          const int r = (rank() + i) % size();
          copy_from(
              r, offset(out.data(), r * n_bytes + begin), team_.buffer(r, buffer), end - begin);
        }
      });
  copy_bytes(offset(out.data(), rank() * n_bytes), local.data(), n_bytes);
}

void ShmCommunicator::do_broadcast(TensorView x, int root) {
  for (int64_t begin = 0; begin < x.n_bytes(); begin += buffer_bytes_) {
    const int64_t n_bytes = std::min(buffer_bytes_, x.n_bytes() - begin);
    const int buffer = team_.take("broadcast");
    if (rank() == root) copy_bytes(team_.buffer(root, buffer), offset(x.data(), begin), n_bytes);
    const uint64_t count = team_.publish();
    if (rank() != root) {
      team_.wait_for(root, count, "broadcast");
      copy_from(root, offset(x.data(), begin), team_.buffer(root, buffer), n_bytes);
    }
    team_.release(buffer);
  }
}

void ShmCommunicator::do_barrier() { team_.wait_for_all(team_.publish(), "barrier"); }

// Each rank's send tensor goes through its buffer from begin to end; with the first stretch comes
// the table that says where whose rows are, and so how many stretches the longest has.
Communicator::RowsSent ShmCommunicator::do_all_to_all(TensorView send,
                                                      std::span<const int64_t> send_rows,
                                                      TensorView recv,
                                                      std::span<const int64_t> recv_rows,
                                                      const RowExchange& /*exchange*/) {
  const int64_t table = table_bytes(size());
  const int64_t step_bytes = buffer_bytes_ - table;
  const int64_t row = row_bytes(send);
  std::vector<int64_t> mine(parts_.size() + 1, 0);
  std::vector<int64_t> into(parts_.size() + 1, 0);
  for (size_t r = 0; r < parts_.size(); ++r) {
    mine[r + 1] = mine[r] + send_rows[r] * row;
    into[r + 1] = into[r] + recv_rows[r] * row;
  }
  const auto own = static_cast<size_t>(rank());
  std::vector<IndexRange> theirs(parts_.size());  // bytes of rank r's tensor that are for me
  int64_t longest = 0;
  for (int64_t begin = 0; begin == 0 || begin < longest; begin += step_bytes) {
    const int buffer = team_.take("all_to_all");
    std::byte* const out = team_.buffer(rank(), buffer);
    if (begin == 0)
      copy_bytes(out, mine.data(), static_cast<int64_t>(mine.size() * sizeof(int64_t)));
    copy_bytes(out + table, offset(send.data(), begin), std::min(step_bytes, mine.back() - begin));
    team_.wait_for_all(team_.publish(), "all_to_all");
    for (size_t i = 0; i < parts_.size(); ++i) {
      const size_t r = (own + i) % parts_.size();
      const std::byte* const from = team_.buffer(static_cast<int>(r), buffer);
      if (begin == 0) {
        const auto* const offsets = reinterpret_cast<const int64_t*>(from);
        theirs[r] = {offsets[own], offsets[own + 1]};
        longest = std::max(longest, offsets[parts_.size()]);
      }
      const int64_t first = std::max(begin, theirs[r].begin);
      const int64_t n_bytes = std::min(begin + step_bytes, theirs[r].end) - first;
      std::byte* const to = offset(recv.data(), into[r] + first - theirs[r].begin);
      if (n_bytes > 0) copy_from(static_cast<int>(r), to, from + table + first - begin, n_bytes);
    }
    team_.release(buffer);
  }
  return {CommAlgorithm::direct, send.n_bytes() - send_rows[own] * row};
}

std::unique_ptr<Pending::Work> ShmCommunicator::do_send(TensorView x, int target) {
  ShmSender& sender = senders_[static_cast<size_t>(target)];
  return std::make_unique<Message>(*this, sender, sender.send(x.data(), x.n_bytes()), target);
}

std::unique_ptr<Pending::Work> ShmCommunicator::do_recv(TensorView x, int source) {
  ShmReceiver& receiver = receivers_[static_cast<size_t>(source)];
  return std::make_unique<Message>(
      *this, receiver, receiver.receive(x.data(), x.n_bytes()), source);
}

}  // namespace testbed
