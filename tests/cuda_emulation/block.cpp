#include "tests/cuda_emulation/block.hpp"

#include <bit>

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulation {
namespace {

// Mostly one literal.
bool differ(const char* a, const char* b) { return a != b && std::strcmp(a, b) != 0; }

}  // namespace

unsigned current_thread = 0;

Block& the_block() {
  static Block& block = *new Block;  // for ever: its fibres wait in their stacks
  return block;
}

void PositionSet::fill(unsigned n) {
  clear();
  for (unsigned i = 0; i < n / 64; ++i) words_[i] = ~uint64_t{0};
  if (n % 64 != 0) words_[n / 64] = (uint64_t{1} << (n % 64)) - 1;
}

unsigned PositionSet::first() const {
  for (unsigned i = 0; i < words_.size(); ++i) {
    if (words_[i] != 0) return 64 * i + static_cast<unsigned>(std::countr_zero(words_[i]));
  }
  return max_block_threads;
}

void PositionSet::take(PositionSet& from) {
  for (size_t i = 0; i < words_.size(); ++i) words_[i] |= from.words_[i];
  from.clear();
}

void Block::prepare(const dim3& block, void (*run_thread)(const void*), const void* call) {
  n_threads_ = block.x * block.y * block.z;
  run_thread_ = run_thread;
  call_ = call;
  indices_.resize(n_threads_);
  threads_.resize(n_threads_);
  position_.resize(n_threads_);
  for (unsigned i = 0; i < n_threads_; ++i) {
    indices_[i] = {i % block.x, i / block.x % block.y, i / block.x / block.y};
  }
}

void Block::start(const std::vector<unsigned>& order) {
  order_ = order;
  for (unsigned i = 0; i < n_threads_; ++i) {
    position_[order_[i]] = i;
    threads_[i].state = State::unstarted;
    threads_[i].n_groups = 0;
    threads_[i].copies.clear();
  }
  ready_.fill(n_threads_);
  polling_.clear();
  n_ended_ = 0;
  n_at_barrier_ = 0;
  n_true_ = 0;
  failure_.clear();
  abandoned_ = false;
}

Block::Outcome Block::run() {
  while (failure_.empty()) {
    const unsigned position = ready_.first();
    if (position == max_block_threads) {
      if (!polling_.empty()) {
        ready_.take(polling_);
        return Outcome::polling;
      }
      if (n_ended_ == n_threads_) return Outcome::done;
      report_deadlock();
      break;
    }
    Thread& thread = threads_[order_[position]];
    set_current(order_[position]);
    if (thread.state == State::unstarted) {
      if (free_fibres_.empty()) {
        fibres_.push_back(std::make_unique<Fibre>(&Block::run_threads));
        free_fibres_.push_back(fibres_.back().get());
      }
      thread.fibre = free_fibres_.back();
      free_fibres_.pop_back();
    } else {
      ready_.remove(position);
      thread.state = State::ready;
    }
    thread.fibre->resume();
  }
  abandon();
  return Outcome::failed;
}

// A fibre runs one thread after another until one of them waits; then another fibre goes on.
void Block::run_threads() {
  Block& block = the_block();
  while (true) {
    Fibre* const fibre = block.threads_[current_thread].fibre;
    unsigned position = block.position_[current_thread];
    while (block.failure_.empty() && position != max_block_threads) {
      Thread& thread = block.threads_[block.order_[position]];
      if (thread.state != State::unstarted) break;
      block.ready_.remove(position);
      block.set_current(block.order_[position]);
      thread.state = State::ready;
      thread.fibre = fibre;
      try {
        block.run_thread_(block.call_);
      } catch (const Abandoned&) {
      }
      block.end_thread();
      position = block.ready_.first();
    }
    block.free_fibres_.push_back(fibre);
    Fibre::suspend();
  }
}

void Block::set_current(unsigned thread) {
  current_thread = thread;
  threadIdx = indices_[thread];
}

void Block::end_thread() {
  threads_[current_thread].state = State::ended;
  ++n_ended_;
  release_barrier();
}

void Block::make_ready(unsigned thread) {
  threads_[thread].state = State::ready;
  ready_.add(position_[thread]);
}

void Block::wait(State state) {
  const unsigned self = current_thread;
  threads_[self].state = state;
  Fibre::suspend();
  if (abandoned_) throw Abandoned{};
}

void Block::pause() {
  polling_.add(position_[current_thread]);
  wait(State::polling);
}

int Block::barrier(bool predicate, int* n_threads, const Where& where) {
  if (n_at_barrier_ == 0) {
    barrier_where_ = where;
  } else if (barrier_where_.line() != where.line() ||
             differ(barrier_where_.file_name(), where.file_name())) {
    fail(std::string("is at another __syncthreads than threads that wait at ") +
             barrier_where_.file_name() + ":" + std::to_string(barrier_where_.line()),
         where);
  }
  ++n_at_barrier_;
  n_true_ += predicate ? 1 : 0;
  Thread& self = threads_[current_thread];
  self.where = where;
  self.waits_in = "__syncthreads";
  self.state = State::at_barrier;
  const unsigned me = current_thread;
  release_barrier();
  if (self.state == State::at_barrier) {
    wait(State::at_barrier);
  } else {
    ready_.remove(position_[me]);  // the last to come goes on
  }
  if (n_threads != nullptr) *n_threads = barrier_result_[1];
  return barrier_result_[0];
}

void Block::release_barrier() {
  if (n_at_barrier_ == 0 || n_at_barrier_ + n_ended_ != n_threads_) return;
  barrier_result_ = {n_true_, static_cast<int>(n_at_barrier_)};
  n_at_barrier_ = 0;
  n_true_ = 0;
  for (unsigned i = 0; i < n_threads_; ++i) {
    if (threads_[i].state == State::at_barrier) make_ready(i);
  }
}

Meeting& Block::open_meeting(unsigned mask, const char* name, const Where& where) {
  auto& open = open_[current_thread / 32];
  for (Meeting* meeting : open) {
    if (meeting->mask == mask && meeting->where.line() == where.line() &&
        !differ(meeting->name, name) && !differ(meeting->where.file_name(), where.file_name())) {
      return *meeting;
    }
  }
  if (free_meetings_.empty()) {
    meetings_.push_back(std::make_unique<Meeting>());
    free_meetings_.push_back(meetings_.back().get());
  }
  Meeting& meeting = *free_meetings_.back();
  free_meetings_.pop_back();
  meeting.name = name;
  meeting.where = where;
  meeting.mask = mask;
  meeting.arrived = 0;
  meeting.unread = mask;
  open.push_back(&meeting);
  return meeting;
}

Meeting& Block::meet(unsigned mask,
                     const char* name,
                     const void* bytes,
                     size_t n_bytes,
                     void (*finish)(Meeting&),
                     const Where& where) {
  const unsigned lane = current_lane();
  if (((mask >> lane) & 1U) == 0) fail(std::string(name) + ": the mask lacks this lane", where);
  Meeting& meeting = open_meeting(mask, name, where);
  if (n_bytes != 0) std::memcpy(meeting.slots[lane].bytes.data(), bytes, n_bytes);
  meeting.arrived |= 1U << lane;
  Thread& self = threads_[current_thread];
  if (meeting.arrived != mask) {
    self.where = where;
    self.waits_in = name;
    self.mask = mask;
    wait(State::in_meeting);
    return meeting;
  }
  std::erase(open_[current_thread / 32], &meeting);
  if (finish != nullptr) finish(meeting);
  const unsigned first = current_thread / 32 * 32;
  for (unsigned others = mask & ~(1U << lane); others != 0; others &= others - 1) {
    make_ready(first + static_cast<unsigned>(std::countr_zero(others)));
  }
  return meeting;
}

void Block::leave(Meeting& meeting) {
  meeting.unread &= ~(1U << current_lane());
  if (meeting.unread == 0) free_meetings_.push_back(&meeting);
}

}  // namespace emulation
