#include "parallel/comm/inject.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "kernels/base/check.hpp"
#include "kernels/base/clock.hpp"
#include "kernels/base/hash.hpp"

namespace testbed {

std::string injection_label(const Injection& f) {
  const auto what = [&] {
    switch (f.kind) {
      case Injection::Kind::delay:
        return fmt::format("delay of {} us on {}, every {}",
                           f.delay_us,
                           f.rank < 0 ? "all ranks" : fmt::format("rank {}", f.rank),
                           f.every);
      case Injection::Kind::flip:
        return fmt::format("flip of {} of what all-reduce {} gave rank {}",
                           f.bit < 0 ? "one bit" : fmt::format("bit {} of one element", f.bit),
                           f.at,
                           f.rank);
      case Injection::Kind::slow_link:
        return fmt::format(
            "messages between ranks {} and {} at {:g} GB/s at most: their sender "
            "waits",
            f.rank,
            f.peer,
            f.gb_s);
      case Injection::Kind::drop_link:
        return fmt::format("messages between ranks {} and {} are never sent", f.rank, f.peer);
      case Injection::Kind::slow_device:
        return fmt::format(
            "ops of rank {} take {:g} times as long: it waits after each", f.rank, f.factor);
      case Injection::Kind::kill:
        return fmt::format("rank {} is killed at its operation {}", f.rank, f.at);
      case Injection::Kind::stop:
        return fmt::format("rank {} is stopped at its operation {}", f.rank, f.at);
    }
    CHECK(false);
  };
  return "injected: " + what();
}

std::optional<std::string> why_no_injection(const std::vector<Injection>& injections,
                                            int world_size) {
  for (const Injection& injection : injections) {
    const std::string_view name = injection_name(injection.kind);
    for (const auto& [field, rank] :
         {std::pair{"rank", injection.rank}, {"peer", injection.peer}}) {
      if (rank < world_size) continue;
      return fmt::format(
          "--inject {}:{}={}: there are ranks 0 to {}", name, field, rank, world_size - 1);
    }
  }
  return std::nullopt;
}

void flip_bit(TensorView element, int bit) {
  // Stored lowest byte first.
  auto* const bytes = static_cast<uint8_t*>(element.data());
  bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ 1U << static_cast<unsigned>(bit % 8));
}

void take_time(int64_t duration_ns, bool may_spin) {
  if (!may_spin) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(duration_ns));
    return;
  }
  const int64_t end_ns = now_ns() + duration_ns;
  while (now_ns() < end_ns) {
  }
}

std::shared_ptr<Faults> Faults::of(const std::vector<Injection>& injections,
                                   int world_rank,
                                   FaultSurroundings surroundings) {
  std::vector<Injection> mine;
  std::copy_if(injections.begin(), injections.end(), std::back_inserter(mine), [&](const auto& f) {
    return f.concerns(world_rank);
  });
  if (mine.empty()) return nullptr;
  return std::make_shared<Faults>(std::move(mine), world_rank, std::move(surroundings));
}

Faults::Faults(std::vector<Injection> injections, int world_rank, FaultSurroundings surroundings)
    : injections_(std::move(injections)),
      world_rank_(world_rank),
      surroundings_(std::move(surroundings)) {
  for (const Injection& f : injections_) {
    CHECK(f.concerns(world_rank) && f.delay_us >= 0 && f.every > 0 && f.at > 0);
  }
}

void Faults::wait(int64_t duration_ns) {
  if (surroundings_.synchronize) surroundings_.synchronize();
  take_time(duration_ns, surroundings_.may_spin);
}

// GPUs' groups settle by their twins on the hosts how they will exchange: none of the run's sums.
bool Faults::is_counted_all_reduce(const CommRecord& record, const GroupInfo& group) {
  return record.op == CommOp::all_reduce && !group.host;
}

const Injection* Faults::of_link(Injection::Kind kind,
                                 const CommRecord& record,
                                 const GroupInfo& group) const {
  if (record.op != CommOp::send) return nullptr;
  const int target = group.world_ranks[static_cast<size_t>(record.peer)];
  const auto found = std::find_if(injections_.begin(), injections_.end(), [&](const auto& f) {
    return f.kind == kind && (f.rank == target || f.peer == target) && target != world_rank_;
  });
  return found == injections_.end() ? nullptr : &*found;
}

void Faults::before(const CommRecord& record, const GroupInfo& group) {
  const int64_t n_all_reduces = n_all_reduces_;
  if (is_counted_all_reduce(record, group)) ++n_all_reduces_;
  ++n_operations_;
  for (const Injection& f : injections_) {
    if (f.kind == Injection::Kind::delay && is_counted_all_reduce(record, group) &&
        n_all_reduces % f.every == 0) {
      wait(f.delay_us * 1000);
    }
    if (n_operations_ != f.at) continue;
    if (f.kind == Injection::Kind::kill) std::raise(SIGKILL);
    if (f.kind == Injection::Kind::stop) std::raise(SIGSTOP);
  }
  if (const Injection* slow = of_link(Injection::Kind::slow_link, record, group)) {
    // Bytes over 10^9 bytes per second are nanoseconds.
    wait(static_cast<int64_t>(static_cast<double>(record.payload_bytes) / slow->gb_s));
  }
}

bool Faults::lets_pass(const CommRecord& record, const GroupInfo& group) {
  return of_link(Injection::Kind::drop_link, record, group) == nullptr;
}

void Faults::after(const CommRecord& record, const GroupInfo& group, TensorView result) {
  if (!is_counted_all_reduce(record, group)) return;
  for (const Injection& f : injections_) {
    if (f.kind == Injection::Kind::flip && n_all_reduces_ == f.at) flip(f, record, group, result);
  }
}

void Faults::flip(const Injection& injection,
                  const CommRecord& record,
                  const GroupInfo& group,
                  TensorView result) {
  const int64_t element_bytes = dtype_bytes(result.dtype(), 1);
  const uint64_t draw = mix64(surroundings_.seed ^ mix64(static_cast<uint64_t>(injection.at)));
  const auto at = static_cast<int64_t>(draw % static_cast<uint64_t>(result.n_elements()));
  const auto n_bits = static_cast<int>(8 * element_bytes);
  const int bit = injection.bit >= 0
                      ? injection.bit % n_bits
                      : static_cast<int>((draw >> 40U) % static_cast<uint64_t>(n_bits));
  const TensorView element(
      static_cast<std::byte*>(result.data()) + at * element_bytes, result.dtype(), {1});
  if (surroundings_.flip_on_device) {
    surroundings_.flip_on_device(element, bit);
  } else {
    flip_bit(element, bit);
  }
  done_.push_back(
      fmt::format("injected: flipped bit {} of element {} of {}, {} {} of {} on rank {}",
                  bit,
                  at,
                  result.n_elements(),
                  comm_op_name(record.op),
                  record.sequence,
                  axis_name(group.axis),
                  world_rank_));
}

double Faults::slowdown() const {
  double factor = 1.0;
  for (const Injection& f : injections_) {
    if (f.kind == Injection::Kind::slow_device) factor *= f.factor;
  }
  return factor;
}

}  // namespace testbed
