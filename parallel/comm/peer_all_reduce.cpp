#include "parallel/comm/peer_all_reduce.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/errors.hpp"
#include "kernels/base/hash.hpp"
#include "parallel/comm/gather_values.hpp"

namespace testbed {
namespace {

// Of any size and sign, so that the order of a sum shows in its last bits.
void fill_check_values(TensorView x, int rank) {
  for (int64_t i = 0; i < x.n_elements(); ++i) {
    const uint64_t bits = mix64(mix64(static_cast<uint64_t>(rank) + 1) + static_cast<uint64_t>(i));
    const auto value = static_cast<float>(
        std::ldexp(static_cast<double>(bits >> 11) * 0x1p-53 - 0.5, static_cast<int>(bits % 16)));
    if (x.dtype() == DType::F32) {
      x.as<float>()[i] = value;
    } else {
      x.as<bf16>()[i] = to_bf16(value);
    }
  }
}

// n_elements() where there is none.
int64_t first_difference(TensorView a, TensorView b) {
  const auto* const bytes = static_cast<const std::byte*>(a.data());
  const auto* const others = static_cast<const std::byte*>(b.data());
  const auto* const end = bytes + a.n_bytes();
  return (std::mismatch(bytes, end, others).first - bytes) / dtype_bytes(a.dtype(), 1);
}

void copy(TensorView from, TensorView to, cudaStream_t on) {
  cuda::check(
      cudaMemcpyAsync(
          to.data(), from.data(), static_cast<size_t>(from.n_bytes()), cudaMemcpyDefault, on),
      "cudaMemcpyAsync");
}

}  // namespace

PeerAllReduce::PeerAllReduce(cuda::Queue& queue, Communicator& host, const Options& options)
    : queue_(queue),
      host_(host),
      options_(options),
      mapped_(queue, host, options.capacity_bytes),
      sizes_(options.sizes.value_or(PeerSizes{})) {
  CHECK(options.hosts.size() == static_cast<size_t>(host.size()));
  sizes_.one_shot_bytes = std::min(sizes_.one_shot_bytes, options.capacity_bytes);
  sizes_.two_shot_bytes = std::min(sizes_.two_shot_bytes, options.capacity_bytes);
}

PeerAllReduce::~PeerAllReduce() {
  if (watcher_ >= 0) queue_.remove_watcher(watcher_);
}

PeerAllReduce::Made PeerAllReduce::make(cuda::Queue& queue,
                                        Communicator& host,
                                        const Options& options) {
  std::unique_ptr<PeerAllReduce> peers(new PeerAllReduce(queue, host, options));
  std::string why_not = peers->mapped_.why_not();
  if (why_not.empty()) why_not = agreed_reason(host, peers->wrong_sum());
  if (why_not.empty()) {
    // Not before: a sum that did not come is a reason to do without, and no error of later waits.
    peers->watcher_ = queue.add_watcher([p = peers.get()](double /*seconds*/) { p->check(); });
  } else {
    peers.reset();
  }
  return {std::move(peers), std::move(why_not)};
}

// Where mapping memory succeeds but reads of it do not (peer-to-peer traffic caught by an IOMMU),
// flags may never come: that is a reason too, and found soon.
std::string PeerAllReduce::wrong_sum() {
  constexpr double soon_s = 10.0;
  mapped_.set_deadline(std::min(soon_s, options_.deadline_s));
  std::string wrong;
  // Less than a piece, one block, all blocks several times over; ends that fill no piece.
  for (const int64_t n_bytes : {int64_t{12}, int64_t{16} << 10, options_.capacity_bytes}) {
    for (const CommAlgorithm algorithm : {CommAlgorithm::one_shot, CommAlgorithm::two_shot}) {
      for (const DType dtype : {DType::F32, DType::BF16}) {
        const int64_t n = std::min(n_bytes, options_.capacity_bytes) / dtype_bytes(dtype, 1) - 1;
        const std::string found = wrong_sum_of(algorithm, dtype, n);
        if (wrong.empty()) wrong = found;  // and on: the other ranks count on this one
      }
    }
  }
  mapped_.set_deadline(options_.deadline_s);
  return wrong;
}

std::string PeerAllReduce::wrong_sum_of(CommAlgorithm algorithm, DType dtype, int64_t n) {
  const Tensor actual(dtype, {n});
  const Tensor expected(dtype, {n});
  fill_check_values(actual, host_.rank());
  fill_check_values(expected, host_.rank());
  host_.all_reduce(expected);
  try {
    const Tensor x = cuda::device_tensor(dtype, {n});
    copy(actual, x, queue_.stream());
    all_reduce(x, algorithm);
    copy(x, actual, queue_.stream());
    queue_.synchronize();
    check();
  } catch (const CommError& error) {
    return error.what();
  }
  const int64_t element = first_difference(actual, expected);
  if (element == n) return "";
  return fmt::format("{} all-reduce of {} {}: element {} differs from the sum in rank order",
                     algorithm_name(algorithm),
                     n,
                     dtype_name(dtype),
                     element);
}

void PeerAllReduce::tune(const std::function<void(TensorView)>& nccl_all_reduce,
                         PeerTuning tuning) {
  if (options_.sizes) return;
  tuning.last_bytes = std::min(tuning.last_bytes, options_.capacity_bytes);
  const AllReduceCandidates candidates{
      .one_shot = [this](TensorView x) { all_reduce(x, CommAlgorithm::one_shot); },
      .two_shot = [this](TensorView x) { all_reduce(x, CommAlgorithm::two_shot); },
      .nccl = nccl_all_reduce};
  times_ = measure_all_reduces(queue_, host_, candidates, tuning);
  sizes_ = best_sizes(times_);
}

std::string PeerAllReduce::description() const {
  return sizes_text(sizes_) + (options_.sizes ? " (set)" : " (measured)");
}

std::optional<CommAlgorithm> PeerAllReduce::algorithm_for(int64_t n_bytes) const {
  if (n_bytes <= sizes_.one_shot_bytes) return CommAlgorithm::one_shot;
  if (n_bytes <= sizes_.two_shot_bytes) return CommAlgorithm::two_shot;
  return std::nullopt;
}

int64_t PeerAllReduce::wire_bytes(CommAlgorithm algorithm,
                                  int64_t n_bytes,
                                  int64_t element_bytes) const {
  const int n_peers = host_.size() - 1;
  if (algorithm == CommAlgorithm::one_shot) return n_peers * n_bytes;
  const int64_t piece_bytes = cuda::peer_piece * element_bytes;
  const int64_t n_pieces = (n_bytes + piece_bytes - 1) / piece_bytes;
  const IndexRange slice = cuda::peer_slice(n_pieces, host_.size(), host_.rank());
  // The last piece may not be full.
  const int64_t mine =
      std::min(slice.end * piece_bytes, n_bytes) - std::min(slice.begin * piece_bytes, n_bytes);
  return n_bytes - mine + n_peers * mine;
}

void PeerAllReduce::all_reduce(TensorView x, CommAlgorithm algorithm) {
  check();
  if (algorithm == CommAlgorithm::one_shot) {
    cuda::one_shot_all_reduce(queue_, mapped_.memory(), x);
  } else {
    CHECK(algorithm == CommAlgorithm::two_shot);
    cuda::two_shot_all_reduce(queue_, mapped_.memory(), x);
  }
}

bool PeerAllReduce::takes_add_norm(TensorView partial) const {
  return algorithm_for(partial.n_bytes()) == CommAlgorithm::one_shot &&
         cuda::peer_norm_fits(partial, host_.size());
}

void PeerAllReduce::all_reduce_add_norm(
    TensorView partial, TensorView residual, TensorView weight, float eps, TensorView out) {
  check();
  cuda::one_shot_add_rms_norm(queue_, mapped_.memory(), partial, residual, weight, eps, out);
}

void PeerAllReduce::check() const {
  const std::vector<int> missing = mapped_.missing();
  if (missing.empty()) return;
  const GroupInfo& group = host_.group();
  std::vector<std::string> names;
  names.reserve(missing.size());
  for (const int r : missing) {
    const auto peer = static_cast<size_t>(r);
    names.push_back(fmt::format("{} ({})", group.world_ranks[peer], options_.hosts[peer]));
  }
  throw CommError(
      fmt::format("all_reduce on {} group {{{}}}: ranks {} did not arrive within {:g} s",
                  axis_name(group.axis),
                  fmt::join(group.world_ranks, ","),
                  fmt::join(names, ", "),
                  options_.deadline_s));
}

}  // namespace testbed
