#include "runtime/accept/collective_trial.hpp"

#include <algorithm>
#include <cstring>

namespace testbed {
namespace {

// A piece that goes to the device or comes from it at once: whole periods.
constexpr int64_t piece_elements = 64 * CollectiveValues::period;
// Short payloads are called many times on as many buffers.
constexpr int64_t least_buffer_bytes = int64_t{4} << 20;
// Enough to see whose they are; a broken link may make every call wrong.
constexpr size_t wrong_calls_kept = 16;
constexpr size_t wrong_elements_kept = 16;

bool has_own_result(CommOp op) { return op == CommOp::reduce_scatter || op == CommOp::all_to_all; }

}  // namespace

int64_t payload_elements(int64_t n_bytes, DType dtype, int n) {
  return n_bytes / dtype_bytes(dtype, 1) / n * n;
}

int64_t trial_bytes(CommOp op, int64_t most_bytes) {
  const int64_t buffer = std::max(most_bytes, least_buffer_bytes);
  return has_own_result(op) ? 2 * buffer : buffer;
}

CollectiveTrial::CollectiveTrial(Device& device,
                                 Communicator& group,
                                 CommOp op,
                                 const CollectiveValues& values,
                                 int64_t most_bytes)
    : device_(device),
      group_(group),
      op_(op),
      values_(values),
      staging_(values.dtype(), {piece_elements}) {
  const int64_t n_elements =
      trial_bytes(CommOp::all_reduce, most_bytes) / dtype_bytes(values.dtype(), 1);
  in_ = allocate(n_elements);
  if (has_own_result(op)) out_ = allocate(n_elements);
}

// Where a run's partial sums are (Executor): in memory that the ranks of a host share, if there is
// any.
Tensor CollectiveTrial::allocate(int64_t n_elements) const {
  std::optional<Tensor> shared = group_.allocate(values_.dtype(), {n_elements});
  return shared ? std::move(*shared) : device_.allocate(values_.dtype(), {n_elements});
}

int64_t CollectiveTrial::most_calls(int64_t most_bytes, int64_t n_bytes) {
  return std::max(most_bytes, least_buffer_bytes) / n_bytes;
}

TensorView CollectiveTrial::input(int64_t slot) const {
  return in_.view().rows(slot * n_elements_, n_elements_);
}

TensorView CollectiveTrial::output(int64_t slot) const {
  if (op_ == CommOp::reduce_scatter) return out_.view().rows(slot * share(), share());
  if (op_ == CommOp::all_to_all) return out_.view().rows(slot * n_elements_, n_elements_);
  return input(slot);
}

// Values of this rank, from offset `first` of the payload on.
void CollectiveTrial::put(TensorView target, int64_t call, int64_t first) {
  const int64_t n = target.n_elements();
  const std::vector<std::byte> piece =
      values_.elements_of(group_.rank(), call, first, std::min(n, piece_elements));
  std::memcpy(staging_.data(), piece.data(), piece.size());
  for (int64_t begin = 0; begin < n; begin += piece_elements) {
    const int64_t size = std::min(n - begin, piece_elements);
    device_.upload(staging_.view().rows(0, size), target.rows(begin, size));
  }
}

void CollectiveTrial::prepare(int64_t n_elements, int64_t first_call, int64_t n_calls) {
  CHECK(n_calls * n_elements <= in_.n_elements() && n_elements % group_.size() == 0);
  n_elements_ = n_elements;
  first_call_ = first_call;
  n_calls_ = n_calls;
  next_ = 0;
  for (int64_t slot = 0; slot < n_calls; ++slot) {
    // An all-gather's part is in its place. What is still in the others' places is of an earlier
    // call, and so wrong.
    const bool is_part = op_ == CommOp::all_gather;
    const int64_t first = is_part ? group_.rank() * share() : 0;
    put(is_part ? input(slot).rows(first, share()) : input(slot), first_call + slot, first);
  }
}

void CollectiveTrial::call() {
  CHECK(next_ < n_calls_);
  const int64_t slot = next_++;
  const TensorView x = input(slot);
  switch (op_) {
    case CommOp::all_reduce:
      group_.all_reduce(x);
      return;
    case CommOp::all_gather:
      group_.all_gather(x.rows(group_.rank() * share(), share()), x);
      return;
    case CommOp::reduce_scatter:
      group_.reduce_scatter(x, output(slot));
      return;
    case CommOp::broadcast:
      group_.broadcast(x, root_of(first_call_ + slot, group_.size()));
      return;
    case CommOp::all_to_all: {
      // Rows about as wide as a model's, as experts exchange them.
      constexpr int64_t widest = 2048;
      int64_t width = std::min(share(), widest);
      while (share() % width != 0) --width;
      const std::vector<int64_t> rows(static_cast<size_t>(group_.size()), share() / width);
      const Shape shape{n_elements_ / width, width};
      group_.all_to_all(x.reshaped(shape), rows, output(slot).reshaped(shape), rows);
      return;
    }
    default:
      CHECK(false);
  }
}

std::vector<CollectiveTrial::Segment> CollectiveTrial::segments(int64_t call) const {
  const int rank = group_.rank();
  switch (op_) {
    case CommOp::all_reduce:
      return {{-1, 0, n_elements_}};
    case CommOp::reduce_scatter:
      return {{-1, rank * share(), share()}};
    case CommOp::broadcast:
      return {{root_of(call, group_.size()), 0, n_elements_}};
    default:
      break;
  }
  std::vector<Segment> parts;
  parts.reserve(static_cast<size_t>(group_.size()));
  for (int r = 0; r < group_.size(); ++r)
    parts.push_back({r, (op_ == CommOp::all_to_all ? rank : r) * share(), share()});
  return parts;
}

// there: the segment's elements, the first of which is element `at` of the rank's result.
void CollectiveTrial::compare(
    const Segment& segment, int64_t call, TensorView there, int64_t at, WrongCall& wrong) {
  const int64_t n_piece = std::min(segment.n, piece_elements);
  const std::vector<std::byte> right =
      segment.rank < 0 ? values_.elements_of_sum(call, segment.first, n_piece)
                       : values_.elements_of(segment.rank, call, segment.first, n_piece);
  const auto element_bytes = static_cast<size_t>(dtype_bytes(values_.dtype(), 1));
  const auto* is = static_cast<const std::byte*>(staging_.data());
  for (int64_t begin = 0; begin < segment.n; begin += piece_elements) {
    const int64_t size = std::min(segment.n - begin, piece_elements);
    device_.download(there.rows(begin, size), staging_.view().rows(0, size));
    if (std::memcmp(is, right.data(), static_cast<size_t>(size) * element_bytes) == 0) continue;
    for (int64_t i = 0; i < size; ++i) {
      const size_t byte = static_cast<size_t>(i) * element_bytes;
      WrongElement element{.offset = at + begin + i};
      std::memcpy(&element.is, is + byte, element_bytes);
      std::memcpy(&element.should_be, right.data() + byte, element_bytes);
      if (element.is == element.should_be) continue;
      ++wrong.n_wrong;
      if (wrong.first.size() < wrong_elements_kept) wrong.first.push_back(element);
    }
  }
}

void CollectiveTrial::check() {
  CHECK(next_ == n_calls_);
  for (int64_t slot = 0; slot < n_calls_; ++slot) {
    const int64_t call = first_call_ + slot;
    const TensorView result = output(slot);
    WrongCall wrong{.call = call,
                    .bytes = dtype_bytes(values_.dtype(), n_elements_),
                    .n_elements = result.n_elements(),
                    .first = {}};
    int64_t at = 0;
    for (const Segment& segment : segments(call)) {
      compare(segment, call, result.rows(at, segment.n), at, wrong);
      at += segment.n;
    }
    ++n_checked_;
    if (wrong.n_wrong > 0 && wrong_calls_.size() < wrong_calls_kept)
      wrong_calls_.push_back(std::move(wrong));
  }
}

}  // namespace testbed
