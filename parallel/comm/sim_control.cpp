#include "parallel/comm/sim_control.hpp"

#include <algorithm>

#include "kernels/base/check.hpp"

namespace testbed {

SimControlHub::SimControlHub(VirtualTime& time, int size, bool no_waiting)
    : time_(time),
      size_(size),
      no_waiting_(no_waiting),
      barrier_(time.make_barrier(size)),
      slots_(static_cast<size_t>(size)) {}

SimControlHub::Queue& SimControlHub::queue(int source, int target) {
  Queue& queue = queues_[{source, target}];
  if (queue.semaphore < 0) queue.semaphore = time_.make_semaphore();
  return queue;
}

void SimControl::meet() { hub_.time_.wait_barrier(hub_.barrier_); }

Bytes SimControl::broadcast(Bytes from_root, int root) {
  Bytes& slot = hub_.slots_[static_cast<size_t>(root)];
  if (rank_ == root) slot = std::move(from_root);
  meet();
  Bytes all = slot;
  meet();
  return all;
}

std::vector<Bytes> SimControl::gather(Bytes mine, int root) {
  hub_.slots_[static_cast<size_t>(rank_)] = std::move(mine);
  meet();
  std::vector<Bytes> all;
  if (rank_ == root) {
    all = std::move(hub_.slots_);
    hub_.slots_ = std::vector<Bytes>(static_cast<size_t>(hub_.size_));
  }
  meet();
  return all;
}

std::vector<Bytes> SimControl::all_gather(Bytes mine) {
  hub_.slots_[static_cast<size_t>(rank_)] = std::move(mine);
  meet();
  std::vector<Bytes> all = hub_.slots_;
  meet();
  return all;
}

void SimControl::barrier() {
  const double arrival_s = clock_.now_s();
  hub_.last_arrival_s_ =
      hub_.n_arrived_ == 0 ? arrival_s : std::max(hub_.last_arrival_s_, arrival_s);
  if (++hub_.n_arrived_ == hub_.size_) {
    hub_.n_arrived_ = 0;
    hub_.left_s_ = hub_.last_arrival_s_;
  }
  meet();
  if (!hub_.no_waiting_) clock_.wait_until(hub_.left_s_);
}

void SimControl::post(Bytes message, int target) {
  SimControlHub::Queue& to = hub_.queue(rank_, target);
  to.messages.push_back({std::move(message), clock_.now_s()});
  hub_.time_.release(to.semaphore);
}

Bytes SimControl::receive(int source) {
  SimControlHub::Queue& from = hub_.queue(source, rank_);
  hub_.time_.acquire(from.semaphore);
  const SimControlHub::Message message = std::move(from.messages.front());
  from.messages.pop_front();
  if (!hub_.no_waiting_) clock_.wait_until(message.sent_s);
  return message.bytes;
}

Bytes SoloControl::receive(int /*source*/) {
  CHECK(!to_itself_.empty());
  Bytes message = std::move(to_itself_.front());
  to_itself_.pop_front();
  return message;
}

}  // namespace testbed
