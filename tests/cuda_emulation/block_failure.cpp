// What a block does when a thread broke a rule, and copies on their way to shared memory.
#include <cstdio>

#include "tests/cuda_emulation/block.hpp"

namespace emulation {

std::string Block::describe(unsigned thread) const {
  const uint3& i = indices_[thread];
  return "thread (" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " +
         std::to_string(i.z) + ") of block (" + std::to_string(blockIdx.x) + ", " +
         std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ")";
}

namespace {
std::string place(const Where& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line()) + " (" +
         where.function_name() + ")";
}
}  // namespace

void Block::fail(const std::string& text, const Where& where) {
  failure_ = describe(current_thread) + " at " + place(where) + ": " + text;
  throw Abandoned{};
}

// No thread can run: says where those that wait are, one for each place.
void Block::report_deadlock() {
  failure_ = "threads wait for others that do not come:";
  std::vector<std::string> places;
  for (unsigned i = 0; i < n_threads_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.state == State::ended) continue;
    std::string at = std::string(thread.waits_in) + " at " + place(thread.where);
    if (thread.state == State::in_meeting) {
      std::array<char, 16> mask{};
      std::snprintf(mask.data(), mask.size(), "%08x", thread.mask);
      at += ", mask " + std::string(mask.data());
    }
    bool known = false;
    for (const std::string& other : places) known |= other == at;
    if (known) continue;
    places.push_back(at);
    failure_ += "\n  " + describe(i) + " in " + at;
  }
  failure_ += "\n  " + std::to_string(n_ended_) + " of " + std::to_string(n_threads_) +
              " threads have ended";
}

// Unwinds the threads that are in the middle of something.
void Block::abandon() {
  abandoned_ = true;
  for (unsigned i = 0; i < n_threads_; ++i) {
    if (threads_[i].state == State::unstarted || threads_[i].state == State::ended) continue;
    set_current(i);
    threads_[i].fibre->resume();
  }
  for (auto& open : open_) open.clear();
  free_meetings_.clear();
  for (const auto& meeting : meetings_) free_meetings_.push_back(meeting.get());
}

void Block::Copy::run() const {
  if (valid) {
    std::memcpy(to, from, n_bytes);
  } else {
    std::memset(to, 0, n_bytes);
  }
}

void Block::copy_async(void* shared, const void* global, size_t n_bytes, bool valid) {
  Thread& self = threads_[current_thread];
  const Copy copy{shared, global, n_bytes, valid, self.n_groups};
  if (early_copies) {
    copy.run();
  } else {
    self.copies.push_back(copy);
  }
}

void Block::commit_copies() { ++threads_[current_thread].n_groups; }

void Block::wait_for_copies(unsigned n_pending) {
  Thread& self = threads_[current_thread];
  const unsigned n_done = self.n_groups > n_pending ? self.n_groups - n_pending : 0;
  size_t n = 0;
  while (n < self.copies.size() && self.copies[n].group < n_done) self.copies[n++].run();
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(n));
}

int barrier(bool predicate, int* n_threads, const Where& where) {
  return the_block().barrier(predicate, n_threads, where);
}
void pause_thread() { the_block().pause(); }
void fail_thread(const char* text, const Where& where) { the_block().fail(text, where); }
Meeting& meet(unsigned mask,
              const char* name,
              const void* bytes,
              size_t n_bytes,
              void (*finish)(Meeting&),
              const Where& where) {
  return the_block().meet(mask, name, bytes, n_bytes, finish, where);
}
void leave(Meeting& meeting) { the_block().leave(meeting); }
void copy_async(void* shared, const void* global, size_t n_bytes, bool valid, const Where& where) {
  if (reinterpret_cast<uintptr_t>(shared) % n_bytes != 0 ||
      (valid && reinterpret_cast<uintptr_t>(global) % n_bytes != 0)) {
    fail_thread("an asynchronous copy of misaligned addresses", where);
  }
  the_block().copy_async(shared, global, n_bytes, valid);
}
void commit_copies() { the_block().commit_copies(); }
void wait_for_copies(unsigned n_pending) { the_block().wait_for_copies(n_pending); }

}  // namespace emulation
